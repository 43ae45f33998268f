"""Parser of POSIX shell syntax: why a shell refuses a line, and what a `#` comments out.

`fault_in` parses operators, keywords and quotes. It gives up, and reports nothing, on any construct that it
does not model, such as arrays, arithmetic, functions and here documents.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_OPENERS = {"if": "fi", "while": "done", "until": "done", "for": "done", "case": "esac", "{": "}"}
# Open keywords that each keyword may follow.
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


class _NotModelledError(Exception):
    """The text has a construct that the parser does not know."""


class _UnclosedError(Exception):
    """A quote that is not closed."""


@dataclass(slots=True)
class _Shell:
    """Parser state: open compounds, and whether a command must begin here."""

    opened: list[str] = field(default_factory=list)
    operator: str = ""  # the one before this place; "" at the beginning and inside of a command
    is_command_due: bool = True
    is_pattern: bool = False  # of case, up to its `)`
    is_test: bool = False  # of bash, up to its `]]`


def fault_in(text: str) -> str | None:
    """Why a shell cannot parse this line; None if it can, or if unknown."""
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


def comment_in(text: str) -> str | None:
    """Text that an unquoted `#` at the start of a word comments out."""
    at = 0
    try:
        while at < len(text):
            if text[at] == "#":
                return text[at:] if "\n" not in text[at:] else None
            at = at + 1 if text[at] in " \t\r\n;|&()<>" else _word_end(text, at)[0]
    except (_NotModelledError, _UnclosedError):
        return None
    return None


def _operator(state: _Shell, token: str) -> str | None:
    if state.is_test:
        if token in (";", "&", ";;"):
            raise _NotModelledError
        return None
    if state.is_pattern:
        if token == ")":
            state.is_pattern = False
            state.is_command_due = True
            state.operator = ""
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
        state.is_pattern = True
        state.is_command_due = True
        state.operator = ""
        return None
    if token == "\n":
        if not state.is_command_due:
            state.is_command_due = True
            state.operator = ""
        return None
    if state.is_command_due:
        place = f"after `{state.operator}`" if state.operator else "where a command is expected"
        return f"`{token}` is {place}"
    state.is_command_due = True
    state.operator = token
    return None


def _word(state: _Shell, word: str, is_quoted: bool) -> str | None:
    if state.is_test:
        state.is_test = word != "]]"
        return None
    if state.is_pattern:
        if word == "esac" and not is_quoted:
            state.opened.pop()
            state.is_pattern = False
            state.is_command_due = False
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
        state.is_pattern = True
        state.operator = ""


def _keyword(state: _Shell, word: str) -> str | None:
    top = state.opened[-1] if state.opened else ""
    if word in ("((", "function", "select", "coproc"):
        raise _NotModelledError
    if word == "[[":
        state.is_test = True
        state.is_command_due = False
        state.operator = ""
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
        return f"`{word}` follows `{state.operator}`"
    state.opened.pop()
    is_closing = word in _OPENERS.values()
    if not is_closing:
        state.opened.append("if" if word == "elif" else word)
    state.is_command_due = not is_closing
    state.operator = ""
    return None


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
    start = at
    is_quoted = False
    while at < len(text):
        sign = text[at]
        if sign in "'\"":
            at = _behind_quote(text, at)
            is_quoted = True
        elif sign == "`":
            stop = text.find("`", at + 1)
            if stop < 0:
                raise _UnclosedError("`")
            at = stop + 1
            is_quoted = True
        elif text.startswith(("$(", "${", "<(", ">("), at):
            at = _behind_bracket(text, at + 1)
            is_quoted = True
        elif sign == "\\":
            at = at + 2
            is_quoted = True
        elif sign in " \t\r\n;|&()<>":
            break
        else:
            at += 1
    return max(min(at, len(text)), start + 1), is_quoted


def _behind_quote(text: str, at: int) -> int:
    quote = text[at]
    start = at
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
    opening = text[at]
    depth = 0
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
