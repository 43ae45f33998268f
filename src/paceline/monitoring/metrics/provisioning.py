"""Prometheus rules and Grafana dashboards, generated from the alert rules and the panel table.

Our engine and the generated expressions agree: a test feeds both with the same series and compares
every alert.
"""

# ruff: noqa: E501  # one panel a line

import re
from collections.abc import Sequence

import yaml

from paceline.monitoring.alerts.rules import Compare, Condition, Reading, Reduce, Rule, Rules
from paceline.plan.codec import Json

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
    """The file that Prometheus loads with `rule_files`."""
    listed = [_rule(rule) for rule in rules.rules]
    return yaml.safe_dump({"groups": [{"name": "paceline", "rules": listed}]}, sort_keys=False, width=1000)


def _rule(rule: Rule) -> dict[str, object]:
    entry: dict[str, object] = {"alert": rule.name, "expr": expression(rule)}
    if rule.hold_s:
        entry["for"] = duration(rule.hold_s)
    if rule.keep_firing_s:
        entry["keep_firing_for"] = duration(rule.keep_firing_s)
    entry["labels"] = {"severity": rule.severity.word}
    entry["annotations"] = {
        "summary": _template(rule.summary),
        "description": _template(rule.description),
        "runbook_url": rule.runbook,
    }
    return entry


def expression(rule: Rule) -> str:
    parts = [_condition(condition) for condition in rule.conditions]
    operator = " or " if rule.is_any else f" and on ({', '.join(rule.by)}) "
    whole = parts[0] if len(parts) == 1 else operator.join(f"({part})" for part in parts)
    if rule.clear_when is None:
        return whole
    on = f"on ({', '.join(rule.by)})"
    value = _reading(rule.conditions[0].left)
    fires = f'ALERTS{{alertname="{rule.name}", alertstate="firing"}}'
    return f"({whole}) or (({value} unless {on} ({_condition(rule.clear_when)})) and {on} {fires})"


