"""How is a file of alert rules read? Every key is known or refused, and all problems are told at once."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import yaml

from paceline.errors import ConfigError, Problem
from paceline.watch.catalogue import BY_NAME
from paceline.watch.rules import (
    Compare,
    Condition,
    Inhibition,
    NotifierKind,
    NotifierSetting,
    Reading,
    Reduce,
    Rule,
    Rules,
    Severity,
)
from paceline.watch.sample import labels_of

COMPONENTS = ("progress", "workers", "coordinator", "resources", "freshness")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RULE_KEYS = {
    "name", "severity", "all", "any", "by", "for", "keep_firing_for", "clear_when", "component",
    "summary", "description",
}  # fmt: skip
_READING_KEYS = {"metric", "where", "reduce", "window", "quantile", "ahead"}
_NOTIFIER_KEYS = {"name", "kind", "min_severity", "most_per_minute", "retries", "timeout", "options"}
_NEEDS = {  # option of a notifier that it cannot do without
    NotifierKind.LOG: ("path",),
    NotifierKind.WEBHOOK: ("url",),
    NotifierKind.COMMAND: ("command",),
    NotifierKind.SMTP: ("host", "from", "to"),
    NotifierKind.ALERTMANAGER: ("url",),
}


def default_rules() -> Rules:
    text = resources.files("paceline.watch").joinpath("default_rules.yaml").read_text(encoding="utf-8")
    return read_rules(text, "default_rules.yaml")


def load_rules(path: Path) -> Rules:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = Problem(f"cannot read the rules: {error.strerror}", "name a YAML file of rules", str(path))
        raise ConfigError([problem]) from error
    return read_rules(text, str(path))


def read_rules(text: str, where: str) -> Rules:
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            [Problem(f"this is no YAML: {error}", "see docs/guides/alerts.md", where)]
        ) from error
    reader = _Reader(where)
    found = reader.rules(said)
    if reader.problems:
        raise ConfigError(reader.problems)
    return found


def seconds(value: object) -> float | None:
    """`5m` and the like; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _UNITS_S[found[2]] if found else None


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[Problem] = []

    def rules(self, said: object) -> Rules:
        table = self._mapping(
            said, "the file", {"version", "defaults", "rules", "inhibit", "notifiers", "repeat"}
        )
        base = default_rules() if table.get("defaults") is True else Rules(rules=())
        rules = [self._rule(one, i) for i, one in enumerate(_list(table.get("rules")))]
        named = {rule.name: rule for rule in (*base.rules, *(r for r in rules if r is not None))}
        for name in {
            r.name for r in rules if r is not None and [x.name for x in rules if x].count(r.name) > 1
        }:
            self._problem(f"there are two rules {name}", "give each its own name")
        inhibitions = [self._inhibition(one) for one in _list(table.get("inhibit"))]
        notifiers = [self._notifier(one, i) for i, one in enumerate(_list(table.get("notifiers")))]
        return Rules(
            rules=tuple(named.values()),
            inhibitions=(*base.inhibitions, *(one for one in inhibitions if one is not None)),
            notifiers=tuple(one for one in notifiers if one is not None),
            repeat_s=self._seconds(table, "repeat", 3600.0, "the file"),
        )

    def _rule(self, said: object, index: int) -> Rule | None:
        table = self._mapping(said, f"rule {index + 1}", _RULE_KEYS)
        name = str(table.get("name", ""))
        place = f"rule {name or index + 1}"
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            self._problem(
                f"{place}: name is {name!r}", "call it by letters and digits, such as LossDiverging"
            )
            return None
        kinds = [key for key in ("all", "any") if key in table]
        if len(kinds) != 1 or not _list(table[kinds[0]]):
            self._problem(
                f"{place} needs one of all and any, with conditions", "all: [{metric: …, above: 1}]"
            )
            return None
        conditions = [self._condition(one, place) for one in _list(table[kinds[0]])]
        component = str(table.get("component", "progress"))
        if component not in COMPONENTS:
            self._problem(f"{place}: component is {component!r}", f"use one of {', '.join(COMPONENTS)}")
        clear = table.get("clear_when")
        return Rule(
            name=name,
            severity=self._severity(table.get("severity", "warning"), place),
            conditions=tuple(c for c in conditions if c is not None),
            is_any=kinds[0] == "any",
            by=tuple(map(str, _list(table.get("by", ["run"])))),
            hold_s=self._seconds(table, "for", 0.0, place),
            keep_firing_s=self._seconds(table, "keep_firing_for", 0.0, place),
            clear_when=None if clear is None else self._condition(clear, place),
            component=component,
            summary=str(table.get("summary", name)),
            description=str(table.get("description", "")),
        )

    def _condition(self, said: object, place: str) -> Condition | None:
        compares = {c.value for c in Compare}
        table = self._mapping(said, place, _READING_KEYS | compares)
        chosen = [key for key in table if key in compares]
        left = self._reading(table, place)
        if left is None:
            return None
        if left.reduce is Reduce.ABSENT and not chosen:
            return Condition(left=left, compare=Compare.EQUALS, limit=1.0)
        if len(chosen) != 1:
            self._problem(f"{place}: a condition needs one of {', '.join(sorted(compares))}", "above: 0.9")
            return None
        limit = table[chosen[0]]
        if isinstance(limit, dict):
            times = limit.get("times", 1.0)
            right = self._reading({k: v for k, v in limit.items() if k != "times"}, place)
            if right is None or not isinstance(times, int | float):
                return None
            return Condition(left=left, compare=Compare(chosen[0]), limit=right, times=float(times))
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            self._problem(
                f"{place}: {chosen[0]} is {limit!r}, but it must be a number or a metric", "above: 0.9"
            )
            return None
        return Condition(left=left, compare=Compare(chosen[0]), limit=float(limit))

    def _reading(self, said: Mapping[str, object], place: str) -> Reading | None:
        metric = str(said.get("metric", ""))
        if metric not in BY_NAME:
            self._problem(
                f"{place}: there is no metric {metric!r}", "docs/reference/metrics.md lists them all"
            )
            return None
        where = said.get("where", {})
        reduce = str(said.get("reduce", "last"))
        quantile = said.get("quantile", 0.0)
        if reduce not in {r.value for r in Reduce} or not isinstance(where, dict):
            self._problem(f"{place}: reduce is {reduce!r}", f"use one of {', '.join(Reduce)}")
            return None
        window_s = self._seconds(said, "window", 0.0, place)
        if window_s == 0 and Reduce(reduce) not in (Reduce.LAST, Reduce.AGE, Reduce.ABSENT):
            self._problem(f"{place}: {reduce} of {metric} needs a window", "window: 5m")
        return Reading(
            metric=metric,
            where=labels_of(where),
            reduce=Reduce(reduce),
            window_s=window_s,
            quantile=float(quantile) if isinstance(quantile, int | float) else 0.0,
            ahead_s=self._seconds(said, "ahead", 0.0, place),
        )

    def _inhibition(self, said: object) -> Inhibition | None:
        table = self._mapping(said, "inhibit", {"when", "mutes", "equal"})
        if not table.get("when") or not table.get("mutes"):
            self._problem(
                "an entry of inhibit needs when and mutes", "when: WorkerDown, mutes: [WorkerStraggling]"
            )
            return None
        equal = tuple(map(str, _list(table.get("equal", ["run"]))))
        return Inhibition(
            source=str(table["when"]), targets=tuple(map(str, _list(table["mutes"]))), equal=equal
        )

    def _notifier(self, said: object, index: int) -> NotifierSetting | None:
        options_of_all = {name for names in _NEEDS.values() for name in names} | {
            "format",
            "port",
            "user",
            "password_file",
        }
        table = self._mapping(said, f"notifier {index + 1}", _NOTIFIER_KEYS | options_of_all)
        kind = str(table.get("kind", ""))
        if kind not in {k.value for k in NotifierKind}:
            self._problem(f"notifier {index + 1}: kind is {kind!r}", f"use one of {', '.join(NotifierKind)}")
            return None
        options = {k: str(v) for k, v in table.items() if k in options_of_all}
        for name in _NEEDS.get(NotifierKind(kind), ()):
            if name not in options:
                self._problem(f"notifier {kind} needs {name}", f"{name}: …")
        return NotifierSetting(
            name=str(table.get("name", kind)),
            kind=NotifierKind(kind),
            min_severity=self._severity(table.get("min_severity", "warning"), f"notifier {kind}"),
            most_per_minute=self._count(table, "most_per_minute", 20, f"notifier {kind}"),
            retries=self._count(table, "retries", 3, f"notifier {kind}"),
            timeout_s=self._seconds(table, "timeout", 5.0, f"notifier {kind}"),
            options=options,
        )

    def _severity(self, said: object, place: str) -> Severity:
        word = str(said).upper()
        if word not in Severity.__members__:
            self._problem(f"{place}: severity is {said!r}", "use info, warning or critical")
            return Severity.WARNING
        return Severity[word]

    def _count(self, table: Mapping[str, object], key: str, otherwise: int, place: str) -> int:
        value = table.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._problem(f"{place}: {key} is {value!r}", f"{key}: {otherwise}")
            return otherwise
        return value

    def _seconds(self, table: Mapping[str, object], key: str, otherwise: float, place: str) -> float:
        if key not in table:
            return otherwise
        found = seconds(table[key])
        if found is None:
            self._problem(f"{place}: {key} is {table[key]!r}, which is no duration", f"{key}: 5m")
            return otherwise
        return found

    def _mapping(self, said: object, place: str, known: set[str]) -> dict[str, object]:
        if not isinstance(said, dict):
            self._problem(f"{place} is {said!r}, but must be a mapping", "see docs/guides/alerts.md")
            return {}
        for key in said.keys() - known:
            self._problem(f"{place} has the unknown key {key!r}", f"it may have {', '.join(sorted(known))}")
        return {str(key): value for key, value in said.items()}

    def _problem(self, what: str, hint: str) -> None:
        self.problems.append(Problem(what, hint, self._where))


def _list(said: object) -> list[object]:
    if said is None:
        return []
    return list(said) if isinstance(said, list) else [said]
