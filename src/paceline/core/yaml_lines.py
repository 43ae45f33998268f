"""YAML with line numbers: syntax errors, repeated keys and values, each with the line it stands on.

YamlDocument gives a file's values as YAML's own rules make them, and the line of every mapping, list
and key. Readers with rules of their own for scalars (config/yaml_file.py) take the composed nodes.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import yaml

from paceline.core.errors import ConfigError, Problem

HINT = "see docs/guides/monitoring.md"


class YamlSyntaxError(Exception):
    """The text is no YAML; `line` is None where the parser names none."""

    def __init__(self, reason: str, line: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line

    def at(self, where: str) -> str:
        return where if self.line is None else f"{where}:{self.line}"


def compose(text: str) -> yaml.Node | None:
    """The file's top node; None where it is empty. YamlSyntaxError; RecursionError."""
    with _syntax_errors():
        return yaml.compose(text, Loader=yaml.SafeLoader)


def location(node: yaml.Node, where: str) -> str:
    """`rules.yaml:12`."""
    return f"{where}:{_line(node)}"


def repeated_keys(node: yaml.MappingNode) -> list[tuple[str, yaml.Node]]:
    """Every key that the mapping has had before."""
    seen: set[str] = set()
    repeated = []
    for key, _ in node.value:
        name = str(key.value)
        if name in seen:
            repeated.append((name, key))
        seen.add(name)
    return repeated


def repeated_problem(name: str, key: yaml.Node, where: str) -> Problem:
    return Problem(f"{name} is given twice", "keep one of the two lines", location(key, where))


class YamlDocument:
    """The values of a file, and the line of each of its mappings, lists and keys."""

    def __init__(self, text: str, where: str) -> None:
        """Parse the text; ConfigError if it is not YAML."""
        self._where = where
        try:
            with _syntax_errors():
                loader = _Loader(text)  # refuses characters that YAML does not allow
                self.value: object = loader.get_single_data()
        except YamlSyntaxError as error:
            message = f"the file is not YAML: {error.reason}"
            raise ConfigError([Problem(message, HINT, error.at(where))]) from error
        except RecursionError as error:
            raise ConfigError([Problem("the file is not YAML: RecursionError", HINT, where)]) from error
        loader.dispose()
        self._lines = loader.lines
        self._keys = loader.keys
        self.problems = [repeated_problem(name, key, where) for name, key in loader.repeated]

    def at(self, value: object, key: str | None = None) -> str:
        """`rules.yaml:12`; the file alone for a value without its own line."""
        line = self._lines.get(id(value))
        if key is not None:
            line = self._keys.get(id(value), {}).get(key, line)
        return self._where if line is None else f"{self._where}:{line}"


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        # By identity of the constructed value, which exists as long as the document's value does.
        self.lines: dict[int, int] = {}
        self.keys: dict[int, dict[str, int]] = {}
        self.repeated: list[tuple[str, yaml.Node]] = []


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, object]:
    mapping = loader.construct_mapping(node, deep=True)
    loader.lines[id(mapping)] = _line(node)
    loader.keys[id(mapping)] = {str(key.value): _line(key) for key, _ in node.value}
    loader.repeated += repeated_keys(node)
    return mapping


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list[object]:
    sequence = loader.construct_sequence(node, deep=True)
    loader.lines[id(sequence)] = _line(node)
    return sequence


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@contextmanager
def _syntax_errors() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise YamlSyntaxError(str(error.problem or error.context), line) from error
    except yaml.YAMLError as error:
        raise YamlSyntaxError(str(error).splitlines()[0], None) from error
