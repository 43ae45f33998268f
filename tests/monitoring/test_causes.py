"""Restarts and recoveries by cause, their cost, and the latencies of the coordinator's nodes."""

import pytest
from tests.monitoring.scripted_log import T0_NS, ScriptedLog, a_plan

from paceline.events.schema import Timings
from paceline.monitoring.view.recoveries import Generations, cause_of_change, cause_of_restart
from paceline.monitoring.view.run_view import RunView
from paceline.plan.plan import Elastic


def metrics_by_cause(log: ScriptedLog, **plan: object) -> dict[str, dict[str, float]]:
    """By name, what each series reads; series are known by their labels but the run."""
    view = RunView(a_plan(**plan))  # type: ignore[arg-type]  # fields of a plan, by name
    for line in log.lines:
        view.take(line)
    results: dict[str, dict[str, float]] = {}
    for name, labels, value in view.samples():
        rest = ",".join(text for label, text in labels if label != "run")
        results.setdefault(name.removeprefix("paceline_"), {})[rest] = value
    return results


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("generation 1 was revoked: worker worker-1 was lost: killed by signal 9", "lost"),
        ("generation 1 was revoked: worker worker-1 left: killed by signal 9", "lost"),
        ("generation 1 was revoked: worker worker-1 left: done", "left"),
        ("worker-2 joined", "joined"),
        ("generation 1 was revoked: no reason was given", "other"),
    ],
)
def test_the_reason_of_a_new_generation_is_one_of_a_few_labels(why: str, cause: str) -> None:
    assert cause_of_change(why, is_new_session=False) == cause
    assert cause_of_change(why, is_new_session=True) == "resumed"


def test_the_reason_of_a_worker_restart_is_one_of_a_few_labels() -> None:
    assert cause_of_restart("killed by signal 9); it is replaced", is_new_session=False) == "killed"
    assert cause_of_restart("it ended with exit code 3); it is", is_new_session=False) == "failed"
    assert cause_of_restart(None, is_new_session=False) == "other"
    assert cause_of_restart(None, is_new_session=True) == "resumed"


def test_changes_restarts_and_lost_steps_of_an_elastic_run_are_counted() -> None:
    log = ScriptedLog()
    log.tell(0.1, "worker-0", "worker_started", pid=1, clock=0)
    log.tell(0.1, "worker-1", "worker_started", pid=2, clock=0)

    def enter(at_s: float, number: int, committed: int, why: str) -> None:
        fields = {"number": number, "rank": 0, "workers": "worker-0,worker-1", "committed": committed}
        log.tell(at_s, "worker-0", "generation_entered", why=why, **fields)

    enter(0.2, 1, 0, "the first 2 workers are here")
    log.tell(
        1.0, "launcher", "supervision", decision="worker-1 was lost (killed by signal 9); it is replaced"
    )
    log.tell(1.1, "worker-0", "generation_lost", number=1, committed=40, why="w")
    log.tell(1.2, "worker-1", "worker_started", pid=3, clock=0)
    enter(1.3, 2, 38, "generation 1 was revoked: worker worker-1 left: out of memory")
    result = metrics_by_cause(log, elastic=Elastic(workers=2, min_workers=1, max_workers=2))
    assert result["generation_changes_total"] == {
        "lost": 1, "left": 0, "joined": 0, "resumed": 0, "other": 0,
    }  # fmt: skip
    assert result["restarts_total"] == {"killed": 1, "failed": 0, "resumed": 0, "other": 0}
    assert result["worker_restarts_total"] == {"worker-0": 0, "worker-1": 1}
    assert result["lost_steps_total"] == {"": 2}, "of 40 steps the next generation had 38"


def test_a_resumed_run_and_a_restored_server_count_what_they_went_back() -> None:
    log = ScriptedLog()
    for who in ("worker-0", "worker-1"):
        log.tell(0.1, who, "worker_started", pid=1, clock=0)
        log.steps(who, 0, [0.2, 0.3, 0.4, 0.5])
    log.rows("server-0", "server", op="apply", at_ns=T0_NS, rank=0, staleness=0, gap=0, version=30)
    log.tell(1.0, "server-0", "server_restored", part=0, version=25, pid=7)
    log.tell(2.0, "launcher", "run_started", plan="p", launcher="local")
    log.tell(2.0, "launcher", "run_resumed", version=0, clocks="3,3")
    log.tell(2.1, "worker-0", "worker_started", pid=1, clock=0)
    result = metrics_by_cause(log)
    assert result["lost_steps_total"] == {"": 5 + 1}
    assert result["restarts_total"]["resumed"] == 1


def test_recoveries_of_the_last_hour_are_reported_by_their_p95() -> None:
    generations = Generations()
    for number, lasts_s in ((1, 0.0), (2, 70.0), (3, 1.0)):
        at_s = number * 1000.0
        generations.step_ended(at_s - 1, at_s)
        if number > 1:
            generations.lost(at_s)
        generations.entered(at_s + lasts_s, number, ["worker-0"], "w", 0)
        generations.step_ended(at_s + lasts_s, at_s + lasts_s)
    assert generations.recovery_p95_s(3100.0) == pytest.approx(1 + 0.95 * 69)
    assert generations.recovery_p95_s(6000.0) == 1.0, "the long one is more than an hour ago"
    assert generations.recovery_p95_s(9000.0) is None


def test_timings_are_one_line_and_add_up() -> None:
    timings = Timings()
    assert timings.quantile(0.5) is None
    timings.add(0.0007, 3)
    timings.add(9.0)
    assert timings.word() == "9.0021/3:3,15:1"
    again = Timings.read(timings.word())
    assert (again.counts, again.count) == (timings.counts, 4)
    assert 0.0005 < (again.quantile(0.5) or 0) <= 0.001
    assert again.quantile(0.99) == 5.0, "longer than the last bound: at least that"
    timings.add(0.3)
    assert timings.since(again).word() == "0.3/11:1"
    assert again.since(timings) is again, "a restarted node has counted all that it reports"
    assert Timings.read("0/").count == 0
    assert Timings.of([1, 2], 0.5) is None, "counted by other bounds"


def test_a_slow_commit_is_reported_for_five_minutes() -> None:
    log = ScriptedLog()
    words = ["0/", "0.1/4:100", "3.1/4:100,11:10", *["3.2/4:200,11:10"] * 40]
    slow = []
    for number, word in enumerate(words):
        at_ns = T0_NS + number * 10_000_000_000
        log.rows(
            "watch", "coordinators", at_ns=at_ns, address="a:1", node=1, role="leader", is_voter=True,
            leader=1, term=1, commit=number, applied=number, commits=word, elections=2, proposals_failed=1,
        )  # fmt: skip
        if number in (1, 2, 30, 42):
            slow.append(metrics_by_cause(log).get("coordinator_commit_p99_seconds", {}).get("1"))
    assert [None if s is None else s > 0.25 for s in slow] == [False, True, True, None]
    assert metrics_by_cause(log)["coordinator_elections_total"] == {"1": 2}
