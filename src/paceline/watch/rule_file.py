"""How is a file of alert rules read? Every key is known or refused, and all problems are told at once."""

import re
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from paceline.errors import Problem, RulesFileError
from paceline.watch.catalogue import BY_NAME, Kind
from paceline.watch.notifier_file import read_notifier
from paceline.watch.rule_lines import Written
from paceline.watch.rule_values import Near, Table, Values, listed
from paceline.watch.rule_values import seconds as seconds
from paceline.watch.rules import (
    Compare,
    Condition,
    Inhibition,
    NotifierSetting,
    Reading,
    Reduce,
    Rule,
    Rules,
)
from paceline.watch.sample import labels_of

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
    text = resources.files("paceline.watch").joinpath("default_rules.yaml").read_text(encoding="utf-8")
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
    written = Written(text, where)
    reader = _Reader(Values(written))
    found = reader.rules(written.value)
    if reader.values.problems:
        raise RulesFileError(reader.values.problems)
    return found


class _Reader:
    def __init__(self, values: Values) -> None:
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
        own = listed(table.get("rules"))
        rules = [
            rule for i, one in enumerate(own) if (rule := self._rule(one, i, (said, "rules"))) is not None
        ]
        for i, rule in enumerate(rules):
            if rule.name in [other.name for other in rules[:i]]:
                values.problem(f"there are two rules {rule.name}", "give each its own name", said, "rules")
        named = {rule.name: rule for rule in (*base.rules, *rules)}
        inhibitions = [
            self._inhibition(one, sorted(named), (said, "inhibit")) for one in listed(table.get("inhibit"))
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
        said = listed(table.get("notifiers"))
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
        if len(kinds) != 1 or not listed(table[kinds[0]]):
            what = f"{place} needs one of all and any, with conditions"
            values.problem(what, "all: [{metric: …, above: 1}]", said)
            return None
        conditions = [self._condition(one, place, (said, kinds[0])) for one in listed(table[kinds[0]])]
        clear = (
            None
            if table.get("clear_when") is None
            else self._condition(table["clear_when"], place, (said, "clear_when"))
        )
        by = tuple(map(str, listed(table.get("by", ["run"]))))
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
            for word in _words_in_braces(str(table.get(key, ""))):
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
        if family is None or family.kind is Kind.HISTOGRAM:
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
        names = (str(table["when"]), *map(str, listed(table["mutes"])))
        for name in names:
            if name not in rules:
                self.values.problem(
                    f"inhibit: there is no rule {name!r}", f"there are {', '.join(rules)}", said
                )
        equal = tuple(map(str, listed(table.get("equal", ["run"]))))
        return Inhibition(source=names[0], targets=names[1:], equal=equal)


def _words_in_braces(text: str) -> list[str]:
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
