"""How does a command answer? Data on stdout, as lines or as one JSON object; talk on stderr."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from paceline.cli.session import Session
from paceline.errors import ExitCode, Problem

if TYPE_CHECKING:
    from paceline.plan.codec import Json


def emit(session: Session, command: str, data: "Json", lines: Iterable[str]) -> None:
    """The command's result: `data` with --json, otherwise `lines`."""
    if session.common.json:
        _write_json({"schema": f"paceline.{command}/1", "ok": True, "data": data})
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def say(session: Session, text: str) -> None:
    """One line of talk for a person."""
    if not session.is_silent:
        print(text, file=sys.stderr, flush=True)


def emit_problems(
    session: Session, problems: Sequence[Problem], exit_code: ExitCode, *, as_json: bool
) -> None:
    if as_json:
        listed: list[Json] = [{"what": p.what, "hint": p.hint, "where": p.where} for p in problems]
        error: dict[str, Json] = {"exit_code": int(exit_code), "problems": listed}
        _write_json({"schema": "paceline.error/1", "ok": False, "error": error})
        return
    colour = session.has_colour(sys.stderr)
    for problem in problems:
        place = "" if problem.where is None else f"{problem.where}: "
        print(f"{_tag('error:', 'red', colour)} {place}{problem.what}", file=sys.stderr)
        print(f"{_tag('hint:', 'cyan', colour)} {problem.hint}", file=sys.stderr)


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
