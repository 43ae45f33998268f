"""The metrics of an event log are those of its rows, whenever it is read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan

from paceline.core.clock import Clock
from paceline.events.log import EventLog, write_header
from paceline.events.read import History, take_line
from paceline.events.schema import ServerRow, StepRow
from paceline.export.metrics import POINTS, Series
from paceline.export.writer import Outcome, Point, Rewind
from paceline.plan.plan import Elastic, Plan

PLAN = replace(small_plan("ssgd"), steps=4)  # two workers


class At:
    """A clock that stands where a test puts it."""

    def __init__(self, ns: int = 0) -> None:
        self.ns = ns

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("this test must not sleep")


def step(rank: int, number: int, loss: float, *, workers: int = 2, start_ms: int | None = None) -> StepRow:
    """10 ms: 4 forward, 4 backward, 2 waiting; 8 samples."""
    start = (10 * number if start_ms is None else start_ms) * 1_000_000
    times = (0, 4_000_000, 4_000_000, 0, 2_000_000, 0, 0, 0)
    return StepRow(number, number * workers + rank, start, *times, loss, 8, 100, 50, 0, True)


def applied(rank: int, number: int, staleness: int) -> ServerRow:
    position = number * 2 + rank
    return ServerRow(
        "apply", 1_000_000 * position, rank, number, position, position + 1, position, staleness, 0, 5, 1.0
    )


class Script:
    """Writes a log as participants would, each line when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, At()
        write_header(path, run="r", plan="p", t0_ns=0, started_unix_s=1000.0)

    def steps(self, rank: int, rows: Sequence[StepRow]) -> None:
        log = self._pen(f"worker-{rank}")
        for row in rows:
            log.add_step(row)
        log.close()

    def server(self, rows: Sequence[ServerRow]) -> None:
        log = self._pen("server-0")
        for row in rows:
            log.add_server(row)
        log.close()

    def tell(self, who: str, kind: str, **fields: str | int | float) -> None:
        log = self._pen(who)
        log.write(kind, **fields)
        log.close()

    def begin(self, workers: int = 2) -> None:
        self.tell("launcher", "run_started", plan="p", launcher="local")
        for rank in range(workers):
            self.tell(f"worker-{rank}", "worker_started", pid=1, clock=0)

    def _pen(self, who: str) -> EventLog:
        clock: Clock = self.clock
        return EventLog(self.path, who=who, clock=clock)

    def series(self, plan: Plan, *, finish: bool = True) -> "PointRecorder":
        reported, series = PointRecorder(), Series(plan)
        for number, line in enumerate(self.path.read_text().splitlines()):
            history = History()
            take_line(history, line, is_header=number == 0)
            if number == 0:
                series.begin(history)
            for made in series.take(history):
                reported.take(made)
        if finish:
            for made in series.finish():
                reported.take(made)
        reported.outcome = series.outcome
        return reported


class PointRecorder:
    def __init__(self) -> None:
        self.points: list[Point] = []
        self.rewinds: list[int] = []
        self.outcome = Outcome.FAILED

    def take(self, made: Point | Rewind) -> None:
        if isinstance(made, Rewind):
            self.rewinds.append(made.step)
        else:
            self.points.append(made)

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(point.step, point.values[name]) for point in self.points if name in point.values]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "events.jsonl")


def test_the_loss_of_a_step_is_the_mean_over_its_workers(script: Script) -> None:
    script.begin()
    script.steps(0, [step(0, n, loss=float(n)) for n in range(4)])
    assert script.series(PLAN, finish=False).points == []  # nothing is known of the other worker yet
    script.steps(1, [step(1, n, loss=n + 1.0) for n in range(2)])
    assert script.series(PLAN, finish=False).of("train/loss") == [(0, 0.5), (1, 1.5)]
    script.steps(1, [step(1, n, loss=n + 1.0) for n in range(2, 4)])
    assert script.series(PLAN).of("train/loss") == [(0, 0.5), (1, 1.5), (2, 2.5), (3, 3.5)]


def test_rates_shares_and_bytes_come_with_it(script: Script) -> None:
    script.begin()
    for rank in range(2):
        script.steps(rank, [step(rank, n, loss=1.0) for n in range(4)])
    exported = script.series(PLAN)
    assert [rate for _, rate in exported.of("train/samples_per_s")] == pytest.approx([1600.0] * 4)
    assert exported.of("phases/wait")[2] == (2, 0.2)
    assert exported.of("bytes/out")[-1] == (3, 800.0)
    assert exported.of("bytes/in")[-1] == (3, 400.0)
    assert exported.points[0].unix_s == pytest.approx(1000.01)


