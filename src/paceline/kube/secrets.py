"""Findings for secrets in clear text in a manifest, by the shape of a value and by the name it is given.

A finding names the place and never repeats the value. What a secret looks like is in `paceline.redaction`.
"""

from collections.abc import Iterator

from paceline.kube.schema import Finding, Path, advice
from paceline.redaction import is_reference, is_secret_name, secrets_in, tokens_in

_FILES = (".yaml", ".yml", ".toml", ".json", ".env", ".ini", ".conf", ".properties")
_HINT = "keep it in a Secret of the cluster, and refer to it by valueFrom.secretKeyRef (--secret-env)"
_NOT_VALUES = ("secretName", "automountServiceAccountToken", "enableK8sTokenAuth")
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
            if path and path[-1] in ("command", "args") and secrets_in(" ".join(map(str, value))):
                yield Finding(path, "it says a secret in clear text", _HINT)
            for number, item in enumerate(value):
                yield from find_secrets(item, (*path, number))
        case str():
            yield from _shaped(value, path)


def _shaped(text: str, path: Path) -> Iterator[Finding]:
    tokens = tokens_in(text)
    if tokens:
        yield Finding(path, f"it holds {tokens[0].kind}", _HINT)
        return
    is_file = path[-2:-1] == ("data",) and str(path[-1]).endswith(_FILES)
    is_command = any(step in _TEXTS for step in path[-2:])
    if (is_command or is_file) and secrets_in(text):
        yield Finding(path, "it says a secret in clear text", _HINT)


def _named(value: dict[str, object], path: Path) -> Iterator[Finding]:
    """`{name: HF_TOKEN, value: …}` of a variable, and any `password: …`."""
    name, said = value.get("name"), value.get("value")
    if isinstance(name, str) and _is_given(name, said):
        yield Finding((*path, "value"), f"the value of {name} stands here in clear text", _HINT)
    for key, inner in value.items():
        if key not in _NOT_VALUES and _is_given(str(key), inner):
            yield Finding((*path, key), f"the value of {key} stands here in clear text", _HINT)
    if set(value) == {"value"} and path and is_secret_name(str(path[-1])):  # redisPassword: {value: …}
        yield Finding((*path, "value"), f"the value of {path[-1]} stands here in clear text", _HINT)


def _is_given(name: str, value: object) -> bool:
    """Not a variable that is filled in elsewhere: $NAME, ${NAME}, $(NAME)."""
    return isinstance(value, str) and is_secret_name(name) and not is_reference(value)
