"""A run that would give up pauses for an operator, with its saved state, and resumes on request."""

import dataclasses
import signal
from pathlib import Path

from tests.fixtures.wording import Wording

from paceline.core.errors import TrainingError
from paceline.faults import workers
from paceline.faults.scenarios.measurements import proofs
from paceline.faults.scenarios.training import TrainingRun, default_plan, events_of, training
from paceline.plan.plan import Elastic, OnGiveUp, Plan


def plan(*, workers: int, min_workers: int) -> Plan:
    elastic = Elastic(
        workers=workers,
        min_workers=min_workers,
        max_workers=3,
        restarts=0,
        on_give_up=OnGiveUp.PAUSE,
    )
    return dataclasses.replace(
        default_plan(workers=3, steps=1_000_000, pace_s=0.01), elastic=elastic, timeout_s=4
    )


def decisions(run: TrainingRun) -> list[str]:
    return [str(event.fields["decision"]) for event in events_of(run.history(), "supervision")]


def kill(run: TrainingRun, *who: str) -> None:
    for name in who:
        run.signal(name, signal.SIGKILL)
    run.until(lambda _: any(text.startswith("to continue:") for text in decisions(run)), "the run is paused")


def test_the_survivors_wait_longer_than_any_timeout_and_continue_with_what_they_have(tmp_path: Path) -> None:
    with training(plan(workers=2, min_workers=2), tmp_path / "run") as run:
        first = run.until_in(2, 0)
        run.wait(0.3)
        kill(run, "worker-1")
        known = next(text for text in decisions(run) if text.startswith("paused:"))
        assert "worker-1 " in known
        assert "signal 9" in known
        saved = tmp_path / "run" / "checkpoints"
        run.until(lambda _: bool(list(saved.glob("at-*/worker-0.json"))), "a checkpoint is written")
        run.wait(4.5)  # longer than the timeout of those who wait
        assert set(workers.add(run.run_dir, 1).workers) == {"worker-0", "worker-1"}
        run.until_in(2, first)
        history = run.finish(120, early=True)
    pids = {event.fields["pid"] for event in events_of(history, "worker_started") if event.who == "worker-0"}
    assert len(pids) == 1  # it kept its memory
    expectations = proofs(tmp_path / "run", history)
    assert all(expectation.ok for expectation in expectations), expectations


def test_a_paused_run_can_be_stopped_in_good_order(tmp_path: Path) -> None:
    with training(plan(workers=2, min_workers=2), tmp_path / "run") as run:
        run.until_in(2, 0)
        run.wait(0.3)
        kill(run, "worker-0")
        run.finish(120, early=True)
        assert run.result is not None
        assert run.result["stopped_early"] is True


def test_without_survivors_a_stop_ends_the_run_with_the_reason(tmp_path: Path, wording: Wording) -> None:
    with training(plan(workers=1, min_workers=1), tmp_path / "run") as run:
        run.until_in(1, 0)
        kill(run, "worker-0")
        with wording.raises(TrainingError):
            run.finish(120, early=True)
