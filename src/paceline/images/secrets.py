"""Which values must nobody see? Told by the name they are given, and hidden wherever lines are shown."""

import re

_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY(?:_ID)?|PRIVATE_KEY|CREDENTIALS?)(?:$|_)",
    re.I,
)
_HARMLESS = re.compile(r"(?:_FILE|_PATH|_DIR|_LENGTH)$|^MAX_TOKEN", re.I)
_ASSIGNED = re.compile(
    r"\b(?P<name>[A-Za-z_]\w*)(?P<sign>=|[ \t]+)(?=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+))"
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None and _HARMLESS.search(name) is None


def hidden(text: str) -> str:
    """The text with `***` for what follows a secret's name, and for user and password in an address."""
    parts, at = [], 0
    for found in _ASSIGNED.finditer(text):
        if found.start() >= at and is_secret_name(found["name"]):
            parts += [text[at : found.end()], "***"]
            at = found.end() + len(found["value"])
    return _IN_ADDRESS.sub("***", "".join([*parts, text[at:]]))
