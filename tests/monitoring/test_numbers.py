"""Rings, trends, rules and scores."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, PacelineError
from paceline.events import custom_metrics
from paceline.monitoring.alerts.engine import AlertEngine, State
from paceline.monitoring.alerts.rule_file import default_rules, read_rules
from paceline.monitoring.alerts.status import compute_health
from paceline.monitoring.metrics.catalog import Sample, labels_of
from paceline.monitoring.metrics.provisioning import expression
from paceline.monitoring.metrics.series import Ring, Series, downsample
from paceline.monitoring.metrics.statistics import Trend, change_point, describe_trend, fit_trend, theil_sen


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=400), st.integers(1, 50))
def test_no_peak_is_lost_however_few_points_are_requested(values: list[float], points: int) -> None:
    series = Series(unit="", group="")
    for at, value in enumerate(values):
        series.add(float(at), value)
    content = series.read(0, len(values), points)
    assert len(content) <= points
    assert min(low for _, low, _, _ in content) == min(values)
    assert max(high for _, _, high, _ in content) == max(values)


def test_a_ring_forgets_the_oldest_and_leaves_gaps_out() -> None:
    ring = Ring(1.0, 10)
    for at in range(100):
        if at != 95:
            ring.add(at, at)
    assert len(ring) <= 13
    assert 95.0 not in [t for t, *_ in ring.between(90, 99)]
    ring.add(1e9, 1.0)
    assert len(ring) == 1, "after a long gap it starts over instead of filling memory"


def test_two_days_of_seconds_fit_and_the_old_ones_get_coarser() -> None:
    series = Series(unit="", group="", is_fast=True)
    for at in range(0, 48 * 3600, 5):
        series.add(float(at), math.sin(at))
    assert len(series.read(0, 48 * 3600, 10**6)) >= 17_000
    assert series.read(47.9 * 3600, 48 * 3600, 1000)[0][0] >= 47.9 * 3600 - 1
    assert downsample([], 5) == []


def test_a_few_wild_values_do_not_bend_the_slope() -> None:
    rng = random.Random(0)
    points = [(float(t), 2.0 * t + (1e6 if rng.random() < 0.1 else rng.uniform(-1, 1))) for t in range(60)]
    assert theil_sen(points) == pytest.approx(2.0, rel=0.1)


def test_a_step_down_is_located_and_described(wording: Wording) -> None:
    rng = random.Random(1)
    points = [(float(t), (100.0 if t < 180 else 82.0) + rng.uniform(-1, 1)) for t in range(300)]
    trend = fit_trend(points)
    assert trend is not None
    assert trend.change_s == pytest.approx(180, abs=3)
    wording(describe_trend("throughput", trend, "12:04:31", "worker-3 slowed"))


def test_noise_alone_is_no_change(wording: Wording) -> None:
    rng = random.Random(2)
    assert sum(change_point([100 + rng.gauss(0, 1) for _ in range(60)]) is not None for _ in range(50)) <= 5
    steady = fit_trend([(float(t), 5.0) for t in range(20)])
    assert steady is not None
    wording(describe_trend("loss", steady, None, None))


def test_nothing_falls_by_more_than_all_of_it(wording: Wording) -> None:
    wording(describe_trend("loss", Trend(-1.0, -2.18, None, None), None, None))
    wording(describe_trend("loss", Trend(-1.0, -0.3, None, None), None, None))


RULE = """
rules:
  - name: Hot
    all: [{metric: paceline_gpu_temperature_celsius, above: 80}]
    by: [run, gpu]
    for: 10s
    clear_when: {metric: paceline_gpu_temperature_celsius, below: 70}
