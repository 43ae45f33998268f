"""Reader of manifest files: YAML to plain values with their lines, never to objects; and secrets in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from paceline.core.errors import Problem
from paceline.core.go_yaml import parse_plain_scalar
from paceline.core.redaction import secrets_in, tokens_in
from paceline.core.secret_names import is_reference, is_secret_name
from paceline.k8s.validate.schema import Finding, Path, advice

_MOST_NODES = 200_000  # nine lines of aliases would fill the memory
_HINT = "a manifest is a mapping with apiVersion, kind, metadata and spec"
_TAG = "tag:yaml.org,2002:"
_OCTAL = re.compile(r"[-+]?0[0-7]+")  # of files, such as defaultMode: 0755


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file."""

    value: object
    lines: dict[Path, int]

    def line(self, path: Path) -> int:
        """Line of the field, or of its parent if absent."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


@dataclass(slots=True)
class _Reading:
    name: str
    nodes: int = 0
    problems: list[Problem] = field(default_factory=list)


def read_documents(text: str, name: str) -> tuple[list[Document], list[Problem]]:
    reading = _Reading(name)
    documents: list[Document] = []
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if node is None or node.tag == f"{_TAG}null":
                continue  # nothing between two ---
            lines: dict[Path, int] = {}
            documents.append(Document(_value(node, (), lines, reading), lines))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        return [], [Problem(f"the file is not YAML: {error.problem}", _HINT, where)]
    except (yaml.YAMLError, RecursionError, _TooMuch) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return [], [Problem(f"the file is not readable YAML: {reason}", _HINT, name)]
    if not documents and not reading.problems:
        reading.problems.append(Problem("the file holds no manifest", _HINT, name))
    return documents, reading.problems


class _TooMuch(Exception):  # noqa: N818 - always caught internally
    pass


def _value(node: yaml.Node, path: Path, lines: dict[Path, int], reading: _Reading) -> object:
    reading.nodes += 1
    if reading.nodes > _MOST_NODES:
        raise _TooMuch("it is too large for a manifest")
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines, reading)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, number), lines, reading) for number, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode), "YAML has mappings, sequences and scalars"
    return _scalar(node)


def _mapping(
    node: yaml.MappingNode, path: Path, lines: dict[Path, int], reading: _Reading
) -> dict[str, object]:
    values: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in values:
            message = f"{key} is given twice"
            reading.problems.append(Problem(message, "keep one of the two", f"{reading.name}:{line}"))
        lines[(*path, key)] = line
        values[key] = _value(value_node, (*path, key), lines, reading)
    return values


def _scalar(node: yaml.ScalarNode) -> object:
    text = str(node.value)
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() in ("yes", "true", "on")
        case "int" | "float" as kind:
            try:
                return _integer(text) if kind == "int" else float(text.replace("_", ""))
            except ValueError:  # such as 12:30, which Kubernetes does not take for a number
                return text
        case _:
            read = parse_plain_scalar(text) if node.style is None else None
            return text if read is None else read


def _integer(text: str) -> int:
    plain = text.replace("_", "")
    return int(plain, 8) if _OCTAL.fullmatch(plain) else int(plain, 0)


# A finding names the location and never repeats the value. `paceline.core.redaction` defines secrets.

_FILES = (".yaml", ".yml", ".toml", ".json", ".env", ".ini", ".conf", ".properties")
_SECRETS_HINT = "keep it in a Secret of the cluster, and refer to it by valueFrom.secretKeyRef (--secret-env)"
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
                yield Finding(path, "it contains a secret in plain text", _SECRETS_HINT)
            for number, item in enumerate(value):
                yield from find_secrets(item, (*path, number))
        case str():
            yield from _shaped(value, path)


def _shaped(text: str, path: Path) -> Iterator[Finding]:
    tokens = tokens_in(text)
    if tokens:
        yield Finding(path, f"it holds {tokens[0].kind}", _SECRETS_HINT)
        return
    is_file = path[-2:-1] == ("data",) and str(path[-1]).endswith(_FILES)
    is_command = any(step in _TEXTS for step in path[-2:])
    if (is_command or is_file) and secrets_in(text):
        yield Finding(path, "it contains a secret in plain text", _SECRETS_HINT)


def _named(value: dict[str, object], path: Path) -> Iterator[Finding]:
    """`{name: HF_TOKEN, value: …}` of a variable, and any `password: …`."""
    name = value.get("name")
    secret = value.get("value")
    if isinstance(name, str) and _is_given(name, secret):
        yield Finding((*path, "value"), f"the value of {name} is in plain text", _SECRETS_HINT)
    for key, inner in value.items():
        if key not in _NOT_VALUES and _is_given(str(key), inner):
            yield Finding((*path, key), f"the value of {key} is in plain text", _SECRETS_HINT)
    if set(value) == {"value"} and path and is_secret_name(str(path[-1])):  # redisPassword: {value: …}
        yield Finding((*path, "value"), f"the value of {path[-1]} is in plain text", _SECRETS_HINT)


def _is_given(name: str, value: object) -> bool:
    """Whether it is a literal, not a reference that is expanded elsewhere: $NAME, ${NAME}, $(NAME)."""
    return isinstance(value, str) and is_secret_name(name) and not is_reference(value)
