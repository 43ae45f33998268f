"""Prometheus and our engine agree: both get the same series, and promtool compares."""

import random
from pathlib import Path

import yaml
from tests.fixtures.processes.prometheus import needs_promtool, promtool
from tests.monitoring.scripted_series import STEP_S, Scripted, samples_at, scripted

from paceline.monitoring.alerts.engine import AlertEngine, State
from paceline.monitoring.alerts.rule_file import default_rules, read_rules
from paceline.monitoring.alerts.rules import Rule, Rules
from paceline.monitoring.metrics.provisioning import rules_file

STEPS = 160
SERIES = 210
MOMENTS = 6  # at which the alerts of each case are compared

# What the default rules do not use.
MORE = """
rules:
  - name: AnyOfTwo
    any:
      - {metric: paceline_wait_ratio, above: 0.8}
      - {metric: paceline_communication_ratio, reduce: max, window: 2m, above: 0.8}
    for: 30s
  - name: ClearsLower
    all: [{metric: paceline_host_cpu_usage_ratio, above: 0.9}]
    by: [run, node]
    clear_when: {metric: paceline_host_cpu_usage_ratio, below: 0.5}
  - name: NothingThere
    all: [{metric: paceline_generation, reduce: absent}]
    for: 1m
  - name: GrewMuch
    all: [{metric: paceline_host_memory_used_bytes, reduce: delta, window: 5m, above: 3}]
  - name: TwoWindows
    all:
      - {metric: paceline_train_loss, reduce: sum, window: 2m, above: 4}
      - {metric: paceline_train_loss, reduce: count, window: 4m, at_least: 10}
    keep_firing_for: 2m
  - name: ThreeQuarters
    all: [{metric: paceline_train_loss, reduce: quantile, quantile: 0.75, window: 3m, above: 0.4}]
"""


def fired(rule: Rule, made: Scripted, moments: list[int]) -> dict[int, list[dict[str, str]]]:
    """The labels of what our engine says fires, at each of these moments."""
    engine, result = AlertEngine(Rules(rules=(rule,))), {}
    for step in range(STEPS):
        engine.evaluate(step * STEP_S, samples_at(made, step))
        if step in moments:
            result[step] = [dict(a.labels) for a in engine.active if a.state is State.FIRING]
    return result


def written(values: list[float | None]) -> str:
    """As promtool reads a series: the first moment of absence is a marker, the rest are gaps."""
    messages = []
    for i, value in enumerate(values):
        if value is not None:
            messages.append(f"{value:.6f}".rstrip("0").rstrip("."))
        else:
            messages.append("stale" if i and values[i - 1] is not None else "_")
    return " ".join(messages)


def case(rule: Rule, seed: int) -> tuple[dict[str, object], int]:
    """One test of promtool's, and how many alerts it expects."""
    made = scripted(rule, seed, STEPS)
    moments = sorted(random.Random(f"{rule.name} {seed}").sample(range(STEPS), MOMENTS))
    expected = fired(rule, made, moments)
    series = [
        {
            "series": f"{name}{{{','.join(f'{k}=%r' % v for k, v in labels)}}}".replace("'", '"'),
            "values": written(v),
        }
        for (name, labels), v in made.items()
    ]
    tests = [
        {
            "eval_time": f"{int(step * STEP_S)}s",
            "alertname": rule.name,
            "exp_alerts": [
                {"exp_labels": {"severity": rule.severity.word, **labels}} for labels in expected[step]
            ],
        }
        for step in moments
    ]
    count = sum(map(len, expected.values()))
    return {"interval": f"{int(STEP_S)}s", "input_series": series, "alert_rule_test": tests}, count


def write_cases(folder: Path, rule: Rule, seeds: range) -> tuple[Path, int]:
    exported = yaml.safe_load(rules_file(Rules(rules=(rule,))))
    for item in exported["groups"][0]["rules"]:
        del item["annotations"]  # sentences are no subject of this test
    (folder / f"{rule.name}.rules.yml").write_text(yaml.safe_dump(exported))
    cases = [case(rule, seed) for seed in seeds]
    path = folder / f"{rule.name}.test.yml"
    path.write_text(
        yaml.safe_dump(
            {
                "rule_files": [f"{rule.name}.rules.yml"],
                "evaluation_interval": f"{int(STEP_S)}s",
                "tests": [entry for entry, _ in cases],
            }
        )
    )
    return path, sum(count for _, count in cases)


@needs_promtool
def test_prometheus_and_our_engine_agree_on_every_alert_of_two_hundred_series(tmp_path: Path) -> None:
    rules = (*default_rules().rules, *read_rules(MORE, "more").rules)
    each = -(-SERIES // len(rules))
    made = [write_cases(tmp_path, rule, range(each)) for rule in rules]
    assert len(rules) * each >= 200
    assert sum(count for _, count in made) > 200, "something fires, or nothing is compared"
    code, text = promtool("test", "rules", *(str(path) for path, _ in made))
    assert code == 0, text[-4000:]


@needs_promtool
def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    rule = default_rules().named("LossNotFinite")
    assert rule is not None
    path, _ = write_cases(tmp_path, rule, range(4))
    document = yaml.safe_load(path.read_text())
    first = document["tests"][0]["alert_rule_test"][-1]
    first["exp_alerts"] = (
        [] if first["exp_alerts"] else [{"exp_labels": {"severity": "critical", "run": "a"}}]
    )
    path.write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", str(path))[0] != 0
