"""Config files in TOML: settings with their lines.

tomllib gives values without lines, so the lines are searched for in the text;
at worst a problem names the file's line of a key of the same name.
"""

import re
import tomllib

from paceline.config.values import FileContent, Quoted, Raw, RawSetting
from paceline.core.errors import Problem

_HINT = "write one `key = value` per line, such as `num_workers = 4`"
_AT = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_TWICE = ("Cannot overwrite a value", "Cannot declare")


def parse_toml(text: str, name: str) -> FileContent:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return FileContent(problems=(_syntax_problem(str(error), text, name),))
    except RecursionError:
        return FileContent(problems=(Problem("the file is nested too deeply", _HINT, name),))
    lines = text.splitlines()
    entries = []
    for key, value in document.items():
        line = _line_of(key, lines) or 1
        raw = _raw(value)
        parts = {}
        if isinstance(raw, dict):
            parts = {f".{k}": f"{name}:{_line_of(k, lines, after=line - 1) or line}" for k in raw}
        entries.append(RawSetting(key=key, raw=raw, where=f"{name}:{line}", parts=parts))
    return FileContent(entries=tuple(entries))


def _syntax_problem(message: str, text: str, name: str) -> Problem:
    match = _AT.search(message)
    reason = _AT.sub("", message)
    last = max(1, len(text.splitlines()))
    line = int(match[1]) if match and match[1] else last
    if reason.startswith(_TWICE):
        return Problem("a key or table is given twice", "keep one of the two", f"{name}:{line}")
    return Problem(f"the file is not TOML: {reason}", _HINT, f"{name}:{line}")


def _line_of(key: str, lines: list[str], after: int = 0) -> int | None:
    quoted = re.escape(key)
    start = rf"""\s*(?:\[+\s*)?["']?{quoted}["']?\s*[=.\]]"""
    inline = rf"""[{{,]\s*["']?{quoted}["']?\s*="""
    for number, line in enumerate(lines[after:], start=after + 1):
        if re.match(start, line) or (after and re.search(inline, line)):
            return number
    return None


def _raw(value: object) -> Raw:
    match value:
        case bool() | int() | float():
            return value
        case str():
            return Quoted(value)
        case list():
            return [_raw(item) for item in value]
        case dict():
            return {str(k): _raw(v) for k, v in value.items()}
        case _:
            return str(value)  # TOML's dates and times
