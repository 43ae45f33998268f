"""What does a YAML file say, line by line? Read as a tree of text, never as objects.

Scalars stay text and each key decides what its text means, so `events: off`
is not false and `lr: 1e-3` is a number: YAML's own guesses never apply.
"""

import yaml

from paceline.config.values import FileContent, Quoted, Raw, RawSetting
from paceline.core.errors import Problem

_NULL = "tag:yaml.org,2002:null"
_HINT = "write one `key: value` per line, such as `num_workers: 4`"


def parse_yaml(text: str, name: str) -> FileContent:
    try:
        top = yaml.compose(text, Loader=yaml.SafeLoader)
        if top is None:
            return FileContent()
        if not isinstance(top, yaml.MappingNode):
            problem = Problem("the file is not a mapping of keys", _HINT, _at(top, name))
            return FileContent(problems=(problem,))
        return _entries(top, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        return FileContent(problems=(Problem(f"the file is not YAML: {error.problem}", _HINT, where),))
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        return FileContent(problems=(Problem(f"the file is not YAML: {reason}", _HINT, name),))
    except RecursionError:
        return FileContent(problems=(Problem("the file is nested too deeply", _HINT, name),))


def _entries(top: yaml.MappingNode, name: str) -> FileContent:
    entries: list[RawSetting] = []
    problems: list[Problem] = []
    first_lines: dict[str, str] = {}
    for key_node, value_node in top.value:
        where = _at(key_node, name)
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        if key in first_lines:
            what = f"{key} is given twice, first at {first_lines[key]}"
            problems.append(Problem(what, "keep one of the two lines", where))
            continue
        first_lines[key] = where
        if value_node.tag == _NULL:
            continue  # `steps:` with nothing behind it says nothing
        problems += _twice_inside(value_node, name)
        raw = _raw(value_node, {})
        entries.append(RawSetting(key=key, raw=raw, where=where, parts=_lines(value_node, name)))
    return FileContent(entries=tuple(entries), problems=tuple(problems))


def _raw(node: yaml.Node, seen: dict[int, Raw]) -> Raw:
    # An alias is the same node again. Each is built once, or nine lines of aliases fill the memory.
    if id(node) not in seen:
        if isinstance(node, yaml.MappingNode):
            said = [(k, v) for k, v in node.value if v.tag != _NULL]  # inside, too, null says nothing
            seen[id(node)] = {str(k.value): _raw(v, seen) for k, v in said}
        elif isinstance(node, yaml.SequenceNode):
            seen[id(node)] = [_raw(item, seen) for item in node.value]
        else:
            assert isinstance(node, yaml.ScalarNode), "YAML has mappings, sequences and scalars"
            seen[id(node)] = Quoted(node.value) if node.style in ("'", '"') else str(node.value)
    return seen[id(node)]


def _lines(node: yaml.Node, name: str) -> dict[str, str]:
    """Where each item of a list or mapping is: `[0]` or `.hidden`."""
    if isinstance(node, yaml.MappingNode):
        return {f".{k.value}": _at(k, name) for k, _ in node.value}
    if isinstance(node, yaml.SequenceNode):
        return {f"[{i}]": _at(item, name) for i, item in enumerate(node.value)}
    return {}


def _twice_inside(node: yaml.Node, name: str) -> list[Problem]:
    if not isinstance(node, yaml.MappingNode):
        return []
    names = [str(k.value) for k, _ in node.value]
    return [
        Problem(f"{key} is given twice", "keep one of the two lines", _at(k, name))
        for i, ((k, _), key) in enumerate(zip(node.value, names, strict=True))
        if key in names[:i]
    ]


def _at(node: yaml.Node, name: str) -> str:
    return f"{name}:{node.start_mark.line + 1}"
