"""Rules about text that BuildKit's frontend or the shell refuses before anything runs (33).

The frontend accepts a fixed set of instructions, each with a minimum of arguments. A RUN in shell form is one
line for the shell: `fault_in` parses its operators and keywords, and gives up (no finding) on any construct
that it does not model, such as arrays and arithmetic.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Finding, lines_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

UNKNOWN = Pattern(
    number=33,
    id="unknown-instruction",
    what="A line is no instruction of a Dockerfile: most often a RUN that lost its backslash or its `&&`.",
    fix="only reported: `\\` at the end of the line before, or RUN in front",
)
ARGUMENTS = Pattern(
    number=33,
    id="missing-argument",
    what="An instruction has fewer or more arguments than it takes, such as COPY without a destination.",
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
    what="A `#` behind a command comments out the lines that follow it: RUN joins them into one.",
    fix="only reported: the comment on a line of its own",
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


def dockerfile_syntax(place: Place) -> Iterator[Finding]:
    outside = [one for one in place.docker.arguments if place.stage.number == 0]
    yield from _arguments(place, place.stage.origin)
    before: Instruction | None = place.stage.origin
    was_unknown = False
    for step in [*outside, *place.stage.instructions]:
        is_unknown = step.word not in _INSTRUCTIONS
        if is_unknown and not was_unknown:
            yield _unknown(place, step, before)
        elif not is_unknown:
            yield from _arguments(place, step)
            yield from _swallowed(place, step)
            yield from _open_quote(place, step)
        was_unknown, before = is_unknown, step


def _unknown(place: Place, step: Instruction, before: Instruction | None) -> Finding:
    line = lines_of(place.docker.text)[step.first - 1].strip()
    near = get_close_matches(step.word, _INSTRUCTIONS, n=1, cutoff=0.75)
    continued = before is not None and before.word == "RUN"
    advice = (
        f"write {near[0]}"
        if near
        else f"end line {step.first - 1} with a backslash, or put RUN in front"
        if continued
        else "put the instruction in front, or remove the line"
    )
    return UNKNOWN.found(
        place,
        step,
        f"`{step.word}` is no instruction: `dockerfile parse error: unknown instruction`",
        line[:120],
        advice,
    )


def _arguments(place: Place, step: Instruction) -> Iterator[Finding]:
    values = step.values
    if any(_HEREDOC.search(value) for value in values):
        return
    least = _AT_LEAST.get(step.word, 0)
    if step.word == "ENV" and any(value == "=" or value.startswith("= ") for value in values[1::2]):
        yield ARGUMENTS.found(
            place,
            step,
            f"the value of {values[0]} becomes `{values[1]}`: ENV takes no blanks around `=`",
            f"ENV {' '.join(values)}",
            f"write ENV {values[0]}={values[1].lstrip('= ')}",
        )
    if step.word == "FROM":
        is_wrong = len(values) not in (1, 3) or (len(values) == 3 and values[1].lower() != "as")
        needs = "one image, or an image, AS and a name"
    else:
        is_wrong = len([value for value in values if value.strip()]) < least
        needs = "a source and a destination" if least == 2 else "an argument"
    if is_wrong:
        yield ARGUMENTS.found(
            place,
            step,
            f"{step.word} takes {needs}: the build is refused before it begins",
            f"{step.word} {' '.join(values)}".strip(),
            f"give {step.word} {needs}",
        )


def _swallowed(place: Place, step: Instruction) -> Iterator[Finding]:
    lines = lines_of(place.docker.text)[step.first - 1 : step.last]
    if step.first == step.last or _HEREDOC.search("".join(lines)) or step.word not in ("RUN", "ENV"):
        return
    for number, line in enumerate(lines[1:], step.first + 1):
        found = _SWALLOWED.match(line)
        quotes = sum("".join(lines[: number - step.first]).count(sign) for sign in "'\"")
        if found is not None and quotes % 2 == 0:
            yield SWALLOWED.found(
                place,
                step,
                f"line {number} is read as part of the {step.word} above it: {found[1]} becomes an argument "
                "or a command",
                line.strip()[:120],
                "end the line before it without a backslash",
            )
            return


def _open_quote(place: Place, step: Instruction) -> Iterator[Finding]:
    """BuildKit expands the values of ENV, ARG and LABEL, and refuses one whose quote is open."""
    if step.word not in ("ENV", "ARG", "LABEL"):
        return
    text = "".join(lines_of(place.docker.text)[step.first - 1 : step.last])
    quote = next((sign for value in step.values if (sign := _quote_left_open(value))), "")
    if quote and "escape=`" not in place.docker.text[:200]:
        yield SHELL.found(
            place,
            step,
            f"`{quote}` is not closed: `unexpected end of statement while looking for matching quote`",
            text.strip()[:120],
            "close the quote, or write a backslash before it",
        )


def _quote_left_open(value: str) -> str:
    quote, is_escaped = "", False
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


def shell_syntax(place: Place) -> Iterator[Finding]:
    if re.search(r"windows|nanoserver", place.stage.base) or any(
        re.search(r"powershell|pwsh|cmd(?:\.exe)?$|python|nu$", value, re.I)
        for step in place.steps
        if step.word == "SHELL"
        for value in step.values[:1]
    ):
        return
    text = lines_of(place.docker.text)
    for step in place.stage.instructions:
        if step.word != "RUN" or step.is_json or not step.values:
            continue
        if _HEREDOC.search("".join(text[step.first - 1 : step.last])) or any(_swallowed(place, step)):
            continue
        fault = fault_in(step.values[0])
        if fault is not None:
            yield SHELL.found(
                place,
                step,
                f"the shell refuses this RUN: {fault}",
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


def run_together(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        if step.word != "RUN" or step.is_json:
            continue
        if _HEREDOC.search("".join(lines_of(place.docker.text)[step.first - 1 : step.last])):
            continue
        for command in step.commands:
            words = command.texts
            if words[0] not in _STARTS:
                continue
            at = next((n for n, pair in enumerate(pairwise(words)) if n > 1 and pair in _BEGINNINGS), None)
            if at is None or {"run", "xargs", "-c", "-m", "--run"} & set(words[:at]):
                continue
            yield JOINED.found(
                place,
                step,
                f"`{words[at]} {words[at + 1]}` is an argument of `{' '.join(words[:2])}`: it does not run",
                " ".join(words[: at + 2])[-120:],
                f"write `&&` before {words[at]}",
            )
            break


def commented_out(place: Place) -> Iterator[Finding]:
    lines = lines_of(place.docker.text)
    for step in place.stage.instructions:
        own = lines[step.first - 1 : step.last]
        if step.word != "RUN" or step.is_json or not step.values or _HEREDOC.search("".join(own)):
            continue
        marked = [line for line in own[:-1] if re.match(r"^\s*[^#\s].*\s#.*\\\s*$", line)]
        lost = _comment_in(step.values[0]) if marked else None
        if lost is not None:
            yield COMMENTED.found(
                place,
                step,
                "RUN joins its lines, and the shell takes everything behind `#` as a comment",
                lost.strip()[:120],
                "put the comment on a line of its own",
            )


def _comment_in(text: str) -> str | None:
    """What an unquoted `#` at the beginning of a word comments out."""
    at = 0
    try:
        while at < len(text):
            if text[at] == "#":
                return text[at:] if "\n" not in text[at:] else None
            at = at + 1 if text[at] in " \t\r\n;|&()<>" else _word_end(text, at)[0]
    except (_NotModelledError, _UnclosedError):
        return None
    return None


class _NotModelledError(Exception):
    """The text has a construct that the parser does not know."""


@dataclass(slots=True)
class _Shell:
    """Parser state: open compounds, and whether a command must begin here."""

    opened: list[str] = field(default_factory=list)
    operator: str = ""  # the one before this place; "" at the beginning and inside of a command
    is_command_due: bool = True
    is_pattern: bool = False  # of case, up to its `)`
    is_test: bool = False  # of bash, up to its `]]`


_OPENERS = {"if": "fi", "while": "done", "until": "done", "for": "done", "case": "esac", "{": "}"}
# Where each keyword may stand: behind which one that is still open.
_FOLLOWS = {
    "then": ("if",),
    "elif": ("then",),
    "else": ("then",),
    "fi": ("then", "else"),
    "do": ("for", "while", "until"),
    "done": ("do",),
    "esac": ("case",),
    "}": ("{",),
}
_CLOSED_BY = {**_OPENERS, "then": "fi", "else": "fi", "do": "done", "(": ")"}
_OPERATORS = re.compile(r"&&|\|\||;;&?|\|&|[;|&()\n]")


def fault_in(text: str) -> str | None:
    """Why a shell cannot parse this line; None where it can, or where the parser cannot tell."""
    state = _Shell()
    try:
        for kind, token in _tokens(text):
            fault = _operator(state, token) if kind == "operator" else _word(state, token, kind == "quoted")
            if fault is not None:
                return fault
    except _NotModelledError:
        return None
    except _UnclosedError as open_quote:
        return f"`{open_quote}` is not closed"
    if state.is_test:
        return None
    if state.is_command_due and state.operator in ("&&", "||", "|"):
        return f"no command follows `{state.operator}`"
    if state.opened:
        return f"`{state.opened[-1]}` without `{_CLOSED_BY[state.opened[-1]]}`"
    return None


def _operator(state: _Shell, token: str) -> str | None:
    if state.is_test:
        if token in (";", "&", ";;"):
            raise _NotModelledError
        return None
    if state.is_pattern:
        if token == ")":
            state.is_pattern, state.is_command_due, state.operator = False, True, ""
        elif token not in ("(", "|", "\n"):
            raise _NotModelledError
        return None
    if token == "(":
        if not state.is_command_due:
            raise _NotModelledError
        state.opened.append("(")
        state.operator = ""
        return None
    if token == ")":
        if not state.opened or state.opened[-1] != "(":
            return "`)` without `(`"
        if state.is_command_due and state.operator in ("&&", "||", "|"):
            return f"no command follows `{state.operator}`"
        state.opened.pop()
        state.is_command_due = False
        return None
    if token.startswith(";;"):
        if not state.opened or state.opened[-1] != "case":
            return f"`{token}` outside of case"
        state.is_pattern, state.is_command_due, state.operator = True, True, ""
        return None
    if token == "\n":
        if not state.is_command_due:
            state.is_command_due, state.operator = True, ""
        return None
    if state.is_command_due:
        place = f"behind `{state.operator}`" if state.operator else "where a command should begin"
        return f"`{token}` stands {place}"
    state.is_command_due, state.operator = True, token
    return None


def _word(state: _Shell, word: str, is_quoted: bool) -> str | None:
    if state.is_test:
        state.is_test = word != "]]"
        return None
    if state.is_pattern:
        if word == "esac" and not is_quoted:
            state.opened.pop()
            state.is_pattern, state.is_command_due = False, False
        return None
    if not state.is_command_due:
        _argument(state, word)
        return None
    if is_quoted:
        state.is_command_due = False
        return None
    return _keyword(state, word)


def _argument(state: _Shell, word: str) -> None:
    top = state.opened[-1] if state.opened else ""
    if top == "case" and word == "in" and state.operator == "case":
        state.is_pattern, state.operator = True, ""


def _keyword(state: _Shell, word: str) -> str | None:
    top = state.opened[-1] if state.opened else ""
    if word in ("((", "function", "select", "coproc"):
        raise _NotModelledError
    if word == "[[":
        state.is_test, state.is_command_due, state.operator = True, False, ""
        return None
    if word in _FOLLOWS:
        return _expected(state, word, top)
    if word in _OPENERS:
        state.opened.append(word)
        state.is_command_due = word not in ("for", "case")
        state.operator = word if word == "case" else ""
        return None
    if word != "!":
        state.is_command_due = False
        state.operator = ""
    return None


def _expected(state: _Shell, word: str, top: str) -> str | None:
    if top not in _FOLLOWS[word]:
        return f"`{word}` without `{_FOLLOWS[word][0]}` before it as a command"
    if state.operator in ("&&", "||", "|"):
        return f"`{word}` stands behind `{state.operator}`"
    state.opened.pop()
    is_closing = word in _OPENERS.values()
    if not is_closing:
        state.opened.append("if" if word == "elif" else word)
    state.is_command_due = not is_closing
    state.operator = ""
    return None


class _UnclosedError(Exception):
    """A quote that is not closed."""


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """("operator", "&&"), ("word", "if"), ("quoted", "…"); with quotes or expansions a word is no keyword."""
    at = 0
    while at < len(text):
        sign = text[at]
        if sign in " \t\r" or text.startswith(("\\\n", "\\\r\n"), at):
            at += 1 if sign != "\\" else 2
            continue
        if sign == "#":
            stop = text.find("\n", at)
            at = len(text) if stop < 0 else stop
            continue
        redirect = re.compile(r"\d*(?:&>>?|>>|>&|<&|<>|>\||[<>])(?!\()").match(text, at)
        if redirect is not None:
            if text.startswith("<<", at):
                raise _NotModelledError
            at = redirect.end()
            continue
        operator = _OPERATORS.match(text, at)
        if operator is not None:
            if text.startswith("((", at):
                raise _NotModelledError
            yield "operator", operator[0]
            at = operator.end()
            continue
        end, is_quoted = _word_end(text, at)
        word = text[at:end]
        after = text[end:].lstrip(" ")
        if not is_quoted and after.startswith("()") and re.fullmatch(r"[\w-]+", word):
            raise _NotModelledError  # a function
        if end < len(text) and text[end] == "(":
            raise _NotModelledError  # an array or a pattern
        yield ("quoted" if is_quoted else "word"), word
        at = end


def _word_end(text: str, at: int) -> tuple[int, bool]:
    start, is_quoted = at, False
    while at < len(text):
        sign = text[at]
        if sign in "'\"":
            at, is_quoted = _behind_quote(text, at), True
        elif sign == "`":
            stop = text.find("`", at + 1)
            if stop < 0:
                raise _UnclosedError("`")
            at, is_quoted = stop + 1, True
        elif text.startswith(("$(", "${", "<(", ">("), at):
            at, is_quoted = _behind_bracket(text, at + 1), True
        elif sign == "\\":
            at, is_quoted = at + 2, True
        elif sign in " \t\r\n;|&()<>":
            break
        else:
            at += 1
    return max(min(at, len(text)), start + 1), is_quoted


def _behind_quote(text: str, at: int) -> int:
    quote, start = text[at], at
    at += 1
    while at < len(text):
        if text[at] == quote:
            return at + 1
        if quote == '"' and text.startswith("$(", at):
            at = _behind_bracket(text, at + 1)
        else:
            at += 2 if text[at] == "\\" and (quote == '"' or text[start - 1 : start] == "$") else 1
    raise _UnclosedError(quote)


def _behind_bracket(text: str, at: int) -> int:
    closing = {"(": ")", "{": "}"}[text[at]]
    opening, depth = text[at], 0
    while at < len(text):
        if text[at] in "'\"" and closing == ")":
            at = _behind_quote(text, at)
            continue
        if text[at] == "\\":
            at += 1
        elif text[at] == opening:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise _NotModelledError


RULES = (dockerfile_syntax, shell_syntax, run_together, commented_out)
