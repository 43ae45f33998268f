"""A view shows what the log says, live and in replay alike."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.monitoring.scripted_log import T0_NS, UNIX_S, ScriptedLog, a_plan, steady_log

from paceline.core.clock import unix_now_s
from paceline.core.errors import PacelineError
from paceline.launchers.supervision import Replace, RestartPolicy
from paceline.monitoring.alerts.delivery import silence_alerts
from paceline.monitoring.alerts.engine import MAX_VALUES
from paceline.monitoring.view.feed import Feed, Replay
from paceline.monitoring.view.figures import Figures
from paceline.monitoring.view.run_track import _LOST
from paceline.monitoring.view.run_view import RunView
from paceline.plan.codec import dumps
from paceline.plan.plan import Elastic, EventDetail


def shot(view: RunView, now_ns: int | None = None) -> Any:  # Any: JSON, looked into by tests
    return view.snapshot(now_ns)


def view_of(log: ScriptedLog, workers: int = 2, **more: object) -> RunView:
    view = RunView(a_plan(workers, **more))  # type: ignore[arg-type]  # fields of a plan, by name
    for line in log.lines:
        view.take(line)
    return view


def test_throughput_progress_and_loss_follow_from_the_steps() -> None:
    alerts = shot(view_of(steady_log(30)))
    assert alerts["state"] == "training"
    assert alerts["throughput"]["samples_per_s"] == pytest.approx(160)
    assert alerts["progress"]["step"] == 300
    assert alerts["loss"]["last"] == pytest.approx(1 / 30)
    worker = alerts["workers"][0]
    assert worker["step_p50_s"] == pytest.approx(0.012)
    assert worker["phases"]["comm"] == pytest.approx(2 / 12, abs=1e-6)
    # 8000 bytes both ways in 2 ms.
    assert worker["bandwidth_bytes_per_s"] == pytest.approx(4e6)


def test_every_prefix_of_a_log_gives_the_same_view_live_and_in_replay(tmp_path: Path) -> None:
    log = steady_log(12, 3, slow="worker-2")
    log.tell(12.4, "launcher", "run_finished", outcome="finished")
    log.write(tmp_path, a_plan(3))
    replay, live = Replay(tmp_path), RunView(a_plan(3))
    for moment in range(27):
        replay.seek(moment / 2)
        for line in log.lines[live.seq : replay.view.seq]:
            live.take(line)
        now_ns = replay.now_ns(moment / 2)
        live.advance(now_ns)
        assert json.dumps(shot(live, now_ns)) == json.dumps(shot(replay.view, now_ns))
    assert live.seq == len(log.lines)
    feed = Feed(tmp_path)
    feed.read()
    assert json.dumps(shot(feed.view, feed.now_ns())) == json.dumps(shot(live))


def test_going_back_in_a_replay_shows_what_was_then(tmp_path: Path) -> None:
    steady_log(10).write(tmp_path, a_plan())
    replay = Replay(tmp_path)
    replay.seek(4.0)
    before = json.dumps(shot(replay.view))
    replay.seek(9.0)
    replay.seek(4.0)
    assert json.dumps(shot(replay.view)) == before
    assert replay.duration_s == pytest.approx(10.0)


def test_a_slow_worker_is_found_explained_and_alerted(wording: Wording) -> None:
    view = view_of(steady_log(100, 4, slow="worker-3"), 4)
    alerts = shot(view)
    worker = alerts["workers"][3]
    assert worker["state"] == "slow"
    assert worker["relative_speed"] == pytest.approx(0.25)
    wording(worker["why_slow"])
    alert = alerts["alerts"][0]
    assert (alert["rule"], alert["state"]) == ("WorkerStraggling", "firing")
    assert alert["labels"]["worker"] == "worker-3"
    assert len(alert["values"]) == MAX_VALUES  # the newest, for a picture beside the threshold
    assert all(value < alert["threshold"] for _, value in alert["values"])
    health = alerts["health"]
    assert health["arithmetic"].startswith(f"{health['score']} = 100 − 20 worker-3 ")


def test_what_a_node_was_is_remembered() -> None:
    log = steady_log(2)
    for second, node, role in (
        (1, 1, "follower"),
        (2, 1, "candidate"),
        (3, 1, "leader"),
        (4, 1, "leader"),
        (5, None, ""),
    ):
        log.rows("watch", "coordinators", at_ns=T0_NS + second * 10**9, address="a:1", node=node, role=role)
    (reported,) = shot(view_of(log))["coordinator"]["nodes"]
    assert reported["roles"] == [[1, "follower"], [2, "candidate"], [3, "leader"], [5, "down"]]


def test_silence_is_in_the_log_and_shown(tmp_path: Path) -> None:
    log = steady_log(100, 4, slow="worker-3")
    log.write(tmp_path, a_plan(4))
    silence_alerts(tmp_path, for_s=1e12, rule="WorkerStraggling", comment="known")
    feed = Feed(tmp_path)
    feed.read()
    assert shot(feed.view)["alerts"][0]["silenced"] is True


def test_an_injected_fault_is_marked() -> None:
    log = steady_log(100, 4, slow="worker-3")
    log.tell(60.0, "operator", "fault_injected", fault="slow", target="worker-3", by="me", until_ns=None)
    view = view_of(log, 4)
    assert shot(view)["alerts"][0]["injected"] is True
    figures = Figures(view.track, 61.0)
    assert figures.is_injected({"run": "x"})  # the run stands still, say
    assert not figures.is_injected({"run": "x", "worker": "worker-2"})
    assert not figures.is_injected({"run": "x", "node": "here"})  # its disk was not filled


def test_a_log_that_falls_silent_stalls_the_run() -> None:
    view = view_of(steady_log(20))
    view.advance(T0_NS + 120 * 1_000_000_000)
    reported = {a["rule"]: a for a in shot(view, T0_NS + 120 * 1_000_000_000)["alerts"]}
    assert reported["MetricsMissing"]["state"] == "firing"
    assert reported["TrainingStalled"]["inhibited_by"] == "MetricsMissing"
    assert shot(view)["health"]["cap"] == 40


def test_generations_split_a_recovery_by_stage() -> None:
    log = ScriptedLog()
    for who in ("worker-0", "worker-1"):
        log.tell(0.1, who, "worker_started", pid=1, clock=0)
        log.tell(
            0.2,
            who,
            "generation_entered",
            number=1,
            rank=0,
            workers="worker-0,worker-1",
            committed=0,
            why="a",
        )
    log.steps("worker-0", 0, [1.0])
    log.tell(
        1.5,
        "launcher",
        "supervision",
        decision="worker-1 was lost (killed by signal 9); it is replaced in 1 s",
    )
    log.tell(1.6, "worker-0", "generation_lost", number=1, committed=1, why="b")
    log.tell(
        1.8, "worker-0", "generation_entered", number=2, rank=0, workers="worker-0", committed=1, why="c"
    )
    log.steps("worker-0", 1, [2.0])
    view = view_of(log, elastic=Elastic(workers=2, min_workers=1, max_workers=2))
    alerts = shot(view)
    assert alerts["workers"][1]["state"] == "lost"
    recovery = alerts["generations"][1]["recovery"]
    stages = {name: round(value, 6) for name, value in recovery.items()}
    assert stages == {
        "detect_s": 0.488,
        "stop_s": 0.1,
        "reform_s": 0.2,
        "restore_s": 0.0,
        "resume_s": 0.212,
        "total_s": 1.0,
    }


def test_a_loss_reported_by_the_supervisor_is_read() -> None:
    rule = RestartPolicy(20, 1, 30.0)
    decision = rule.lost("worker-3", "killed by signal 9", 1.0, living=2, jitter=0.5)
    assert isinstance(decision, Replace)
    match = _LOST.match(decision.reason)
    assert match is not None
    assert match[1] == "worker-3"


def test_a_resumed_run_counts_from_where_it_was_and_after_a_reboot_time_continues() -> None:
    log = steady_log(5)
    log.tell(5.1, "launcher", "run_finished", outcome="failed")
    # The machine rebooted: its clock counts from another moment. An hour has passed.
    header = json.loads(log.lines[0])
    log.tell(
        -1000.0, "launcher", "run_started", plan="p", launcher="local", unix_s=header["started_unix_s"] + 3600
    )
    log.tell(-999.9, "launcher", "run_resumed", version=40, clocks="40,40")
    log.steps("worker-0", 40, [-999.0])
    alerts = shot(view_of(log))
    assert alerts["state"] == "training"
    assert alerts["progress"]["step"] == 40
    assert alerts["now_s"] == pytest.approx(3601.012, abs=0.01)


def test_a_loss_that_is_no_number_is_plain_json_and_an_alarm() -> None:
    log = steady_log(10)
    log.steps("worker-0", 100, [10.1], loss=float("nan"))
    log.second(11)
    alerts = shot(view_of(log))
    assert json.loads(json.dumps(alerts, allow_nan=False))["loss"]["last"] == "nan"
    assert [a["rule"] for a in alerts["alerts"]] == ["LossNotFinite"]


def test_a_run_without_events_cannot_be_watched(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "plan.json").write_text(dumps(a_plan(events=EventDetail.OFF)))
    with wording.raises(PacelineError):
        Feed(tmp_path)


def test_a_damaged_line_is_skipped_and_named_and_a_damaged_header_is_one_clear_error(
    tmp_path: Path, wording: Wording
) -> None:
    log = steady_log(2)
    log.lines.append('{"kind":"steps","who":"worker-0","rows":1,')
    log.write(tmp_path, a_plan())
    feed = Feed(tmp_path)
    feed.read()
    assert (feed.torn.count, feed.torn.first) == (1, [11])
    log.lines[0] = "{}"
    log.write(tmp_path, a_plan())
    with wording.raises(PacelineError):
        Feed(tmp_path).read()


def test_a_server_is_no_worker() -> None:
    log = steady_log(3)
    log.rows("watch", "processes", at_ns=T0_NS, worker="server-0", pid=1, memory_bytes=5, cpu_share=0.5)
    assert [w["worker"] for w in shot(view_of(log))["workers"]] == ["worker-0", "worker-1"]


def test_series_and_timelines_answer_for_a_window() -> None:
    view = view_of(steady_log(30))
    exported: Any = view.series(["throughput", "loss", "worker.worker-1.speed"], from_s=10, to_s=20)
    assert set(exported["data"]) == {"throughput", "loss", "worker.worker-1.speed"}
    assert all(10 <= point[0] <= 20 for points in exported["data"].values() for point in points)
    lanes: Any = view.timeline(28.0, 30.0)["lanes"]
    assert [len(lane["rows"]) for lane in lanes] == [20, 20]
    assert view.events_since(0)[0]["kind"] == "run_started"
    assert view.steps_since(view.seq) == []


def test_a_gradient_that_grows_tenfold_is_an_alert_and_one_that_is_no_number_is_counted() -> None:
    log, view = ScriptedLog(), RunView(a_plan(1))
    for second in range(1, 41):
        norms: list[float | None] = [1.0, None, 2.0] if second < 35 else [1.0, 25.0, None]
        log.steps("worker-0", (second - 1) * 3, [second - 0.9, second - 0.6, second - 0.3], norms=norms)
        log.second(second)
    log.steps("worker-0", 120, [40.1], norms=float("nan"))
    for line in log.lines:
        view.take(line)
    fired = [t for t in view.transitions if t.alert.rule.name == "GradientExploding"]
    assert [(str(t.to), dict(t.alert.labels)["worker"], t.alert.value) for t in fired] == [
        ("firing", "worker-0", 25.0)
    ]
    samples = {s.name: s.value for s in view.samples()}
    assert samples["paceline_gradient_norm"] == 25.0
    assert samples["paceline_nonfinite_gradients_total"] == 1.0


def test_a_resumed_elastic_run_restarts_its_generations_and_the_time_between_is_no_recovery() -> None:
    log = ScriptedLog()

    def enter(at_s: float, number: int) -> None:
        fields = {"number": number, "rank": 0, "workers": "worker-0", "committed": 1, "why": "w"}
        log.tell(at_s, "worker-0", "generation_entered", **fields)

    enter(1.0, 1)
    log.tell(2.0, "worker-0", "generation_lost", number=1, committed=1, why="w")
    enter(3.0, 2)
    log.steps("worker-0", 0, [3.1])
    log.tell(4.0, "worker-0", "generation_lost", number=2, committed=1, why="stop")
    log.tell(4.1, "launcher", "run_finished", outcome="stopped")
    log.tell(100.0, "launcher", "run_started", unix_s=1100.0)
    enter(101.0, 1)
    log.steps("worker-0", 1, [101.2])
    generations = shot(view_of(log, elastic=Elastic(workers=2, min_workers=1, max_workers=2)))["generations"]
    assert [g["number"] for g in generations] == [1, 2, 1]
    assert [g["recovery"] is not None for g in generations] == [False, True, False]


def test_rows_for_viewers_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ScriptedLog()
    for number in range(3):
        log.steps("worker-0", number * 60, [number + i / 100 for i in range(60)])
    monkeypatch.setattr("paceline.monitoring.view.run_track.BATCHED_ROWS", 130)
    assert [len(batch) for batch in view_of(log, 1).track.batches] == [60, 60]


def _begun_at(log: ScriptedLog, unix_s: float) -> None:
    header, first = json.loads(log.lines[0]), json.loads(log.lines[1])
    assert first["kind"] == "run_started"
    log.lines[0] = json.dumps({**header, "started_unix_s": unix_s})
    log.lines[1] = json.dumps({**first, "unix_s": unix_s}, separators=(",", ":"))


def test_a_calendar_that_is_wrong_here_is_found_out_by_fresh_lines(tmp_path: Path) -> None:
    log = steady_log(3)
    began_s = unix_now_s() - 600  # the run's machine is ten minutes behind this one
    _begun_at(log, began_s)
    log.write(tmp_path, a_plan())
    feed = Feed(tmp_path)
    feed.read()
    assert feed.now_ns() - T0_NS > 500e9, "a log that has long been silent is old, as far as one can know"
    fresh = ScriptedLog()
    fresh.lines.clear()
    fresh.second(4)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(fresh.lines[0] + "\n")
    feed.read()
    assert feed.now_ns() - T0_NS < 100e9


def test_the_same_moment_is_evaluated_once() -> None:
    """Two seconds that the log tells as one would be a rate over no time."""
    log = ScriptedLog()
    log.steps("worker-0", 0, [5.0], loss=float("nan"))
    log.second(1)
    log.second(2)
    log.steps("worker-0", 1, [5.5], loss=float("nan"))
    log.second(6)
    assert shot(view_of(log, 1))["state"] == "training"


def test_a_writer_to_a_run_that_was_resumed_after_a_reboot_writes_in_its_time(tmp_path: Path) -> None:
    log = ScriptedLog()
    began_s = unix_now_s() - 1000
    _begun_at(log, began_s)
    log.tell(4.1, "launcher", "run_finished", outcome="stopped")
    # Another boot: its clock restarted, and is far behind that of the first session.
    began_ns, now_s = 7_000_000_000, unix_now_s()
    event = {"kind": "run_started", "who": "launcher", "at_ns": began_ns, "unix_s": now_s}
    log.lines.append(json.dumps(event, separators=(",", ":")))
    log.write(tmp_path, a_plan())
    silence_alerts(tmp_path, for_s=60)
    written = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert 0 <= written["at_ns"] - began_ns < 600e9
    feed = Feed(tmp_path)
    feed.read()
    since_s = (feed.view.track.last_ns - T0_NS) / 1e9
    assert abs(since_s - (unix_now_s() - began_s)) < 600
    assert feed.view.track.silences[0]["until_s"] == pytest.approx(since_s + 60, abs=1)


def test_what_is_written_after_the_end_does_not_change_a_finished_run() -> None:
    log = steady_log(30)
    log.tell(30.5, "launcher", "run_finished", outcome="finished")
    before = shot(view_of(log))
    log.tell(86.0, "cli", "action", id="1", action="kill", target="worker-0", phase="refused", note="over")
    after = shot(view_of(log))
    assert after["progress"] == before["progress"]
    assert after["progress"]["elapsed_s"] == pytest.approx(30.5)
    assert after["throughput"] == before["throughput"]


def test_the_best_loss_is_never_above_the_final_one() -> None:
    log = ScriptedLog()
    for number in range(100):  # it falls faster than a running mean follows
        log.steps("worker-0", number, [number * 0.1], loss=100.0 * 0.9**number)
    log.tell(11.0, "launcher", "run_finished", outcome="finished")
    loss = shot(view_of(log, 1))["loss"]
    assert loss["best"] <= loss["final"] < loss["smooth"]


def test_the_final_loss_of_a_run_resumed_on_fewer_workers_is_theirs() -> None:
    log = ScriptedLog()
    for rank in range(4):
        log.steps(f"worker-{rank}", 0, [n * 0.1 for n in range(30)], loss=50.0)
    log.tell(10.0, "launcher", "run_started", plan="p", launcher="local", unix_s=UNIX_S + 10.0)
    log.tell(10.0, "launcher", "run_resumed", version=30, clocks="30,30")
    for rank in range(2):
        log.steps(f"worker-{rank}", 30, [10.0 + n * 0.1 for n in range(3)], loss=2.0)
    log.tell(11.0, "launcher", "run_finished", outcome="finished")
    assert shot(view_of(log, 2))["loss"]["final"] == pytest.approx(2.0)


def test_time_to_go_follows_the_present_speed_and_not_a_pause_before_a_resume() -> None:
    log = ScriptedLog()
    log.steps("worker-0", 0, [n * 0.1 for n in range(100)])
    log.tell(3600.0, "launcher", "run_started", plan="p", launcher="local", unix_s=UNIX_S + 3600.0)
    log.tell(3600.0, "launcher", "run_resumed", version=100, clocks="100")
    log.steps("worker-0", 100, [3600.0 + n * 0.1 for n in range(200)])
    alerts = shot(view_of(log, 1, steps=400), T0_NS + round(3620.0 * 1e9))
    assert alerts["progress"]["eta_s"] == pytest.approx(10.0, rel=0.2)


def test_no_event_is_called_the_cause_of_a_falling_loss() -> None:
    log = ScriptedLog()
    for number in range(400):
        log.steps("worker-0", number, [number * 0.1], loss=1.0 * 0.98**number)
        if number == 20:
            log.tell(2.0, "launcher", "supervision", decision="worker-1 was replaced")
    reported = {trend["series"]: trend for trend in shot(view_of(log, 1))["trends"]}
    assert reported["loss"]["change_s"] is None
    assert "worker-1" not in reported["loss"]["words"]
    assert "fall" in reported["loss"]["words"]


def test_an_unreachable_coordinator_node_keeps_its_name_and_shows_since_when() -> None:
    log = ScriptedLog()
    facts = {"term": 3, "commit": 7, "applied": 7, "leader": 1, "is_voter": True}
    for at_s, node, role in ((1.0, 2, "follower"), (2.0, None, ""), (3.0, None, "")):
        at_ns = T0_NS + round(at_s * 1e9)
        log.rows("watch", "coordinators", 1, at_ns=at_ns, address="h:1", node=node, role=role, **facts)
    (reported,) = shot(view_of(log))["coordinator"]["nodes"]
    assert (reported["name"], reported["is_reachable"], reported["since_s"]) == (
        "2",
        False,
        pytest.approx(2.0),
    )
