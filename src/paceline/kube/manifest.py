"""What does a file of manifests say, and on which line? YAML to plain values, never to objects."""

import re
from dataclasses import dataclass, field

import yaml

from paceline.errors import Problem
from paceline.kube.plain_words import read_plain
from paceline.kube.schema import Path

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
        """Of the field, or of what it should be in."""
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
        return [], [Problem(f"the file is not YAML that can be read: {reason}", _HINT, name)]
    if not documents and not reading.problems:
        reading.problems.append(Problem("the file holds no manifest", _HINT, name))
    return documents, reading.problems


class _TooMuch(Exception):  # noqa: N818 - caught before anyone sees it
    pass


def _value(node: yaml.Node, path: Path, lines: dict[Path, int], reading: _Reading) -> object:
    reading.nodes += 1
    if reading.nodes > _MOST_NODES:
        raise _TooMuch("it is larger than any manifest")
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
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in found:
            what = f"{key} is given twice"
            reading.problems.append(Problem(what, "keep one of the two", f"{reading.name}:{line}"))
        lines[(*path, key)] = line
        found[key] = _value(value_node, (*path, key), lines, reading)
    return found


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
            read = read_plain(text) if node.style is None else None
            return text if read is None else read


def _integer(text: str) -> int:
    plain = text.replace("_", "")
    return int(plain, 8) if _OCTAL.fullmatch(plain) else int(plain, 0)