def test_long_runs_are_exported_in_intervals(script: Script) -> None:
    plan = replace(small_plan("single"), steps=3 * POINTS)
    script.begin(workers=1)
    script.steps(0, [step(0, n, loss=float(n), workers=1) for n in range(3 * POINTS)])
    losses = script.series(plan).of("train/loss")
    assert len(losses) == POINTS
    assert losses[1] == (5, 4.0)  # steps 3, 4 and 5


def test_staleness_is_that_of_the_applied_gradients(script: Script) -> None:
    script.begin()
    script.server([applied(0, 0, 0), applied(1, 0, 1), applied(0, 1, 3)])
    exported = script.series(PLAN)
    assert exported.of("staleness/mean") == [(0, 0.5), (1, 3.0)]
    assert exported.of("staleness/max") == [(0, 1.0), (1, 3.0)]


def test_an_evaluation_is_exported_at_its_step(script: Script) -> None:
    script.clock.ns = 2_000_000_000
    script.tell(
        "worker-0", "evaluated", step=3, samples=48, seconds=0.5, metrics='{"val_loss": 0.25, "f1": null}'
    )
    (point,) = script.series(PLAN).points
    assert (point.step, point.unix_s, dict(point.values)) == (3, 1002.0, {"eval/val_loss": 0.25})


def test_steps_rolled_back_by_a_resume_are_reported_and_exported_again(script: Script) -> None:
    script.begin()
    for rank in range(2):
        script.steps(rank, [step(rank, n, loss=1.0) for n in range(3)])
    script.tell("launcher", "run_started", plan="p", launcher="local")
    script.tell("launcher", "run_resumed", version=2, clocks="2,2")
    script.begin()
    for rank in range(2):
        script.steps(rank, [step(rank, n, loss=2.0) for n in range(2, 4)])
    script.tell("launcher", "run_finished", outcome="finished")
    exported = script.series(PLAN)
    assert exported.rewinds == [2]
    assert exported.of("train/loss") == [(0, 1.0), (1, 1.0), (2, 1.0), (2, 2.0), (3, 2.0)]
    assert exported.outcome is Outcome.FINISHED


@pytest.mark.parametrize("was_told", [False, True])
def test_a_step_that_was_half_done_before_a_resume_counts_both_halves(script: Script, was_told: bool) -> None:
    """Asynchronous workers are not equally far; and what was done after the checkpoint is done again."""
    plan = replace(small_plan("asgd"), steps=3, checkpoint_every=1)
    script.begin()
    script.steps(0, [step(0, n, loss=1.0) for n in range(2)])
    script.steps(1, [step(1, n, loss=3.0) for n in range(2 if was_told else 1)])
    script.tell("launcher", "run_started", plan="p", launcher="local")
    script.tell("launcher", "run_resumed", version=3, clocks="2,1")
    script.begin()
    script.steps(1, [step(1, 1, loss=5.0), step(1, 2, loss=5.0)])
    script.steps(0, [step(0, 2, loss=7.0)])
    exported = script.series(plan)
    again = [(1, 2.0)] if was_told else []
    assert exported.of("train/loss") == [(0, 2.0), *again, (1, 3.0), (2, 6.0)]
    assert exported.rewinds == [1]


def test_a_worker_that_is_gone_is_not_waited_for(script: Script) -> None:
    """An elastic run of two workers with four shards: the second is lost, the first goes on alone."""
    elastic = Elastic(workers=2, min_workers=1, max_workers=2)
    plan = replace(small_plan("ssgd", num_workers=4), steps=6, elastic=elastic)
    script.begin()
    for rank in range(2):
        script.steps(rank, [step(rank, n, loss=1.0 + rank, workers=4) for n in range(2)])
    assert script.series(plan, finish=False).of("train/loss") == [(0, 1.5)]  # step 1 might not be over
    script.tell("worker-0", "generation_entered", number=2, workers="worker-0")
    script.steps(0, [step(0, n, loss=5.0, workers=4) for n in range(2, 5)])
    exported = script.series(plan, finish=False)
    assert exported.of("train/loss") == [(0, 1.5), (1, 1.5), (2, 5.0), (3, 5.0)]


def test_a_share_that_never_comes_does_not_block_the_export_for_ever(script: Script) -> None:
    plan = replace(small_plan("asgd"), steps=200)
    script.begin()
    script.steps(0, [step(0, n, loss=1.0) for n in range(100)])
    script.steps(1, [step(1, n, loss=3.0) for n in range(1, 100)])  # its first is still being computed
    exported = script.series(plan, finish=False)
    assert exported.of("train/loss")[:2] == [(0, 1.0), (1, 2.0)]


def test_a_run_that_stopped_because_it_got_no_better_is_finished(script: Script) -> None:
    script.tell("worker-0", "early_stop", step=3, best_step=1, reason="no better")
    script.tell("launcher", "run_finished", outcome="stopped")
    assert script.series(PLAN).outcome is Outcome.FINISHED
