"""Where in a YAML file does a mapping or a key stand? So that what is wrong is told with its line."""

from collections.abc import Hashable

import yaml

from paceline.core.errors import ConfigError, Problem

HINT = "see docs/guides/alerts.md"


class YamlDocument:
    """What a file says, and the line of each mapping, list and key of it."""

    def __init__(self, text: str, where: str) -> None:
        """ConfigError where it is no YAML."""
        self._where = where
        loader = _Loader(text)
        try:
            self.value: object = loader.get_single_data()
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            at = where if mark is None else f"{where}:{mark.line + 1}"
            what = getattr(error, "problem", None) or type(error).__name__
            raise ConfigError([Problem(f"this is no YAML: {what}", HINT, at)]) from error
        finally:
            loader.dispose()
        self._lines, self._keys = loader.lines, loader.keys
        self.problems = [
            Problem(f"{key} is given twice", "keep one of the two lines", f"{where}:{line}")
            for key, line in loader.twice
        ]

    def at(self, said: object, key: str | None = None) -> str:
        """`rules.yaml:12`; of what has no line of its own, the file."""
        line = self._lines.get(id(said))
        if key is not None:
            line = self._keys.get(id(said), {}).get(key, line)
        return self._where if line is None else f"{self._where}:{line}"


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        # By the identity of what was made, which lives as long as the file's value does.
        self.lines: dict[int, int] = {}
        self.keys: dict[int, dict[str, int]] = {}
        self.twice: list[tuple[str, int]] = []


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, object]:
    made = loader.construct_mapping(node, deep=True)
    loader.lines[id(made)] = node.start_mark.line + 1
    known: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in known:
            loader.twice.append((name, line))
        known[name] = line
    loader.keys[id(made)] = known
    return made


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list[object]:
    made = loader.construct_sequence(node, deep=True)
    loader.lines[id(made)] = node.start_mark.line + 1
    return made


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
