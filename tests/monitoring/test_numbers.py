"""Rings, trends, rules and scores."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_no_peak_is_lost_however_few_points_are_asked_for(values: list[float], points: int) -> None:
    series = Series(unit="", group="")
    for at, value in enumerate(values):
        series.add(float(at), value)
    found = series.read(0, len(values), points)
    assert len(found) <= points
    assert min(low for _, low, _, _ in found) == min(values)
    assert max(high for _, _, high, _ in found) == max(values)


def test_a_ring_forgets_the_oldest_and_leaves_gaps_out() -> None:
    ring = Ring(1.0, 10)
    for at in range(100):
        if at != 95:
            ring.add(at, at)
    assert len(ring) <= 13
    assert 95.0 not in [t for t, *_ in ring.between(90, 99)]
    ring.add(1e9, 1.0)
    assert len(ring) == 1, "after a long silence it begins anew instead of filling memory"


def test_two_days_of_seconds_fit_and_the_old_ones_get_coarser() -> None:
    series = Series(unit="", group="", is_fast=True)
    for at in range(0, 48 * 3600, 5):
        series.add(float(at), math.sin(at))
    assert len(series.read(0, 48 * 3600, 10**6)) >= 17_000
    assert series.read(47.9 * 3600, 48 * 3600, 1000)[0][0] >= 47.9 * 3600 - 1
    assert downsample([], 5) == []


def test_a_few_wild_values_do_not_bend_the_slope() -> None:
    dice = random.Random(0)
    points = [(float(t), 2.0 * t + (1e6 if dice.random() < 0.1 else dice.uniform(-1, 1))) for t in range(60)]
    assert theil_sen(points) == pytest.approx(2.0, rel=0.1)


def test_a_step_down_is_found_where_it_happened_and_told_in_words() -> None:
    dice = random.Random(1)
    points = [(float(t), (100.0 if t < 180 else 82.0) + dice.uniform(-1, 1)) for t in range(300)]
    found = fit_trend(points)
    assert found is not None
    assert found.change_s == pytest.approx(180, abs=3)
    words = describe_trend("throughput", found, "12:04:31", "worker-3 slowed")
    assert words == "throughput fell 18 % at 12:04:31, when worker-3 slowed"


def test_noise_alone_is_no_change() -> None:
    dice = random.Random(2)
    assert sum(change_point([100 + dice.gauss(0, 1) for _ in range(60)]) is not None for _ in range(50)) <= 5
    steady = fit_trend([(float(t), 5.0) for t in range(20)])
    assert steady is not None
    assert describe_trend("loss", steady, None, None) == "loss is steady"


def test_nothing_falls_by_more_than_all_of_it() -> None:
    assert describe_trend("loss", Trend(-1.0, -2.18, None, None), None, None) == (
        "loss falls to a fraction of what it was in this time"
    )
    assert (
        describe_trend("loss", Trend(-1.0, -0.3, None, None), None, None)
        == "loss falls slowly, 30 % in this time"
    )


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


def test_health_is_never_a_bare_number() -> None:
    engine = AlertEngine(default_rules())
    run = labels_of({"run": "a"})
    quiet = compute_health(engine.active, has_data=True, summaries={})
    assert quiet.arithmetic == "100 = 100"
    assert compute_health([], has_data=False, summaries={}).told()["score"] is None
    for at in range(0, 20, 5):
        engine.evaluate(float(at), [Sample("paceline_coordinator_has_leader", run, 0.0)])
    bad = compute_health(
        engine.active, has_data=True, summaries={engine.active[0].fingerprint: "nobody leads"}
    )
    assert bad.arithmetic == "20 = 100 − 30 nobody leads, at most 20 while something is critical"
    assert bad.components["coordinator"] == 70


ONE = "rules:\n  - name: A\n    all: [{metric: paceline_workers, %s}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must be a mapping"),
        ("rules: [{name: A, all: [{metric: nope, above: 1}]}]", "no metric 'nope'"),
        ("rules: [{name: A, all: [{metric: paceline_workers}]}]", "needs one of above"),
        ("rules: [{name: A, all: [{metric: paceline_workers, reduce: avg, above: 1}]}]", "needs a window"),
        ("rules: [{name: A, all: [], any: []}]", "needs one of all and any"),
        (
            "rules: [{name: A, severity: bad, all: [{metric: paceline_workers, above: 1}]}]",
            "severity is 'bad'",
        ),
        ("rules: [{name: A, for: soon, all: [{metric: paceline_workers, above: 1}]}]", "no duration"),
        (
            "rules: [{name: A, colour: red, all: [{metric: paceline_workers, above: 1}]}]",
            "unknown key 'colour'",
        ),
        ("notifiers: [{kind: pigeon}]", "kind is 'pigeon'"),
        ("notifiers: [{kind: webhook}]", "needs url"),
        ("a: : b", "no YAML"),
        ("version: 2", "version is 2"),
        ("defaults: perhaps", "defaults is 'perhaps'"),
        ("repeat: 1h\nrepeat: 2h", "repeat is given twice"),
        ("notifiers: [{kind: smtp, host: h, from: a, to: b, user: u}]", "user and password_file, or neither"),
        ("notifiers: [{kind: webhook, url: u, port: 3}]", "has no port"),
        ("notifiers: [{kind: webhook, url: u, url_file: f}]", "needs url or url_file"),
        ("notifiers: [{kind: webhook, url: u, format: fax}]", "format is 'fax'"),
        ("notifiers: [{kind: terminal}, {kind: terminal}]", "two notifiers terminal"),
        ("notifiers: [{kind: terminal, most_per_minute: 0}]", "from 1 on"),
        ("notifiers: [{kind: command, command: 'a \"b'}]", "cannot be split into words"),
        ("inhibit: [{when: Nobody, mutes: [None]}]", "no rule 'Nobody'"),
        (ONE % "where: {colour: red}, above: 1", "unknown key 'colour'"),
        (ONE % "reduce: quantile, window: 5m, above: 1", "needs quantile"),
        (ONE % "reduce: quantile, quantile: 95, window: 5m, above: 1", "from 0 to 1"),
        (ONE % "reduce: forecast, window: 5m, above: 1", "needs ahead"),
        (ONE % "above: {times: much, metric: paceline_workers}", "times is 'much'"),
        (ONE % "above: {metric: paceline_workers, windw: 1m}", "unknown key 'windw'"),
        (ONE % "above: 1" + "    by: [node]\n", "by names the label 'node'"),
        (ONE % "above: 1" + "    summary: '{worker}'\n", "{worker}, which nothing fills in"),
        (ONE % "above: 1" + "    summary: '{value.real}'\n", "which nothing fills in"),
        (ONE % "above: 1" + "    summary: 'half {'\n", "which nothing fills in"),
        ("rules: [{name: A, all: [{metric: paceline_step_duration_seconds, above: 1}]}]", "is a histogram"),
    ],
)
def test_what_is_wrong_with_rules_is_said_with_a_way_out(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_rules(text, "mine.yaml")
    assert all(
        problem.hint and str(problem.where).startswith("mine.yaml") for problem in caught.value.problems
    )


def test_what_is_wrong_is_told_with_its_line_and_names_no_address() -> None:
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


def test_a_task_tells_its_own_numbers_and_only_so_many() -> None:
    custom_metrics.recorded.clear()
    for i in range(100):
        custom_metrics.metric("one", i)
    rows = custom_metrics.rows_of_step(7, 1)
    assert [row.value for row in rows[:3]] == [0.0, 1.0, 2.0]
    assert (len(rows), rows[-1].name, rows[-1].value) == (65, custom_metrics.DROPPED, 36.0)
    assert custom_metrics.rows_of_step(8, 2) == []
    with pytest.raises(PacelineError, match="cannot be the name"):
        custom_metrics.metric("no spaces", 1)
