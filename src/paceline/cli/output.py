"""Output of commands: the result on stdout as lines, as plain key-value pairs or as JSON; messages on stderr.

Also the confirmation prompt, `confirm`.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from paceline.core.errors import ConfigError, ExitCode, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json


def emit(session: Session, command: str, data: "Json", lines: Iterable[str]) -> None:
    """The command's result: `data` with --json or --plain, otherwise `lines`."""
    if session.common.json:
        _write_json({"schema": f"paceline.{command}/1", "ok": True, "data": data})
        return
    if session.common.plain:
        lines = plain_lines(data)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def print_message(session: Session, text: str) -> None:
    """One line on stderr for a person."""
    if not session.is_silent:
        print(text, file=sys.stderr, flush=True)


def emit_problems(
    session: Session, problems: Sequence[Problem], exit_code: ExitCode, *, as_json: bool
) -> None:
    if as_json:
        listed: list[Json] = [
            {"code": p.code, "what": p.what, "hint": p.hint, "where": p.where} for p in problems
        ]
        error: dict[str, Json] = {"exit_code": int(exit_code), "problems": listed}
        _write_json({"schema": "paceline.error/1", "ok": False, "error": error})
        return
    colour = session.has_colour(sys.stderr)
    for problem, following in zip(problems, (*problems[1:], None), strict=True):
        is_last_of_its_code = following is None or following.code != problem.code
        for line in _problem_lines(problem, colour, with_more=is_last_of_its_code):
            print(line, file=sys.stderr)


def _problem_lines(problem: Problem, colour: bool, *, with_more: bool) -> Iterator[str]:
    """What happened, why it is an error, how to fix it, where to read more."""
    from paceline.core.error_catalog.index import ERROR_CATALOG  # only needed after a failure

    place = "" if problem.where is None else f"{problem.where}: "
    yield f"{_tag(f'error[{problem.code}]:', 'red', colour)} {place}{problem.what}"
    yield f"  {_tag('why:', 'cyan', colour)}  {ERROR_CATALOG[problem.code].why}"
    first, *further = problem.hint.splitlines() or [""]
    yield f"  {_tag('fix:', 'cyan', colour)}  {first}"
    yield from (f"        {line}" for line in further)
    if with_more:
        yield f"  {_tag('more:', 'cyan', colour)} paceline explain {problem.code}"


def _tag(word: str, fg: str, colour: bool) -> str:
    return click.style(word, fg=fg, bold=True) if colour else word


def _write_json(value: "Json") -> None:
    sys.stdout.write(json.dumps(_finite(value), allow_nan=False) + "\n")


def _finite(value: "Json") -> "Json":
    """JSON has no NaN: a loss that is not a number becomes null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_finite(item) for item in value]
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case _:
            return value


# --plain output, with the names of --json:
#     workers.0.name      worker-0
#     workers.0.steps     400
# A value never breaks its line: tabs and line ends in it are written as \t and \n.

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def plain_lines(data: "Json", path: str = "") -> Iterator[str]:
    match data:
        case dict():
            for name, value in data.items():
                yield from plain_lines(value, f"{path}.{name}" if path else name)
        case list():
            for number, value in enumerate(data):
                yield from plain_lines(value, f"{path}.{number}" if path else str(number))
        case _:
            yield f"{path}\t{plain_value(data)}"


def plain_value(value: "Json") -> str:
    """Empty for null and for numbers that are not finite."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value) if math.isfinite(value) else ""
        case _:
            return str(value).translate(_ESCAPES)


# A script has no terminal, so it is not prompted. A CI service may give its jobs a terminal: there --no-input
# refuses instead of prompting.

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(session: Session, what: str, *, yes: bool) -> bool:
    """Whether to proceed; `what` describes the action."""
    if session.common.no_input and not yes:
        raise ConfigError(
            [
                Problem(
                    f"{what}: confirmation required, but --no-input is set",
                    "add --yes, or leave --no-input out",
                )
            ]
        )
    is_asked = not yes and not session.common.json and sys.stdin.isatty() and sys.stderr.isatty()
    if not is_asked or click.confirm(f"{what}?", err=True):
        return True
    print_message(session, "cancelled")
    return False
