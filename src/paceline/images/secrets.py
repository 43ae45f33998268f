"""Which values must nobody see? Told by the name they are given, and hidden wherever lines are shown."""

import re

_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY(?:_ID)?|PRIVATE_KEY|CREDENTIALS?)(?:$|_)",
    re.I,
)
# SECRET_NAME, TOKEN_LIMIT, API_KEY_HEADER tell of a secret; they are none.
_HARMLESS = re.compile(
    r"_(?:FILE|PATH|DIR|LENGTH|NAME|ARN|TYPE|LIMIT|COUNT|SIZE|HEADER|TTL)$|^MAX_TOKEN", re.I
)
_SWITCH = re.compile(r"[01]|true|false|yes|no|on|off", re.I)
_VALUE = r"(?=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+))"
# NAME=value anywhere; `ENV NAME value`, as Docker still reads it, and `--password value`.
_ASSIGNED = (
    re.compile(r"\b(?P<name>[A-Za-z_]\w*)=" + _VALUE),
    re.compile(r"(?:\bENV[ \t]+|--)(?P<name>[A-Za-z_]\w*)[ \t]+" + _VALUE, re.I),
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")


def is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None and _HARMLESS.search(name) is None


def is_switch(value: str) -> bool:
    """HF_HUB_DISABLE_IMPLICIT_TOKEN=1 hides nothing."""
    return _SWITCH.fullmatch(value) is not None


def hidden(text: str) -> str:
    """The text with `***` for what follows a secret's name, and for user and password in an address."""
    for regex in _ASSIGNED:
        parts, at = [], 0
        for found in regex.finditer(text):
            if found.start() >= at and is_secret_name(found["name"]):
                parts += [text[at : found.end()], "***"]
                at = found.end() + len(found["value"])
        text = "".join([*parts, text[at:]])
    return _IN_ADDRESS.sub("***", text)