"""


def hot(value: float) -> list[Sample]:
    return [
        Sample("paceline_gpu_temperature_celsius", labels_of({"run": "a", "node": "n", "gpu": "0"}), value)
    ]


def test_an_alert_waits_fires_once_stays_while_not_cleared_and_ends() -> None:
    engine = AlertEngine(read_rules(RULE, "test"))
    story = []
    for at, value in enumerate([60, 85, 85, 85, 75, 75, 85, 75, 69, 75]):
        story += [(t.at_s, str(t.to)) for t in engine.evaluate(at * 5.0, hot(value))]
    assert story == [(5.0, "pending"), (15.0, "firing"), (40.0, "resolved")]


def test_an_alert_that_ends_before_its_time_never_fired() -> None:
    engine = AlertEngine(read_rules(RULE, "test"))
    made = [t.to for at, value in enumerate([85, 60]) for t in engine.evaluate(at * 5.0, hot(value))]
    assert made == [State.PENDING, State.CANCELLED]
    assert engine.resolved == []


def test_health_is_never_a_bare_number(wording: Wording) -> None:
    engine = AlertEngine(default_rules())
    run = labels_of({"run": "a"})
    quiet = compute_health(engine.active, has_data=True, summaries={})
    assert quiet.arithmetic == "100 = 100"
    assert compute_health([], has_data=False, summaries={}).to_dict()["score"] is None
    for at in range(0, 20, 5):
        engine.evaluate(float(at), [Sample("paceline_coordinator_has_leader", run, 0.0)])
    bad = compute_health(
        engine.active, has_data=True, summaries={engine.active[0].fingerprint: "there is no leader"}
    )
    assert bad.arithmetic.startswith("20 = 100 − 30 ")
    wording(bad.arithmetic)
    assert bad.components["coordinator"] == 70


ONE = "rules:\n  - name: A\n    all: [{metric: paceline_workers, %s}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "rules: [{name: A, all: [{metric: nope, above: 1}]}]",
        "rules: [{name: A, all: [{metric: paceline_workers}]}]",
        "rules: [{name: A, all: [{metric: paceline_workers, reduce: avg, above: 1}]}]",
        "rules: [{name: A, all: [], any: []}]",
        "rules: [{name: A, severity: bad, all: [{metric: paceline_workers, above: 1}]}]",
        "rules: [{name: A, for: soon, all: [{metric: paceline_workers, above: 1}]}]",
        "rules: [{name: A, colour: red, all: [{metric: paceline_workers, above: 1}]}]",
        "notifiers: [{kind: pigeon}]",
        "notifiers: [{kind: webhook}]",
        "a: : b",
        "version: 2",
        "defaults: perhaps",
        "repeat: 1h\nrepeat: 2h",
        "notifiers: [{kind: smtp, host: h, from: a, to: b, user: u}]",
        "notifiers: [{kind: webhook, url: u, port: 3}]",
        "notifiers: [{kind: webhook, url: u, url_file: f}]",
        "notifiers: [{kind: webhook, url: u, format: fax}]",
        "notifiers: [{kind: terminal}, {kind: terminal}]",
        "notifiers: [{kind: terminal, most_per_minute: 0}]",
        "notifiers: [{kind: command, command: 'a \"b'}]",
        "inhibit: [{when: Missing, mutes: [None]}]",
        ONE % "where: {colour: red}, above: 1",
        ONE % "reduce: quantile, window: 5m, above: 1",
        ONE % "reduce: quantile, quantile: 95, window: 5m, above: 1",
        ONE % "reduce: forecast, window: 5m, above: 1",
        ONE % "above: {times: much, metric: paceline_workers}",
        ONE % "above: {metric: paceline_workers, windw: 1m}",
        ONE % "above: 1" + "    by: [node]\n",
        ONE % "above: 1" + "    summary: '{worker}'\n",
        ONE % "above: 1" + "    summary: '{value.real}'\n",
        ONE % "above: 1" + "    summary: 'half {'\n",
        "rules: [{name: A, all: [{metric: paceline_step_duration_seconds, above: 1}]}]",
    ],
)
def test_a_mistake_in_rules_is_reported_with_a_fix(text: str, wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        read_rules(text, "mine.yaml")
    assert all(
        problem.hint and str(problem.where).startswith("mine.yaml") for problem in caught.value.problems
    )


def test_a_mistake_is_reported_with_its_line_and_without_an_address() -> None:
    text = "version: 1\nrules:\n  - name: A\n    all:\n      - {metric: paceline_workers, above: 1}\n"
    text += "    for: soon\nnotifiers: ['https://hooks/SECRET']\n"
    with pytest.raises(ConfigError) as caught:
        read_rules(text, "mine.yaml")
    assert [p.where for p in caught.value.problems] == ["mine.yaml:6", "mine.yaml:7"]
    assert "SECRET" not in str([(p.what, p.hint) for p in caught.value.problems])


def test_a_label_with_quotes_stays_a_label_in_prometheus() -> None:
    text = "rules: [{name: A, all: [{metric: paceline_custom, where: {name: 'a\"b\\c'}, above: 1}]}]"
    (rule,) = read_rules(text, "mine").rules
    assert expression(rule) == 'paceline_custom{name="a\\"b\\\\c"} > 1'


def test_own_rules_come_on_top_of_the_default_ones() -> None:
    text = (
        "defaults: true\nrules: [{name: WorkerDown, all: [{metric: paceline_worker_up, equals: 0}], for: 1s}]"
    )
    mine = read_rules(text, "mine")
    assert len(mine.rules) == len(default_rules().rules)
    down = mine.named("WorkerDown")
    assert down is not None
    assert down.hold_s == 1.0


def test_a_task_reports_its_own_metrics_up_to_a_limit(wording: Wording) -> None:
    custom_metrics.recorded.clear()
    for i in range(100):
        custom_metrics.metric("one", i)
    rows = custom_metrics.rows_of_step(7, 1)
    assert [row.value for row in rows[:3]] == [0.0, 1.0, 2.0]
    assert (len(rows), rows[-1].name, rows[-1].value) == (65, custom_metrics.DROPPED, 36.0)
    assert custom_metrics.rows_of_step(8, 2) == []
    with wording.raises(PacelineError):
        custom_metrics.metric("no spaces", 1)
