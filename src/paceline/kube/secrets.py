"""Does a manifest hold what only a Secret should? By the shape of a value, and by the name it is given.

What is found is never shown again: a finding names the place.
"""

import re
from collections.abc import Iterator

from paceline.kube.schema import Finding, Path, advice

_SHAPES = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    "an AWS access key": re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "an API key": re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a signed token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"),
    "a password inside of an address": re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@]+:[^/\s:@$]+@"),
}
_WORDS = r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)"
_NAME = re.compile(rf"(?:^|.*[_.-]){_WORDS}(?:_ID)?$", re.IGNORECASE)
# NAME=value, NAME: value or --name value within one text, such as a command or runtimeEnvYAML
_SAID = re.compile(rf"[A-Za-z0-9_-]*{_WORDS}(?:\s*[=:]\s*|\s+)(?!\$)[\"']?[^\s\"'$]", re.IGNORECASE)
# The same, up to its value. Prose also speaks of tokens: behind a colon, a plain word is no secret.
_GIVEN = r"\s*(?:=|:(?=[\"'\s]*(?:[^\s\"']*[0-9]|[^\s\"']{16})))\s*"
# It begins where a word begins: else a long line of letters is read again from each of them.
_VALUE = re.compile(
    rf"((?<![A-Za-z0-9_-])[A-Za-z0-9_-]*{_WORDS}[\"']?{_GIVEN}(?!\$)[\"']?)[^\s\"',;$]+", re.IGNORECASE
)
# --name VALUE in a list of words, and NAME: value in a file of settings
_SAID_IN_WORDS = re.compile(rf"(?:^|\s)--?[A-Za-z0-9_-]*{_WORDS}\s+(?![-$])\S", re.IGNORECASE)
_SAID_IN_FILE = re.compile(
    rf"[A-Za-z0-9_-]*{_WORDS}[\"']?\s*[=:]\s*[\"']?[^\s\"'$#<{{\[]{{6}}", re.IGNORECASE
)
_FILES = (".yaml", ".yml", ".toml", ".json", ".env", ".ini", ".conf", ".properties")
_HINT = "keep it in a Secret of the cluster, and refer to it by valueFrom.secretKeyRef (--secret-env)"
_NOT_VALUES = ("secretName", "automountServiceAccountToken", "enableK8sTokenAuth")
_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|\([A-Za-z_]\w*\))")
_TEXTS = ("entrypoint", "runtimeEnvYAML", "command", "args", "entrypointResources")


def find_secrets(value: object, path: Path = ()) -> Iterator[Finding]:
    match value:
        case dict():
            yield from _named(value, path)
            for name, inner in value.items():
                inside = find_secrets(inner, (*path, name))
                # A file with it is not the place for a secret, but the object is.
                is_its_place = value.get("kind") == "Secret" and name in ("data", "stringData")
                yield from advice(inside) if is_its_place else inside
        case list():
            if path and path[-1] in ("command", "args") and _SAID_IN_WORDS.search(" ".join(map(str, value))):
                yield Finding(path, "it says a secret in clear text", _HINT)
            for number, item in enumerate(value):
                yield from find_secrets(item, (*path, number))
        case str():
            yield from _shaped(value, path)


def masked(text: str) -> str:
    """The text with every secret in it hidden, for messages that quote what others wrote."""
    return _VALUE.sub(r"\1***", hidden(text))


def hidden(text: str) -> str:
    """The text without what looks like a secret by itself: for messages that name fields and flags."""
    for shape in _SHAPES.values():
        text = shape.sub("***", text)
    return text


def _shaped(text: str, path: Path) -> Iterator[Finding]:
    for what, shape in _SHAPES.items():
        if shape.search(text):
            yield Finding(path, f"it holds {what}", _HINT)
            return
    is_file = path[-2:-1] == ("data",) and str(path[-1]).endswith(_FILES)
    is_said = any(step in _TEXTS for step in path[-2:]) and _SAID.search(text)
    if is_said or (is_file and _SAID_IN_FILE.search(text)):
        yield Finding(path, "it says a secret in clear text", _HINT)


def _named(value: dict[str, object], path: Path) -> Iterator[Finding]:
    """`{name: HF_TOKEN, value: …}` of a variable, and any `password: …`."""
    name, said = value.get("name"), value.get("value")
    if isinstance(name, str) and _is_literal(said) and _NAME.match(name):
        yield Finding((*path, "value"), f"the value of {name} stands here in clear text", _HINT)
    for key, inner in value.items():
        if _is_literal(inner) and key not in _NOT_VALUES and _NAME.match(str(key)):
            yield Finding((*path, key), f"the value of {key} stands here in clear text", _HINT)
    if set(value) == {"value"} and path and _NAME.match(_snake(str(path[-1]))):  # redisPassword: {value: …}
        yield Finding((*path, "value"), f"the value of {path[-1]} stands here in clear text", _HINT)


def _is_literal(said: object) -> bool:
    """Not a variable that is filled in elsewhere: $NAME, ${NAME}, $(NAME)."""
    return isinstance(said, str) and said != "" and not _REFERENCE.fullmatch(said)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