def _condition(condition: Condition) -> str:
    left = _reading(condition.left)
    sign = _SIGNS[condition.compare]
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
    """A duration in Prometheus notation: whole units."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{round(seconds * 1000)}ms"


def _template(text: str) -> str:
    """`{worker}` becomes `{{ $labels.worker }}`; the limit is visible in the rule itself."""
    converted = ""
    rest = text
    while "{" in rest:
        before, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        filled = {"value": "{{ $value | humanize }}", "limit": "the limit"}.get(
            name, f"{{{{ $labels.{name} }}}}"
        )
        converted += before + filled
    return converted + rest


def metrics_in(expressions: Sequence[str]) -> set[str]:
    """Our metric names in these expressions, without the suffixes of histograms."""
    names = {name for text in expressions for name in re.findall(r"paceline_[a-z0-9_]+", text)}
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if not name.endswith("_total") else name for name in names
    }


DATASOURCE = "${datasource}"
_RUN = 'run="$run"'

# dashboard: [(title, unit of Grafana, [(legend, expression)])]
PANELS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Paceline: run": [
        ("Throughput", "none", [("samples/s", f"paceline_throughput_samples_per_second{{{_RUN}}}")]),
        ("Loss", "none", [("train", f"paceline_train_loss{{{_RUN}}}"), ("{{name}}", f"paceline_eval_metric{{{_RUN}}}")]),
        ("Gradient norm", "none", [("{{worker}}", f"paceline_gradient_norm{{{_RUN}}}")]),
        ("Step", "none", [("step", f"paceline_global_step{{{_RUN}}}"), ("planned", f"paceline_planned_steps{{{_RUN}}}")]),
        ("Health", "percentunit", [("score", f"paceline_health_score_ratio{{{_RUN}}}"), ("{{component}}", f"paceline_health_component_ratio{{{_RUN}}}")]),
        ("Firing alerts", "none", [("{{severity}}", f"paceline_alerts_firing{{{_RUN}}}")]),
        ("Workers by state", "none", [("{{state}}", f"paceline_workers{{{_RUN}}}"), ("desired", f"paceline_workers_desired{{{_RUN}}}")]),
        ("Generation", "none", [("generation", f"paceline_generation{{{_RUN}}}"), ("last recovery in s", f"paceline_recovery_last_seconds{{{_RUN}}}")]),
        ("Age of the newest checkpoint", "s", [("age", f"time() - paceline_checkpoint_last_success_timestamp_seconds{{{_RUN}}}")]),
        ("Checkpoint time p95", "s", [("{{stage}}", f"histogram_quantile(0.95, sum by (stage, le) (rate(paceline_checkpoint_duration_seconds_bucket{{{_RUN}}}[10m])))")]),
        ("Restarts by cause", "none", [("generation: {{cause}}", f"paceline_generation_changes_total{{{_RUN}}}"), ("worker: {{cause}}", f"paceline_restarts_total{{{_RUN}}}"), ("lost steps", f"paceline_lost_steps_total{{{_RUN}}}")]),
        ("Custom", "none", [("{{name}} {{worker}}", f"paceline_custom{{{_RUN}}}")]),
    ],
    "Paceline: workers": [
        ("Relative speed", "none", [("{{worker}}", f"paceline_worker_relative_speed_ratio{{{_RUN}}}")]),
        ("Step time p50", "s", [("{{worker}}", f"histogram_quantile(0.5, sum by (worker, le) (rate(paceline_step_duration_seconds_bucket{{{_RUN}}}[1m])))")]),
        ("Time by phase", "percentunit", [("{{phase}}", f"sum by (phase) (rate(paceline_step_phase_seconds_total{{{_RUN}}}[1m])) / scalar(sum(rate(paceline_step_phase_seconds_total{{{_RUN}}}[1m])))")]),
        ("Waiting and communication", "percentunit", [("wait", f"paceline_wait_ratio{{{_RUN}}}"), ("comm", f"paceline_communication_ratio{{{_RUN}}}")]),
        ("Staleness p95", "none", [("{{worker}}", f"histogram_quantile(0.95, sum by (worker, le) (rate(paceline_gradient_staleness_steps_bucket{{{_RUN}}}[1m])))"), ("bound", f"paceline_staleness_bound_steps{{{_RUN}}}")]),
        ("Steps behind the fastest", "none", [("{{worker}}", f"paceline_worker_lag_steps{{{_RUN}}}")]),
        ("Communication p95", "s", [("{{op}}", f"histogram_quantile(0.95, sum by (op, le) (rate(paceline_collective_duration_seconds_bucket{{{_RUN}}}[1m])))")]),
        ("Bytes sent", "Bps", [("{{worker}}", f"rate(paceline_network_transmit_bytes_total{{{_RUN}}}[1m])")]),
        ("Bandwidth while communicating", "Bps", [("{{worker}}", f"paceline_worker_bandwidth_bytes_per_second{{{_RUN}}}")]),
        ("Round trip", "s", [("{{worker}}", f"paceline_worker_round_trip_seconds{{{_RUN}}}"), ("{{worker}} slowest", f"paceline_worker_round_trip_slowest_seconds{{{_RUN}}}")]),
        ("Retransmitted", "percentunit", [("{{worker}}", f"rate(paceline_worker_tcp_retransmitted_total{{{_RUN}}}[1m]) / rate(paceline_worker_tcp_segments_total{{{_RUN}}}[1m])")]),
        ("Memory", "bytes", [("{{worker}}", f"paceline_worker_resident_memory_bytes{{{_RUN}}}")]),
        ("Restarts in ten minutes", "none", [("{{worker}}", f"increase(paceline_worker_restarts_total{{{_RUN}}}[10m])")]),
    ],
    "Paceline: machines": [
        ("CPU", "percentunit", [("{{node}}", f"paceline_host_cpu_usage_ratio{{{_RUN}}}")]),
        ("Memory", "percentunit", [("{{node}}", f"paceline_host_memory_used_bytes{{{_RUN}}} / paceline_host_memory_size_bytes{{{_RUN}}}")]),
        ("Disk free", "bytes", [("{{node}}", f"paceline_host_filesystem_available_bytes{{{_RUN}}}")]),
        ("Network", "Bps", [("{{node}} in", f"rate(paceline_host_network_receive_bytes_total{{{_RUN}}}[1m])"), ("{{node}} out", f"rate(paceline_host_network_transmit_bytes_total{{{_RUN}}}[1m])")]),
        ("TCP retransmitted", "percentunit", [("{{node}}", f"rate(paceline_host_tcp_retransmitted_total{{{_RUN}}}[1m]) / rate(paceline_host_tcp_segments_total{{{_RUN}}}[1m])")]),
        ("GPU utilization", "percentunit", [("{{node}} {{gpu}}", f"paceline_gpu_utilization_ratio{{{_RUN}}}")]),
        ("GPU memory", "percentunit", [("{{node}} {{gpu}}", f"paceline_gpu_memory_used_bytes{{{_RUN}}} / paceline_gpu_memory_size_bytes{{{_RUN}}}")]),
        ("GPU power", "watt", [("{{node}} {{gpu}}", f"rate(paceline_gpu_energy_joules_total{{{_RUN}}}[1m])")]),
        ("GPU temperature", "celsius", [("{{node}} {{gpu}}", f"paceline_gpu_temperature_celsius{{{_RUN}}}")]),
        ("Coordinator: round trip", "s", [("{{node}}", f"paceline_coordinator_round_trip_seconds{{{_RUN}}}")]),
        ("Coordinator: commit p99", "s", [("{{node}}", f"paceline_coordinator_commit_p99_seconds{{{_RUN}}}")]),
        ("Coordinator: disk p99", "s", [("{{node}}", f"histogram_quantile(0.99, sum by (node, le) (rate(paceline_coordinator_fsync_duration_seconds_bucket{{{_RUN}}}[1m])))")]),
        ("Coordinator: round trip between nodes p99", "s", [("{{node}} to {{peer}}", f"histogram_quantile(0.99, sum by (node, peer, le) (rate(paceline_coordinator_peer_round_trip_seconds_bucket{{{_RUN}}}[1m])))")]),
        ("Coordinator: elections", "none", [("{{node}}", f"increase(paceline_coordinator_elections_total{{{_RUN}}}[10m])"), ("{{node}} failed proposals", f"increase(paceline_coordinator_proposals_failed_total{{{_RUN}}}[10m])")]),
        ("Coordinator: commit", "none", [("{{node}}", f"paceline_coordinator_commit_index{{{_RUN}}}"), ("term", f"paceline_coordinator_term{{{_RUN}}}")]),
        ("Coordinator: voters missing", "none", [("missing", f"paceline_coordinator_voters_missing{{{_RUN}}}")]),
    ],
}  # fmt: skip


def expressions() -> list[str]:
    return [text for panels in PANELS.values() for _, _, targets in panels for _, text in targets]


def dashboards() -> dict[str, dict[str, Json]]:
    """Grafana dashboards, by file name."""
    return {
        f"{title.lower().replace(': ', '-')}.json": _dashboard(title, panels)
        for title, panels in PANELS.items()
    }


def _dashboard(title: str, panels: list[tuple[str, str, list[tuple[str, str]]]]) -> dict[str, Json]:
    return {
        "title": title,
        "uid": title.lower().replace(": ", "-"),
        "tags": ["paceline"],
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), _run_variable()]},
        "panels": [_panel(number, *panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, title: str, unit: str, targets: list[tuple[str, str]]) -> dict[str, Json]:
    queries: list[Json] = [
        {"refId": chr(ord("A") + i), "expr": text, "legendFormat": legend, "datasource": _source()}
        for i, (legend, text) in enumerate(targets)
    ]
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": _source(),
        "gridPos": {"x": 8 * (number % 3), "y": 8 * (number // 3), "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": queries,
    }


def _source() -> dict[str, Json]:
    return {"type": "prometheus", "uid": DATASOURCE}


def _datasource() -> dict[str, Json]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _run_variable() -> dict[str, Json]:
    query = "label_values(paceline_run_info, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _source(),
        "query": {"query": query, "refId": "run"},
        "definition": query,
        "refresh": 2,
    }
