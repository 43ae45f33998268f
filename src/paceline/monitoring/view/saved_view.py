"""The view of a long run, saved next to its log: a reader starts there instead of at the first line.

`events.index.json.gz` holds the RunView at an offset of the log. Reading on from that offset gives
the view that reading the whole log gives. What no snapshot shows (single steps, most series) is left out.

The file is a cache. It is written whole or not at all, names the version of its format, the plan and the
rules, and is ignored if anything of that differs or cannot be read. It holds plain values and objects of
the classes below, and nothing else is ever constructed from it.
"""

import base64
import gzip
import hashlib
import json
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from paceline.core.disk import write_durably
from paceline.events.read import Torn
from paceline.events.schema import CoordinatorRow, CustomRow, GpuRow, HostRow, LinkRow, Timings
from paceline.events.summary import Tail
from paceline.monitoring.alerts.engine import Alert, AlertEngine, Memory, Points, State
from paceline.monitoring.alerts.rules import Rule, Rules
from paceline.monitoring.metrics.series import Ring, Series, SeriesTable
from paceline.monitoring.view.loss import LossRecord
from paceline.monitoring.view.machines import CoordinatorTrack, Machines, NodeTimings
from paceline.monitoring.view.recoveries import Change, Generation, Generations, Restarts
from paceline.monitoring.view.run_track import RunTrack
from paceline.monitoring.view.run_view import RunView
from paceline.monitoring.view.worker_track import LANE_ROWS, Histogram, Lane, Second, WorkerTrack
from paceline.plan.codec import plan_hash
from paceline.plan.plan import Plan

NAME = "events.index.json.gz"
FORMAT = 1
_ROWS = (CoordinatorRow, CustomRow, GpuRow, HostRow, LinkRow)
_OBJECTS = (
    *(Alert, AlertEngine, Change, CoordinatorTrack, Generation, Generations, Histogram, LossRecord),
    *(Machines, Memory, NodeTimings, Points, Ring, RunTrack, Second, Series, SeriesTable, Restarts),
    *(Tail, Timings, WorkerTrack),
)
# Attributes that are not saved, and their values after loading.
_NOT_SAVED: dict[type, dict[str, Callable[[], object]]] = {
    RunTrack: {"batches": deque, "newest_rows": list, "_batched": int},
    WorkerTrack: {"lane": lambda: Lane(LANE_ROWS)},
}
_BY_NAME: dict[str, type] = {kind.__name__: kind for kind in (*_ROWS, *_OBJECTS)}
Made = TypeVar("Made")
UNUSABLE = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass(frozen=True, slots=True)
class Saved:
    view: RunView
    offset: int  # offset in the log after the last line of the view
    lines: int
    torn: Torn


def save(run_dir: Path, saved: Saved) -> int:
    """Write the file durably; return its size."""
    plan = saved.view.track.plan
    writer = _Writer(plan, saved.view.rules)
    content = {
        "format": _format(),
        "plan": plan_hash(plan),
        "rules": _digest(saved.view.rules),
        "offset": saved.offset,
        "lines": saved.lines,
        "torn": [saved.torn.count, saved.torn.first],
        "parts": {name: writer.node(part) for name, part in saved.view.parts().items()},
    }
    data = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
    write_durably(run_dir / NAME, [data], mode=0o644)
    return len(data)


def load(run_dir: Path, plan: Plan, rules: Rules) -> Saved | None:
    """None: there is no file, or it is unusable."""
    try:
        content = json.loads(gzip.decompress((run_dir / NAME).read_bytes()))
        if (content["format"], content["plan"], content["rules"]) != (
            _format(),
            plan_hash(plan),
            _digest(rules),
        ):
            return None
        reader = _Reader(plan, rules)
        view = RunView(plan, rules)
        view.restore({str(name): reader.value(node) for name, node in content["parts"].items()})
        count, first = content["torn"]
        return Saved(view, int(content["offset"]), int(content["lines"]), Torn(int(count), list(first)))
    except UNUSABLE:
        return None


def _digest(rules: Rules) -> str:
    return hashlib.sha256(repr(rules.rules).encode()).hexdigest()[:16]


