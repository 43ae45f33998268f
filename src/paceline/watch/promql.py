"""How does Prometheus say the same as our rules? Each as an expression of its language, in a file of rules.

What our engine computes for a rule and what these expressions give agree: a test feeds
both with the same series and compares every alert.
"""

import re
from collections.abc import Sequence

import yaml

from paceline.watch.rules import Compare, Condition, Reading, Reduce, Rule, Rules

_SIGNS = {
    Compare.ABOVE: ">",
    Compare.AT_LEAST: ">=",
    Compare.BELOW: "<",
    Compare.AT_MOST: "<=",
    Compare.EQUALS: "==",
    Compare.DIFFERS: "!=",
}
_OVER_TIME = {
    Reduce.AVG: "avg_over_time",
    Reduce.MIN: "min_over_time",
    Reduce.MAX: "max_over_time",
    Reduce.SUM: "sum_over_time",
    Reduce.COUNT: "count_over_time",
    Reduce.INCREASE: "increase",
    Reduce.RATE: "rate",
    Reduce.DELTA: "delta",
}


def rules_file(rules: Rules) -> str:
    """What Prometheus loads with `rule_files`."""
    listed = [_rule(rule) for rule in rules.rules]
    return yaml.safe_dump({"groups": [{"name": "paceline", "rules": listed}]}, sort_keys=False, width=1000)


def _rule(rule: Rule) -> dict[str, object]:
    made: dict[str, object] = {"alert": rule.name, "expr": expression(rule)}
    if rule.hold_s:
        made["for"] = duration(rule.hold_s)
    if rule.keep_firing_s:
        made["keep_firing_for"] = duration(rule.keep_firing_s)
    made["labels"] = {"severity": rule.severity.word}
    made["annotations"] = {
        "summary": _template(rule.summary),
        "description": _template(rule.description),
        "runbook_url": rule.runbook,
    }
    return made


def expression(rule: Rule) -> str:
    parts = [_condition(condition) for condition in rule.conditions]
    word = " or " if rule.is_any else f" and on ({', '.join(rule.by)}) "
    whole = parts[0] if len(parts) == 1 else word.join(f"({part})" for part in parts)
    if rule.clear_when is None:
        return whole
    on = f"on ({', '.join(rule.by)})"
    value = _reading(rule.conditions[0].left)
    fires = f'ALERTS{{alertname="{rule.name}", alertstate="firing"}}'
    return f"({whole}) or (({value} unless {on} ({_condition(rule.clear_when)})) and {on} {fires})"


def _condition(condition: Condition) -> str:
    left, sign = _reading(condition.left), _SIGNS[condition.compare]
    if not isinstance(condition.limit, Reading):
        if condition.left.reduce is Reduce.ABSENT:
            return left
        return f"{left} {sign} {condition.limit:.12g}"
    factor = "" if condition.times == 1 else f"{condition.times:.12g} * "
    return f"{left} {sign} {factor}{_reading(condition.limit)}"


def _reading(reading: Reading) -> str:
    matchers = ", ".join(f'{name}="{_escaped(value)}"' for name, value in reading.where)
    selector = reading.metric + (f"{{{matchers}}}" if matchers else "")
    window = f"{selector}[{duration(reading.window_s)}]"
    match reading.reduce:
        case Reduce.LAST:
            return selector
        case Reduce.AGE:
            return f"(time() - {selector})"
        case Reduce.ABSENT:
            return f"absent({selector})"
        case Reduce.QUANTILE:
            return f"quantile_over_time({reading.quantile:.12g}, {window})"
        case Reduce.FORECAST:
            return f"predict_linear({window}, {reading.ahead_s:.12g})"
        case _:
            return f"{_OVER_TIME[reading.reduce]}({window})"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def duration(seconds: float) -> str:
    """As Prometheus writes it: whole units."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def _template(text: str) -> str:
    """`{worker}` becomes `{{ $labels.worker }}`; a limit is in the rule for whoever reads it."""
    made, rest = "", text
    while "{" in rest:
        before, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        filled = {"value": "{{ $value | humanize }}", "limit": "the limit"}.get(
            name, f"{{{{ $labels.{name} }}}}"
        )
        made += before + filled
    return made + rest


def metrics_in(expressions: Sequence[str]) -> set[str]:
    """The names of ours that these expressions mention, without the endings of histograms."""
    found = {name for text in expressions for name in re.findall(r"paceline_[a-z0-9_]+", text)}
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if not name.endswith("_total") else name for name in found
    }
