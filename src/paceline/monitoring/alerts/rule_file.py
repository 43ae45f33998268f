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
Parent = tuple[object, str | None]


def seconds(value: object) -> float | None:
    """`5m` and the like; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(match[1]) * _UNITS_S[match[2]] if match else None


def as_list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


class ValueReader:
    """Reads values of the YAML document, and collects the problems."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self.problems: list[Problem] = list(document.problems)

    def problem(self, message: str, hint: str, node: object, key: str | None = None) -> None:
        self.problems.append(Problem(message, hint, self._document.at(node, key)))

    def mapping(self, node: object, place: str, known: Iterable[str], parent: Parent = (None, None)) -> Table:
        """The mapping itself: its lines are found by identity. `parent`: the node and key that hold it."""
        if not isinstance(node, dict):
            # Without the value: it may be the URL of a webhook.
            self.problem(f"{place} must be a mapping of keys", HINT, *parent)
            return {}
        allowed = sorted(known)
        for key in node:
            if key not in allowed:
                message = f"{place} has the unknown key {key!r}"
                self.problem(message, f"it may have {', '.join(allowed)}", node, str(key))
        return node

    def choice(self, table: Table, key: str, default: str, choices: Iterable[str], place: str) -> str:
        value = str(table.get(key, default))
        allowed = list(choices)
        if value not in allowed:
            self.problem(f"{place}: {key} is {value!r}", f"use one of {', '.join(allowed)}", table, key)
            return default
        return value

    def severity(self, table: Table, key: str, place: str) -> Severity:
        names = [s.word for s in Severity]
        name = str(table.get(key, "warning"))
        if name.lower() not in names:
            self.problem(f"{place}: {key} is {name!r}", f"use one of {', '.join(names)}", table, key)
            return Severity.WARNING
        return Severity[name.upper()]

    def count(self, table: Table, key: str, default: int, place: str, *, minimum: int = 0) -> int:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            message = f"{place}: {key} is {value!r}, but must be a whole number from {minimum} on"
            self.problem(message, f"{key}: {default}", table, key)
            return default
        return value

    def number(self, table: Table, key: str, default: float, place: str) -> float:
        value = table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.problem(f"{place}: {key} is {value!r}, but must be a number", f"{key}: 0.5", table, key)
            return default
        return float(value)

    def seconds(self, table: Table, key: str, default: float, place: str) -> float:
        if key not in table:
            return default
        duration_s = seconds(table[key])
        if duration_s is None:
            self.problem(
                f"{place}: {key} is {table[key]!r}, which is not a duration", f"{key}: 5m", table, key
            )
            return default
        return duration_s


