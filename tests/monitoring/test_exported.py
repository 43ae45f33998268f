"""Every exported metric is in the catalogue, valid for Prometheus, and documented."""

import json
from pathlib import Path

import yaml
from docs.runbook_pages import runbooks
from tests.fixtures.processes.prometheus import needs_promtool, promtool
from tests.monitoring.scripted_log import T0_NS, ScriptedLog, a_plan, steady_log

from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.alerts.rules import Severity
from paceline.monitoring.metrics.catalog import BY_NAME, FAMILIES, MetricKind
from paceline.monitoring.metrics.prometheus import TOOK, exposition
from paceline.monitoring.metrics.provisioning import dashboards, expressions, metrics_in, rules_file
from paceline.monitoring.view.run_view import RunView
from paceline.plan.plan import StrategyOptions

ROOT = Path(__file__).parents[2]


def full_view() -> RunView:
    """A run that has everything: servers, GPUs, a coordinator, generations, checkpoints, own numbers."""
    log = steady_log(20, 2)
    at_ns = T0_NS + 20_000_000_000
    log.rows(
        "watch", "gpus", at_ns=at_ns, node="here", gpu=0, uuid="u", name="n", utilization=0.5,
        memory_used_bytes=1, memory_size_bytes=2, temperature_c=50, power_w=100,
        power_limit_w=200, energy_j=5, is_throttled=True,
        uncorrected_errors=0,
    )  # fmt: skip
    for before_ns, commits in ((1_000_000_000, "0/"), (0, "0.01/4:6")):
        log.rows(
            "watch", "coordinators", at_ns=at_ns - before_ns, address="a:1", node=1, role="leader",
            is_voter=True, leader=1, term=3, commit=7, applied=7, lag=0, is_connected=True,
            round_trip_s=0.001, commits=commits, fsyncs="0.01/3:9", round_trips="2=0.01/4:6;3=0.02/5:6",
            elections=1, proposals_failed=0,
        )  # fmt: skip
    log.rows(
        "server-0", "server", at_ns=at_ns, op="apply", rank=0, step=1, position=1, version=1, read_version=0,
        staleness=1, gap=1, age_ns=1, rate_factor=1.0,
    )  # fmt: skip
    log.rows("server-0", "server", at_ns=at_ns, op="discard", rank=0, staleness=9, gap=9)
    log.rows("worker-0", "custom", at_ns=at_ns, step=1, name="sharpness", value=1.5)
    log.rows(
        "watch",
        "processes",
        at_ns=at_ns,
        worker="worker-0",
        pid=1,
        memory_bytes=5,
        cpu_share=0.5,
        is_stopped=False,
    )
    log.tell(20.0, "worker-0", "worker_started", pid=1, clock=0, node="here", tokens_per_sample=16)
    log.tell(20.0, "operator", "fault_injected", fault="pause", target="worker-1", by="x")
    log.rows(
        "worker-0", "links", at_ns=at_ns, node="here", connections=1, round_trip_s=0.001, slowest_s=0.002,
        sent=5, sent_again=0,
    )  # fmt: skip
    for number in (1, 2):
        log.tell(
            20.1, "worker-0", "generation_entered",
            number=number, rank=0, workers="worker-0,worker-1", committed=1, why="w",
        )  # fmt: skip
        log.tell(20.2, "worker-0", "generation_lost", number=number, committed=1, why="w")
    log.tell(
        20.3, "worker-0", "generation_entered", number=3, rank=0, workers="worker-0", committed=1, why="w"
    )
    log.steps("worker-0", 200, [20.4], norms=1.5)
    log.tell(20.5, "worker-0", "checkpoint", path="p", step=1, bytes=9, write_s=0.1, snapshot_ns=5)
    log.tell(20.6, "worker-0", "evaluated", step=1, metrics='{"valid_loss": 0.5}')
    log.tell(20.7, "herald", "notified", notifier="w", outcome="sent", alerts=1)
    log.second(
        21, cpu_share=0.1, memory_used_bytes=1, memory_size_bytes=2, disk_free_bytes=3, disk_size_bytes=4,
        net_in_bytes=5, net_out_bytes=6, disk_read_bytes=7, disk_written_bytes=8, tcp_sent=9,
        tcp_retransmitted=1,
    )  # fmt: skip
    view = RunView(a_plan(mode="ssp", checkpoint_every=5, lr=0.1, strategy=StrategyOptions(staleness=2)))
    for line in log.lines:
        view.take(line)
    return view


def test_every_family_of_the_catalogue_is_exported_where_its_number_is_known() -> None:
    view = full_view()
    exported = {s.name for s in view.samples()} | {name for name, _, _ in view.metrics().histograms()}
    assert exported | {TOOK} == set(BY_NAME)
    page = exposition(view).decode()
    assert all(f"# TYPE {name.removesuffix('_total')}" in page for name in BY_NAME)


def test_every_sample_has_the_labels_of_its_family() -> None:
    for sample in full_view().samples():
        assert {name for name, _ in sample.labels} == set(BY_NAME[sample.name].labels), sample.name


def test_only_what_is_known_is_exported() -> None:
    view = RunView(a_plan())
    for line in ScriptedLog().lines:
        view.take(line)
    names = {sample.name for sample in view.samples()}
    assert "paceline_gpu_utilization_ratio" not in names
    assert "paceline_train_loss" not in names


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    code, text = promtool("check", "metrics", told=exposition(full_view()))
    assert (code, text) == (0, "")


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(rules_file(default_rules()))
    code, text = promtool("check", "rules", str(path))
    assert code == 0, text
    assert f"{len(default_rules().rules)} rules found" in text


@needs_promtool
def test_every_panel_has_a_valid_prometheus_query(tmp_path: Path) -> None:
    groups = [
        {"record": f"panel:{i}", "expr": text.replace("$run", "a")} for i, text in enumerate(expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": groups}]}))
    code, message = promtool("check", "rules", str(path))
    assert code == 0, message


def test_every_panel_and_rule_refers_to_an_exported_metric() -> None:
    exprs = [rule["expr"] for rule in yaml.safe_load(rules_file(default_rules()))["groups"][0]["rules"]]
    assert metrics_in([*expressions(), *exprs]) <= set(BY_NAME)
    for name, dashboard in dashboards().items():
        assert json.loads(json.dumps(dashboard))["panels"], name


def test_every_alert_has_a_description_and_a_page() -> None:
    rules = default_rules().rules
    assert {rule.severity for rule in rules} == set(Severity)
    for rule in rules:
        assert rule.summary, rule.name
        assert rule.description, rule.name
        page = (ROOT / rule.runbook).read_text()
        assert page.startswith(f"# {rule.name}\n"), rule.name
        for heading in ("## What it means", "## Check", "## What to do"):
            assert heading in page, f"{rule.name} has no {heading}"


def test_the_pages_of_alerts_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "runbooks").iterdir()}
    assert written == runbooks(), "docs/runbooks is out of date: run `make docs`"


def test_counters_are_called_so_and_nothing_else_is() -> None:
    for family in FAMILIES:
        assert (family.kind is MetricKind.COUNTER) == family.name.endswith("_total"), family.name
