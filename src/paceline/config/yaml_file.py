"""Config files in YAML: settings with their lines, read as a tree of text, never as objects.

Scalars stay text and each key decides what its text means, so `events: off`
is not false and `lr: 1e-3` is a number: YAML's own guesses never apply.
"""

import yaml

from paceline.config.values import FileContent, Quoted, Raw, RawSetting
from paceline.core.errors import Problem
from paceline.core.yaml_lines import YamlSyntaxError, compose, location, repeated_keys, repeated_problem

_NULL = "tag:yaml.org,2002:null"
_HINT = "write one `key: value` per line, such as `num_workers: 4`"


def parse_yaml(text: str, name: str) -> FileContent:
    try:
        top = compose(text)
        if top is None:
            return FileContent()
        if not isinstance(top, yaml.MappingNode):
            problem = Problem("the file is not a mapping of keys", _HINT, location(top, name))
            return FileContent(problems=(problem,))
        return _entries(top, name)
    except YamlSyntaxError as error:
        problem = Problem(f"the file is not YAML: {error.reason}", _HINT, error.at(name))
        return FileContent(problems=(problem,))
    except RecursionError:
        return FileContent(problems=(Problem("the file is nested too deeply", _HINT, name),))


def _entries(top: yaml.MappingNode, name: str) -> FileContent:
    entries: list[RawSetting] = []
    problems: list[Problem] = []
    first_lines: dict[str, str] = {}
    for key_node, value_node in top.value:
        where = location(key_node, name)
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        if key in first_lines:
            message = f"{key} is given twice, first at {first_lines[key]}"
            problems.append(Problem(message, "keep one of the two lines", where))
            continue
        first_lines[key] = where
        if value_node.tag == _NULL:
            continue  # `steps:` without a value sets nothing
        if isinstance(value_node, yaml.MappingNode):
            problems += [repeated_problem(inner, node, name) for inner, node in repeated_keys(value_node)]
        raw = _raw(value_node, {})
        entries.append(RawSetting(key=key, raw=raw, where=where, parts=_lines(value_node, name)))
    return FileContent(entries=tuple(entries), problems=tuple(problems))


def _raw(node: yaml.Node, seen: dict[int, Raw]) -> Raw:
    # An alias is the same node again. Each is built once, or nine lines of aliases fill the memory.
    if id(node) not in seen:
        if isinstance(node, yaml.MappingNode):
            pairs = [(k, v) for k, v in node.value if v.tag != _NULL]  # nested null values set nothing either
            seen[id(node)] = {str(k.value): _raw(v, seen) for k, v in pairs}
        elif isinstance(node, yaml.SequenceNode):
            seen[id(node)] = [_raw(item, seen) for item in node.value]
        else:
            assert isinstance(node, yaml.ScalarNode), "YAML has mappings, sequences and scalars"
            seen[id(node)] = Quoted(node.value) if node.style in ("'", '"') else str(node.value)
    return seen[id(node)]


def _lines(node: yaml.Node, name: str) -> dict[str, str]:
    """Location of each item of a list or mapping: `[0]` or `.hidden`."""
    if isinstance(node, yaml.MappingNode):
        return {f".{k.value}": location(k, name) for k, _ in node.value}
    if isinstance(node, yaml.SequenceNode):
        return {f"[{i}]": location(item, name) for i, item in enumerate(node.value)}
    return {}
