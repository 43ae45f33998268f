"""Parser of alert rule files (YAML): unknown keys are refused, and all problems are reported at once."""

import math
import re
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from paceline.core.errors import Problem, RulesFileError
from paceline.core.yaml_lines import HINT, YamlDocument
from paceline.monitoring.alerts.rules import (
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
from paceline.monitoring.metrics.catalog import BY_NAME, MetricKind, labels_of

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
Table = Mapping[str, object]
Near = tuple[object, str | None]


def seconds(value: object) -> float | None:
    """`5m` and the like; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _UNITS_S[found[2]] if found else None


def as_list(said: object) -> list[object]:
    if said is None:
        return []
    return list(said) if isinstance(said, list) else [said]


class ValueReader:
    """Reads, and gathers what is wrong."""

    def __init__(self, written: YamlDocument) -> None:
        self._written = written
        self.problems: list[Problem] = list(written.problems)

    def problem(self, what: str, hint: str, said: object, key: str | None = None) -> None:
        self.problems.append(Problem(what, hint, self._written.at(said, key)))

    def mapping(self, said: object, place: str, known: Iterable[str], near: Near = (None, None)) -> Table:
        """The mapping itself: its lines are known by it. `near`: in what, by which key, this stands."""
        if not isinstance(said, dict):
            # Not what it is: the address of a webhook may stand there.
            self.problem(f"{place} must be a mapping of keys", HINT, *near)
            return {}
        allowed = sorted(known)
        for key in said:
            if key not in allowed:
                what = f"{place} has the unknown key {key!r}"
                self.problem(what, f"it may have {', '.join(allowed)}", said, str(key))
        return said

    def choice(self, table: Table, key: str, otherwise: str, choices: Iterable[str], place: str) -> str:
        value, allowed = str(table.get(key, otherwise)), list(choices)
        if value not in allowed:
            self.problem(f"{place}: {key} is {value!r}", f"use one of {', '.join(allowed)}", table, key)
            return otherwise
        return value

    def severity(self, table: Table, key: str, place: str) -> Severity:
        words = [s.word for s in Severity]
        said = str(table.get(key, "warning"))
        if said.lower() not in words:
            self.problem(f"{place}: {key} is {said!r}", f"use one of {', '.join(words)}", table, key)
            return Severity.WARNING
        return Severity[said.upper()]

    def count(self, table: Table, key: str, otherwise: int, place: str, *, least: int = 0) -> int:
        value = table.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            what = f"{place}: {key} is {value!r}, but must be a whole number from {least} on"
            self.problem(what, f"{key}: {otherwise}", table, key)
            return otherwise
        return value

    def number(self, table: Table, key: str, otherwise: float, place: str) -> float:
        value = table.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.problem(f"{place}: {key} is {value!r}, but must be a number", f"{key}: 0.5", table, key)
            return otherwise
        return float(value)

    def seconds(self, table: Table, key: str, otherwise: float, place: str) -> float:
        if key not in table:
            return otherwise
        found = seconds(table[key])
        if found is None:
            self.problem(f"{place}: {key} is {table[key]!r}, which is no duration", f"{key}: 5m", table, key)
            return otherwise
        return found


_KEYS = {"name", "kind", "min_severity", "most_per_minute", "retries", "timeout"}
_NEEDS: dict[NotifierKind, tuple[str, ...]] = {  # what it cannot do without; of a|b one of both
    NotifierKind.TERMINAL: (),
    NotifierKind.LOG: ("path",),
    NotifierKind.WEBHOOK: ("url|url_file",),
    NotifierKind.COMMAND: ("command",),
    NotifierKind.SMTP: ("host", "from", "to"),
    NotifierKind.ALERTMANAGER: ("url|url_file",),
}
_MAY: dict[NotifierKind, tuple[str, ...]] = {
    NotifierKind.TERMINAL: ("bell",),
    NotifierKind.WEBHOOK: ("format",),
    NotifierKind.SMTP: ("port", "user", "password_file", "ca_file"),
}
FORMATS = ("slack", "discord", "json")


def read_notifier(values: ValueReader, said: object, index: int, near: Near) -> NotifierSetting | None:
    place = f"notifier {index + 1}"
    everything = {*_KEYS, *(o for kind in NotifierKind for o in _options(kind))}
    table = values.mapping(said, place, everything, near)
    if not table:
        return None  # that has been said
    word = str(table.get("kind", ""))
    if word not in {k.value for k in NotifierKind}:
        values.problem(f"{place}: kind is {word!r}", f"use one of {', '.join(NotifierKind)}", said, "kind")
        return None
    kind, place = NotifierKind(word), f"notifier {word}"
    for key in table:
        if key in everything and key not in {*_KEYS, *_options(kind)}:
            allowed = ", ".join(sorted({*_KEYS, *_options(kind)}))
            values.problem(f"{place} has no {key}", f"it may have {allowed}", said, key)
    options = {k: str(v) for k, v in table.items() if k in _options(kind)}
    _check(values, kind, table, options, place)
    return NotifierSetting(
        name=str(table.get("name", word)),
        kind=kind,
        min_severity=values.severity(table, "min_severity", place),
        most_per_minute=values.count(table, "most_per_minute", 20, place, least=1),
        retries=values.count(table, "retries", 3, place),
        timeout_s=values.seconds(table, "timeout", 5.0, place) or 5.0,
        options=options,
    )


def _options(kind: NotifierKind) -> list[str]:
    return [name for need in _NEEDS[kind] for name in need.split("|")] + list(_MAY.get(kind, ()))


def _check(
    values: ValueReader, kind: NotifierKind, table: Table, options: dict[str, str], place: str
) -> None:
    for need in _NEEDS[kind]:
        names = need.split("|")
        if sum(name in options for name in names) != 1:
            values.problem(f"{place} needs {' or '.join(names)}", f"{names[0]}: …", table)
    if "format" in options:
        values.choice(table, "format", "slack", FORMATS, place)
    if "port" in options:
        values.count(table, "port", 25, place, least=1)
    if "bell" in options:
        values.choice(table, "bell", "True", ("True", "False"), place)
    if ("user" in options) != ("password_file" in options):
        values.problem(f"{place} needs user and password_file, or neither", "password_file: …", table)
    if "command" in options:
        try:
            has_words = bool(shlex.split(options["command"]))
        except ValueError:
            has_words = False
        if not has_words:
            what = f"{place}: command cannot be split into words, or has none"
            values.problem(what, "command: notify-send paceline", table, "command")


COMPONENTS = ("progress", "workers", "coordinator", "resources", "freshness")
_FILE_KEYS = (
    "version",
    "defaults",
    "rules",
    "inhibit",
    "notifiers",
    "repeat",
    "group_wait",
    "group_interval",
)
_RULE_KEYS = (
    "name", "severity", "all", "any", "by", "for", "keep_firing_for", "clear_when", "component",
    "summary", "description",
)  # fmt: skip
_READING_KEYS = ("metric", "where", "reduce", "window", "quantile", "ahead")
_NO_WINDOW = (Reduce.LAST, Reduce.AGE, Reduce.ABSENT)
_COMPARES = tuple(c.value for c in Compare)


def default_rules() -> Rules:
    text = (
        resources.files("paceline.monitoring.alerts")
        .joinpath("default_rules.yaml")
        .read_text(encoding="utf-8")
    )
    return read_rules(text, "default_rules.yaml")


def load_rules(path: Path) -> Rules:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = Problem("the rules are no text in UTF-8", "save the file as UTF-8", str(path))
        raise RulesFileError([problem]) from error
    except OSError as error:
        problem = Problem(f"cannot read the rules: {error.strerror}", "name a YAML file of rules", str(path))
        raise RulesFileError([problem]) from error
    return read_rules(text, str(path))


def read_rules(text: str, where: str) -> Rules:
    written = YamlDocument(text, where)
    reader = _Reader(ValueReader(written))
    found = reader.rules(written.value)
    if reader.values.problems:
        raise RulesFileError(reader.values.problems)
    return found


class _Reader:
    def __init__(self, values: ValueReader) -> None:
        self.values = values

    def rules(self, said: object) -> Rules:
        values = self.values
        table = values.mapping(said, "the file", _FILE_KEYS)
        if table.get("version", 1) != 1:
            values.problem(
                f"version is {table['version']!r}, and this reads 1", "version: 1", said, "version"
            )
        has_defaults = values.choice(table, "defaults", "False", ("True", "False"), "the file") == "True"
        base = default_rules() if has_defaults else Rules(rules=())
        own = as_list(table.get("rules"))
        rules = [
            rule for i, one in enumerate(own) if (rule := self._rule(one, i, (said, "rules"))) is not None
        ]
        for i, rule in enumerate(rules):
            if rule.name in [other.name for other in rules[:i]]:
                values.problem(f"there are two rules {rule.name}", "give each its own name", said, "rules")
        named = {rule.name: rule for rule in (*base.rules, *rules)}
        inhibitions = [
            self._inhibition(one, sorted(named), (said, "inhibit")) for one in as_list(table.get("inhibit"))
        ]
        return Rules(
            rules=tuple(named.values()),
            inhibitions=(*base.inhibitions, *(one for one in inhibitions if one is not None)),
            notifiers=self._notifiers(table),
            repeat_s=values.seconds(table, "repeat", 3600.0, "the file"),
            group_wait_s=values.seconds(table, "group_wait", 0.0, "the file"),
            group_interval_s=values.seconds(table, "group_interval", 0.0, "the file"),
        )

    def _notifiers(self, table: Table) -> tuple[NotifierSetting, ...]:
        said = as_list(table.get("notifiers"))
        read = [read_notifier(self.values, one, i, (table, "notifiers")) for i, one in enumerate(said)]
        found = [one for one in read if one is not None]
        for i, one in enumerate(found):
            if one.name in [other.name for other in found[:i]]:
                what = f"there are two notifiers {one.name}"
                self.values.problem(what, "give each its own name: …", table, "notifiers")
        return tuple(found)

    def _rule(self, said: object, index: int, near: Near) -> Rule | None:
        values = self.values
        table = values.mapping(said, f"rule {index + 1}", _RULE_KEYS, near)
        if not table:
            return None  # that has been said
        name = str(table.get("name", ""))
        place = f"rule {name or index + 1}"
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            hint = "call it by letters and digits, such as LossDiverging"
            values.problem(f"{place}: name is {name!r}", hint, said, "name")
            return None
        kinds = [key for key in ("all", "any") if key in table]
        if len(kinds) != 1 or not as_list(table[kinds[0]]):
            what = f"{place} needs one of all and any, with conditions"
            values.problem(what, "all: [{metric: …, above: 1}]", said)
            return None
        conditions = [self._condition(one, place, (said, kinds[0])) for one in as_list(table[kinds[0]])]
        clear = (
            None
            if table.get("clear_when") is None
            else self._condition(table["clear_when"], place, (said, "clear_when"))
        )
        by = tuple(map(str, as_list(table.get("by", ["run"]))))
        whole = [c for c in (*conditions, clear) if c is not None]
        self._check_words(table, place, by, whole)
        return Rule(
            name=name,
            severity=values.severity(table, "severity", place),
            conditions=tuple(c for c in conditions if c is not None),
            is_any=kinds[0] == "any",
            by=by,
            hold_s=values.seconds(table, "for", 0.0, place),
            keep_firing_s=values.seconds(table, "keep_firing_for", 0.0, place),
            clear_when=clear,
            component=values.choice(table, "component", "progress", COMPONENTS, place),
            summary=str(table.get("summary", name)),
            description=str(table.get("description", "")),
        )

    def _check_words(
        self, table: Table, place: str, by: Sequence[str], conditions: Sequence[Condition]
    ) -> None:
        """A label that no series of the rule has would never match, and a word in braces would stay empty."""
        labels = sorted({name for c in conditions for name in BY_NAME[c.left.metric].labels})
        for name in by:
            if conditions and name not in labels:
                hint = f"use some of {', '.join(labels)}"
                self.values.problem(f"{place}: by names the label {name!r}", hint, table, "by")
        allowed = [*labels, "value", "limit"]
        for key in ("summary", "description"):
            for word in _placeholders(str(table.get(key, ""))):
                if conditions and word not in allowed:
                    what = f"{place}: {key} has {{{word or ''}}}, which nothing fills in"
                    self.values.problem(what, f"use some of {', '.join(allowed)}", table, key)

    def _condition(self, said: object, place: str, near: Near) -> Condition | None:
        values = self.values
        table = values.mapping(said, place, (*_READING_KEYS, *_COMPARES), near)
        chosen = [key for key in table if key in _COMPARES]
        left = self._reading(table, place)
        if left is None:
            return None
        if left.reduce is Reduce.ABSENT and not chosen:
            return Condition(left=left, compare=Compare.EQUALS, limit=1.0)
        if len(chosen) != 1:
            what = f"{place}: a condition needs one of {', '.join(sorted(_COMPARES))}"
            values.problem(what, "above: 0.9", said)
            return None
        compare, limit = Compare(chosen[0]), table[chosen[0]]
        if isinstance(limit, dict):
            right = self._reading(values.mapping(limit, place, (*_READING_KEYS, "times")), place)
            times = values.number(limit, "times", 1.0, place)
            return None if right is None else Condition(left=left, compare=compare, limit=right, times=times)
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            what = f"{place}: {compare.value} is {limit!r}, but it must be a number or a metric"
            values.problem(what, "above: 0.9", said, compare.value)
            return None
        return Condition(left=left, compare=compare, limit=float(limit))

    def _reading(self, table: Table, place: str) -> Reading | None:
        values, metric = self.values, str(table.get("metric", ""))
        family = BY_NAME.get(metric)
        if family is None or family.kind is MetricKind.HISTOGRAM:
            what = f"there is no metric {metric!r}" if family is None else f"{metric} is a histogram"
            values.problem(f"{place}: {what}", "docs/reference/metrics.md lists them all", table, "metric")
            return None
        reduce = Reduce(values.choice(table, "reduce", "last", Reduce, place))
        window_s = values.seconds(table, "window", 0.0, place)
        if window_s == 0 and reduce not in _NO_WINDOW:
            values.problem(f"{place}: {reduce} of {metric} needs a window", "window: 5m", table)
        for need in {Reduce.QUANTILE: ("quantile",), Reduce.FORECAST: ("ahead",)}.get(reduce, ()):
            if need not in table:
                values.problem(f"{place}: {reduce} of {metric} needs {need}", f"{need}: …", table)
        quantile = values.number(table, "quantile", 0.0, place)
        if not 0 <= quantile <= 1:
            what = f"{place}: quantile is {quantile:g}, but must be from 0 to 1"
            values.problem(what, "quantile: 0.95", table, "quantile")
        where = values.mapping(table.get("where", {}), f"{place}: where", family.labels, (table, "where"))
        return Reading(
            metric=metric,
            where=labels_of(where),
            reduce=reduce,
            window_s=window_s,
            quantile=quantile,
            ahead_s=values.seconds(table, "ahead", 0.0, place),
        )

    def _inhibition(self, said: object, rules: Sequence[str], near: Near) -> Inhibition | None:
        table = self.values.mapping(said, "inhibit", ("when", "mutes", "equal"), near)
        if not table.get("when") or not table.get("mutes"):
            what = "an entry of inhibit needs when and mutes"
            self.values.problem(what, "when: WorkerDown, mutes: [WorkerStraggling]", said)
            return None
        names = (str(table["when"]), *map(str, as_list(table["mutes"])))
        for name in names:
            if name not in rules:
                self.values.problem(
                    f"inhibit: there is no rule {name!r}", f"there are {', '.join(rules)}", said
                )
        equal = tuple(map(str, as_list(table.get("equal", ["run"]))))
        return Inhibition(source=names[0], targets=names[1:], equal=equal)


def _placeholders(text: str) -> list[str]:
    """`{value}` and the like; the empty word for braces that hold no plain name."""
    try:
        found = [(name, spec, how) for _, name, spec, how in string.Formatter().parse(text)]
    except ValueError:
        return [""]  # a brace without its other half
    plain = re.compile(r"[a-z_]+")
    return [
        name if plain.fullmatch(name) and not spec and not how else ""
        for name, spec, how in found
        if name is not None
    ]
