"""Rules about text that BuildKit's frontend or the shell refuses before anything runs (33).

The frontend accepts a fixed set of instructions, each with a minimum of arguments. A RUN in shell form is one
line for the shell, which `shell_parser` parses.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Finding, lines_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.shell_parser import comment_in, fault_in
from paceline.images.lint.view import StageView

UNKNOWN = Pattern(
    number=33,
    id="unknown-instruction",
    what="A line is not an instruction of a Dockerfile: usually a RUN that lost its backslash or its `&&`.",
    fix="only reported: `\\` at the end of the line before, or RUN in front",
)
ARGUMENTS = Pattern(
    number=33,
    id="missing-argument",
    what="An instruction has fewer or more arguments than it accepts, such as COPY without a destination.",
    fix="only reported: the argument that is missing",
)
SWALLOWED = Pattern(
    number=33,
    id="swallowed-instruction",
    what="A backslash or `&&` at the end of a line makes the next instruction part of this one.",
    fix="only reported: the line ends without it",
)
SHELL = Pattern(
    number=33,
    id="shell-syntax",
    what="The shell cannot parse a RUN: an operator without a command, a keyword or a quote left open.",
    fix="only reported: what is missing",
)
JOINED = Pattern(
    number=33,
    id="commands-run-together",
    what="A command is an argument of the one before it: `&&` is missing between two lines.",
    fix="only reported: `&&` between the commands",
)
COMMENTED = Pattern(
    number=33,
    id="commented-out",
    what="A `#` after a command comments out the lines that follow it: RUN joins them into one.",
    fix="only reported: the comment on its own line",
)
PATTERNS = (UNKNOWN, ARGUMENTS, SWALLOWED, SHELL, JOINED, COMMENTED)
_INSTRUCTIONS = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_AT_LEAST = {"ADD": 2, "COPY": 2, "RUN": 1, "WORKDIR": 1, "USER": 1, "EXPOSE": 1, "LABEL": 1, "ARG": 1}
_SWALLOWED = re.compile(r"^\s*(RUN|COPY|ADD|WORKDIR|ENTRYPOINT|CMD|FROM)\s+\S")
_HEREDOC = re.compile(r"<<-?\s*['\"]?\w")


def dockerfile_syntax(view: StageView) -> Iterator[Finding]:
    outside = [argument for argument in view.docker.arguments if view.stage.number == 0]
    yield from _arguments(view, view.stage.origin)
    before: Instruction | None = view.stage.origin
    was_unknown = False
    for step in [*outside, *view.stage.instructions]:
        is_unknown = step.word not in _INSTRUCTIONS
        if is_unknown and not was_unknown:
            yield _unknown(view, step, before)
        elif not is_unknown:
            yield from _arguments(view, step)
            yield from _swallowed(view, step)
            yield from _open_quote(view, step)
        was_unknown = is_unknown
        before = step


def _unknown(view: StageView, step: Instruction, before: Instruction | None) -> Finding:
    line = lines_of(view.docker.text)[step.first - 1].strip()
    near = get_close_matches(step.word, _INSTRUCTIONS, n=1, cutoff=0.75)
    advice = "put the instruction in front, or remove the line"
    if near:
        advice = f"write {near[0]}"
    elif before is not None and before.word == "RUN":
        advice = f"end line {step.first - 1} with a backslash, or put RUN in front"
    return UNKNOWN.finding(
        view,
        step,
        f"`{step.word}` is not an instruction: `dockerfile parse error: unknown instruction`",
        line[:120],
        advice,
    )


def _arguments(view: StageView, step: Instruction) -> Iterator[Finding]:
    values = step.values
    if any(_HEREDOC.search(value) for value in values):
        return
    minimum = _AT_LEAST.get(step.word, 0)
    if step.word == "ENV" and any(value == "=" or value.startswith("= ") for value in values[1::2]):
        yield ARGUMENTS.finding(
            view,
            step,
            f"the value of {values[0]} becomes `{values[1]}`: ENV allows no spaces around `=`",
            f"ENV {' '.join(values)}",
            f"write ENV {values[0]}={values[1].lstrip('= ')}",
        )
    if step.word == "FROM":
        is_wrong = len(values) not in (1, 3) or (len(values) == 3 and values[1].lower() != "as")
        needs = "one image, or an image, AS and a name"
    else:
        is_wrong = len([value for value in values if value.strip()]) < minimum
        needs = "a source and a destination" if minimum == 2 else "an argument"
    if is_wrong:
        yield ARGUMENTS.finding(
            view,
            step,
            f"{step.word} needs {needs}: the build fails before it starts",
            f"{step.word} {' '.join(values)}".strip(),
            f"give {step.word} {needs}",
        )


def _swallowed(view: StageView, step: Instruction) -> Iterator[Finding]:
    lines = lines_of(view.docker.text)[step.first - 1 : step.last]
    if step.first == step.last or _HEREDOC.search("".join(lines)) or step.word not in ("RUN", "ENV"):
        return
    for number, line in enumerate(lines[1:], step.first + 1):
        match = _SWALLOWED.match(line)
        quotes = sum("".join(lines[: number - step.first]).count(sign) for sign in "'\"")
        if match is not None and quotes % 2 == 0:
            yield SWALLOWED.finding(
                view,
                step,
                f"line {number} is read as part of the {step.word} above it: {match[1]} becomes an argument "
                "or a command",
                line.strip()[:120],
                "end the line before it without a backslash",
            )
            return


def _open_quote(view: StageView, step: Instruction) -> Iterator[Finding]:
    """BuildKit expands the values of ENV, ARG and LABEL, and refuses one whose quote is open."""
    if step.word not in ("ENV", "ARG", "LABEL"):
        return
    text = "".join(lines_of(view.docker.text)[step.first - 1 : step.last])
    quote = next((sign for value in step.values if (sign := _quote_left_open(value))), "")
    if quote and "escape=`" not in view.docker.text[:200]:
        yield SHELL.finding(
            view,
            step,
            f"`{quote}` is not closed: `unexpected end of statement while looking for matching quote`",
            text.strip()[:120],
            "close the quote, or write a backslash before it",
        )


def _quote_left_open(value: str) -> str:
    quote = ""
    is_escaped = False
    for sign in value:
        if is_escaped:
            is_escaped = False
        elif sign == "\\" and quote != "'":
            is_escaped = True
        elif sign == quote:
            quote = ""
        elif sign in "'\"" and not quote:
            quote = sign
    return quote


def shell_syntax(view: StageView) -> Iterator[Finding]:
    if re.search(r"windows|nanoserver", view.stage.base) or any(
        re.search(r"powershell|pwsh|cmd(?:\.exe)?$|python|nu$", value, re.I)
        for step in view.steps
        if step.word == "SHELL"
        for value in step.values[:1]
    ):
        return
    text = lines_of(view.docker.text)
    for step in view.stage.instructions:
        if step.word != "RUN" or step.is_json or not step.values:
            continue
        if _HEREDOC.search("".join(text[step.first - 1 : step.last])) or any(_swallowed(view, step)):
            continue
        fault = fault_in(step.values[0])
        if fault is not None:
            yield SHELL.finding(
                view,
                step,
                f"the shell rejects this RUN: {fault}",
                step.values[0].strip()[:120],
                "separate the commands with && or ;, and close what is open",
            )


_STARTS = frozenset(
    {"apt-get", "apt", "pip", "pip3", "git", "conda", "wget", "curl", "mkdir", "cd", "npm", "apk"}
)
_BEGINNINGS = frozenset(
    [
        ("apt-get", "install"),
        ("apt-get", "update"),
        ("apt-get", "clean"),
        ("apt", "install"),
        ("apt", "update"),
        ("pip", "install"),
        ("pip3", "install"),
        ("conda", "install"),
        ("git", "clone"),
        ("rm", "-rf"),
    ]
)


def run_together(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word != "RUN" or step.is_json:
            continue
        if _HEREDOC.search("".join(lines_of(view.docker.text)[step.first - 1 : step.last])):
            continue
        for command in step.commands:
            argv = command.texts
            if argv[0] not in _STARTS:
                continue
            at = next((n for n, pair in enumerate(pairwise(argv)) if n > 1 and pair in _BEGINNINGS), None)
            if at is None or {"run", "xargs", "-c", "-m", "--run"} & set(argv[:at]):
                continue
            yield JOINED.finding(
                view,
                step,
                f"`{argv[at]} {argv[at + 1]}` is an argument of `{' '.join(argv[:2])}`: it does not run",
                " ".join(argv[: at + 2])[-120:],
                f"write `&&` before {argv[at]}",
            )
            break


def commented_out(view: StageView) -> Iterator[Finding]:
    lines = lines_of(view.docker.text)
    for step in view.stage.instructions:
        own = lines[step.first - 1 : step.last]
        if step.word != "RUN" or step.is_json or not step.values or _HEREDOC.search("".join(own)):
            continue
        marked = [line for line in own[:-1] if re.match(r"^\s*[^#\s].*\s#.*\\\s*$", line)]
        lost = comment_in(step.values[0]) if marked else None
        if lost is not None:
            yield COMMENTED.finding(
                view,
                step,
                "RUN joins its lines, and the shell treats everything after `#` as a comment",
                lost.strip()[:120],
                "put the comment on its own line",
            )


RULES = (dockerfile_syntax, shell_syntax, run_together, commented_out)