_KEYS = {"name", "kind", "min_severity", "most_per_minute", "retries", "timeout"}
_NEEDS: dict[NotifierKind, tuple[str, ...]] = {  # required options; of a|b exactly one
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


def read_notifier(values: ValueReader, node: object, index: int, parent: Parent) -> NotifierSetting | None:
    place = f"notifier {index + 1}"
    all_keys = {*_KEYS, *(o for kind in NotifierKind for o in _options(kind))}
    table = values.mapping(node, place, all_keys, parent)
    if not table:
        return None  # already reported
    kind_name = str(table.get("kind", ""))
    if kind_name not in {k.value for k in NotifierKind}:
        values.problem(
            f"{place}: kind is {kind_name!r}", f"use one of {', '.join(NotifierKind)}", node, "kind"
        )
        return None
    kind = NotifierKind(kind_name)
    place = f"notifier {kind_name}"
    for key in table:
        if key in all_keys and key not in {*_KEYS, *_options(kind)}:
            allowed = ", ".join(sorted({*_KEYS, *_options(kind)}))
            values.problem(f"{place} has no {key}", f"it may have {allowed}", node, key)
    options = {k: str(v) for k, v in table.items() if k in _options(kind)}
    _check(values, kind, table, options, place)
    return NotifierSetting(
        name=str(table.get("name", kind_name)),
        kind=kind,
        min_severity=values.severity(table, "min_severity", place),
        most_per_minute=values.count(table, "most_per_minute", 20, place, minimum=1),
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
        values.count(table, "port", 25, place, minimum=1)
    if "bell" in options:
        values.choice(table, "bell", "True", ("True", "False"), place)
    if ("user" in options) != ("password_file" in options):
        values.problem(f"{place} needs user and password_file, or neither", "password_file: …", table)
    if "command" in options:
        try:
            has_arguments = bool(shlex.split(options["command"]))
        except ValueError:
            has_arguments = False
        if not has_arguments:
            message = f"{place}: command cannot be split into words, or has none"
            values.problem(message, "command: notify-send paceline", table, "command")


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
        problem = Problem("the rules file is not UTF-8 text", "save the file as UTF-8", str(path))
        raise RulesFileError([problem]) from error
    except OSError as error:
        problem = Problem(f"cannot read the rules: {error.strerror}", "name a YAML file of rules", str(path))
        raise RulesFileError([problem]) from error
    return read_rules(text, str(path))


def read_rules(text: str, where: str) -> Rules:
    document = YamlDocument(text, where)
    reader = _Reader(ValueReader(document))
    rules = reader.rules(document.value)
    if reader.values.problems:
        raise RulesFileError(reader.values.problems)
    return rules


class _Reader:
    def __init__(self, values: ValueReader) -> None:
        self.values = values

    def rules(self, node: object) -> Rules:
        values = self.values
        table = values.mapping(node, "the file", _FILE_KEYS)
        if table.get("version", 1) != 1:
            values.problem(
                f"version is {table['version']!r}, but this version reads 1", "version: 1", node, "version"
            )
        has_defaults = values.choice(table, "defaults", "False", ("True", "False"), "the file") == "True"
        base = default_rules() if has_defaults else Rules(rules=())
        own_rules = as_list(table.get("rules"))
        rules = [
            rule
            for i, entry in enumerate(own_rules)
            if (rule := self._rule(entry, i, (node, "rules"))) is not None
        ]
        for i, rule in enumerate(rules):
            if rule.name in [other.name for other in rules[:i]]:
                values.problem(f"there are two rules {rule.name}", "give each its own name", node, "rules")
        by_name = {rule.name: rule for rule in (*base.rules, *rules)}
        inhibitions = [
            self._inhibition(entry, sorted(by_name), (node, "inhibit"))
            for entry in as_list(table.get("inhibit"))
        ]
        return Rules(
            rules=tuple(by_name.values()),
            inhibitions=(*base.inhibitions, *(entry for entry in inhibitions if entry is not None)),
            notifiers=self._notifiers(table),
            repeat_s=values.seconds(table, "repeat", 3600.0, "the file"),
            group_wait_s=values.seconds(table, "group_wait", 0.0, "the file"),
            group_interval_s=values.seconds(table, "group_interval", 0.0, "the file"),
        )

    def _notifiers(self, table: Table) -> tuple[NotifierSetting, ...]:
        entries = as_list(table.get("notifiers"))
        parsed = [
            read_notifier(self.values, notifier, i, (table, "notifiers"))
            for i, notifier in enumerate(entries)
        ]
        notifiers = [notifier for notifier in parsed if notifier is not None]
        for i, notifier in enumerate(notifiers):
            if notifier.name in [other.name for other in notifiers[:i]]:
                message = f"there are two notifiers {notifier.name}"
                self.values.problem(message, "give each its own name: …", table, "notifiers")
        return tuple(notifiers)

    def _rule(self, node: object, index: int, parent: Parent) -> Rule | None:
        values = self.values
        table = values.mapping(node, f"rule {index + 1}", _RULE_KEYS, parent)
        if not table:
            return None  # already reported
        name = str(table.get("name", ""))
        place = f"rule {name or index + 1}"
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            hint = "use letters and digits, such as LossDiverging"
            values.problem(f"{place}: name is {name!r}", hint, node, "name")
            return None
        kinds = [key for key in ("all", "any") if key in table]
        if len(kinds) != 1 or not as_list(table[kinds[0]]):
            message = f"{place} needs one of all and any, with conditions"
            values.problem(message, "all: [{metric: …, above: 1}]", node)
            return None
        conditions = [
            self._condition(condition, place, (node, kinds[0])) for condition in as_list(table[kinds[0]])
        ]
        clear = (
            None
            if table.get("clear_when") is None
            else self._condition(table["clear_when"], place, (node, "clear_when"))
        )
        by = tuple(map(str, as_list(table.get("by", ["run"]))))
        all_conditions = [c for c in (*conditions, clear) if c is not None]
        self._check_labels(table, place, by, all_conditions)
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

    def _check_labels(
        self, table: Table, place: str, by: Sequence[str], conditions: Sequence[Condition]
    ) -> None:
        """Refuse labels that no series of the rule has, and placeholders that nothing fills."""
        labels = sorted({name for c in conditions for name in BY_NAME[c.left.metric].labels})
        for name in by:
            if conditions and name not in labels:
                hint = f"use some of {', '.join(labels)}"
                self.values.problem(f"{place}: by names the label {name!r}", hint, table, "by")
        allowed = [*labels, "value", "limit"]
        for key in ("summary", "description"):
            for placeholder in _placeholders(str(table.get(key, ""))):
                if conditions and placeholder not in allowed:
                    message = f"{place}: {key} has {{{placeholder or ''}}}, which is not a known placeholder"
                    self.values.problem(message, f"use some of {', '.join(allowed)}", table, key)

    def _condition(self, node: object, place: str, parent: Parent) -> Condition | None:
        values = self.values
        table = values.mapping(node, place, (*_READING_KEYS, *_COMPARES), parent)
        chosen = [key for key in table if key in _COMPARES]
        left = self._reading(table, place)
        if left is None:
            return None
        if left.reduce is Reduce.ABSENT and not chosen:
            return Condition(left=left, compare=Compare.EQUALS, limit=1.0)
        if len(chosen) != 1:
            message = f"{place}: a condition needs one of {', '.join(sorted(_COMPARES))}"
            values.problem(message, "above: 0.9", node)
            return None
        compare = Compare(chosen[0])
        limit = table[chosen[0]]
        if isinstance(limit, dict):
            right = self._reading(values.mapping(limit, place, (*_READING_KEYS, "times")), place)
            times = values.number(limit, "times", 1.0, place)
            return None if right is None else Condition(left=left, compare=compare, limit=right, times=times)
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            message = f"{place}: {compare.value} is {limit!r}, but it must be a number or a metric"
            values.problem(message, "above: 0.9", node, compare.value)
            return None
        return Condition(left=left, compare=compare, limit=float(limit))

    def _reading(self, table: Table, place: str) -> Reading | None:
        values = self.values
        metric = str(table.get("metric", ""))
        family = BY_NAME.get(metric)
        if family is None or family.kind is MetricKind.HISTOGRAM:
            message = f"there is no metric {metric!r}" if family is None else f"{metric} is a histogram"
            values.problem(f"{place}: {message}", "docs/reference/metrics.md lists them all", table, "metric")
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
            message = f"{place}: quantile is {quantile:g}, but must be from 0 to 1"
            values.problem(message, "quantile: 0.95", table, "quantile")
        where = values.mapping(table.get("where", {}), f"{place}: where", family.labels, (table, "where"))
        return Reading(
            metric=metric,
            where=labels_of(where),
            reduce=reduce,
            window_s=window_s,
            quantile=quantile,
            ahead_s=values.seconds(table, "ahead", 0.0, place),
        )

    def _inhibition(self, node: object, rules: Sequence[str], parent: Parent) -> Inhibition | None:
        table = self.values.mapping(node, "inhibit", ("when", "mutes", "equal"), parent)
        if not table.get("when") or not table.get("mutes"):
            message = "an entry of inhibit needs when and mutes"
            self.values.problem(message, "when: WorkerDown, mutes: [WorkerStraggling]", node)
            return None
        names = (str(table["when"]), *map(str, as_list(table["mutes"])))
        for name in names:
            if name not in rules:
                self.values.problem(
                    f"inhibit: there is no rule {name!r}", f"there are {', '.join(rules)}", node
                )
        equal = tuple(map(str, as_list(table.get("equal", ["run"]))))
        return Inhibition(source=names[0], targets=names[1:], equal=equal)


def _placeholders(text: str) -> list[str]:
    """Names in braces, such as `{value}`; an empty string for braces without a plain name."""
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
    except ValueError:
        return [""]  # a brace without its other half
    plain = re.compile(r"[a-z_]+")
    return [
        name if plain.fullmatch(name) and not spec and not conversion else ""
        for name, spec, conversion in fields
        if name is not None
    ]