def _format() -> str:
    """A version that differs for each change of a saved class."""
    fields = [(kind.__name__, sorted(getattr(kind, "__annotations__", {}))) for kind in _BY_NAME.values()]
    return f"{FORMAT}-{hashlib.sha256(repr(fields).encode()).hexdigest()[:12]}"


def _names(value: object) -> list[str]:
    slots = getattr(type(value), "__slots__", None)
    return list(vars(value)) if slots is None else list(slots)


class _Writer:
    """Values as JSON. A shared object is written once, so that it stays one object."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self._given = {id(plan): "plan", id(rules): "rules"}
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # keeps the objects alive, so that their ids stay unique

    def node(self, value: object) -> object:
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
            return value
        if id(value) in self._given:
            return ["given", self._given[id(value)]]
        match value:
            case State():
                return ["state", value.value]
            case Rule():
                return ["rule", value.name]
            case tuple():
                tag = type(value).__name__ if type(value) in _ROWS else ""
                return ["tuple", tag, [self.node(item) for item in value]]
        if id(value) in self._numbers:
            return ["again", self._numbers[id(value)]]
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return self._container(value)

    def _container(self, value: object) -> object:
        match value:
            case list():
                return ["list", [self.node(item) for item in value]]
            case set():
                return ["set", [self.node(item) for item in sorted(value)]]
            case deque():
                return ["deque", value.maxlen, [self.node(item) for item in value]]
            case array():
                return ["array", value.typecode, base64.b64encode(value.tobytes()).decode()]
            case dict():
                tag = "counter" if isinstance(value, Counter) else "dict"
                return [tag, [[self.node(key), self.node(item)] for key, item in value.items()]]
        assert type(value) in _OBJECTS, f"{type(value).__name__} is not a part of a saved view"
        left_out = _NOT_SAVED.get(type(value), {})
        fields = {n: self.node(getattr(value, n)) for n in _names(value) if n not in left_out}
        return ["object", type(value).__name__, fields]


class _Reader:
    """The inverse. Containers are numbered in the order in which they begin."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self._given: Mapping[str, object] = {"plan": plan, "rules": rules}
        self._rules = rules
        self._made: list[object] = []

    def value(self, node: object) -> object:
        if not isinstance(node, list):
            return node
        match node:
            case ["given", str(name)]:
                return self._given[name]
            case ["state", str(name)]:
                return State(name)
            case ["rule", str(name)]:
                return _known(self._rules.named(name))
            case ["tuple", str(tag), list(items)]:
                values = [self.value(item) for item in items]
                return _BY_NAME[tag](*values) if tag else tuple(values)
            case ["again", int(number)]:
                return self._made[number]
        return self._container(node)

    def _container(self, node: list[object]) -> object:
        match node:
            case ["list", list(items)]:
                container = self._new(list[object]())
                container.extend(self.value(item) for item in items)
                return container
            case ["set", list(items)]:
                members = self._new(set[object]())
                members.update(self.value(item) for item in items)
                return members
            case ["deque", maxlen, list(items)] if maxlen is None or isinstance(maxlen, int):
                ring = self._new(deque[object](maxlen=maxlen))
                ring.extend(self.value(item) for item in items)
                return ring
            case ["array", str(typecode), str(data)]:
                numbers = self._new(array(typecode))
                numbers.frombytes(base64.b64decode(data))
                return numbers
            case ["dict" | "counter" as tag, list(items)]:
                mapping: dict[object, object] = {}
                if tag == "counter":
                    mapping = Counter()  # type: ignore[assignment]  # its counts are what is put into it
                self._made.append(mapping)
                for key, item in items:
                    mapping[self.value(key)] = self.value(item)
                return mapping
            case ["object", str(name), dict(fields)]:
                return self._object(_BY_NAME[name], fields)
        raise ValueError(f"{node[:1]} is not a part of a saved view")

    def _object(self, kind: type, fields: Mapping[str, object]) -> object:
        instance: object = self._new(object.__new__(kind))
        for name, node in fields.items():
            object.__setattr__(instance, name, self.value(node))
        for name, fresh in _NOT_SAVED.get(kind, {}).items():
            object.__setattr__(instance, name, fresh())
        return instance

    def _new(self, value: Made) -> Made:
        self._made.append(value)
        return value


def _known(rule: Rule | None) -> Rule:
    if rule is None:
        raise LookupError("the rule no longer exists")
    return rule
