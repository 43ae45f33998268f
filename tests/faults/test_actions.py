"""What may be asked of a run, and what is it promised? That nobody is held for ever, for one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline.faults.actions import executor, sigstop
from paceline.faults.actions.request import ActionKind, ActionRequest, refusal
from paceline.faults.actions.run_state import RunState, process_state
from paceline.faults.scenarios.catalog import SCENARIOS
from paceline.faults.scenarios.expectations import PROMISES
from paceline.faults.scenarios.training import default_plan
from paceline.plan.plan import Launcher, Plan

PIDS = {"worker-0": 10, "worker-1": 11}
ELASTIC = default_plan(workers=2, steps=10)
FIXED = Plan(run="a", task="xor", mode="ssgd", num_workers=2, steps=10, batch_sizes=(8, 8))


def wanted(
    deed: ActionKind, worker: str = "worker-1", *, for_s: float = 30.0, factor: float = 4.0
) -> ActionRequest:
    return ActionRequest(id="a", kind=deed, worker=worker, for_s=for_s, factor=factor)


def test_a_worker_of_an_elastic_run_may_be_struck() -> None:
    for deed in (ActionKind.KILL, ActionKind.PAUSE, ActionKind.SLOW, ActionKind.RESUME):
        assert refusal(wanted(deed), ELASTIC, PIDS, is_over=False) == ""
    assert refusal(wanted(ActionKind.CHECKPOINT, ""), ELASTIC, PIDS, is_over=False) == ""


def test_what_would_end_a_run_is_only_done_by_force() -> None:
    assert "would end" in refusal(wanted(ActionKind.KILL), FIXED, PIDS, is_over=False)
    forced = ActionRequest(id="a", kind=ActionKind.KILL, worker="worker-1", is_forced=True)
    assert refusal(forced, FIXED, PIDS, is_over=False) == ""


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (wanted(ActionKind.KILL, "worker-7"), "there is no worker"),
        (wanted(ActionKind.PAUSE, for_s=1000.0), "up to 300 s"),
        (wanted(ActionKind.SLOW, factor=1.0), "above 1"),
        (wanted(ActionKind.PARTITION, "server-0"), "nobody who can be cut off"),
        (wanted(ActionKind.PARTITION, "worker-7"), "there is no worker"),
        (wanted(ActionKind.PARTITION, for_s=301.0), "up to 300 s"),
    ],
)
def test_what_cannot_be_is_refused_in_words(one: ActionRequest, why: str) -> None:
    assert why in refusal(one, ELASTIC, PIDS, is_over=False)


def test_nothing_is_done_to_a_run_that_is_over_or_elsewhere() -> None:
    from dataclasses import replace

    assert refusal(wanted(ActionKind.KILL), ELASTIC, PIDS, is_over=True) == "the run is over"
    on_ray = replace(FIXED, launcher=Launcher.RAY)
    assert "no processes of this machine" in refusal(wanted(ActionKind.PAUSE), on_ray, PIDS, is_over=False)
    assert "saves by" in refusal(wanted(ActionKind.CHECKPOINT, ""), FIXED, PIDS, is_over=False)


def test_every_experiment_says_what_it_promises() -> None:
    assert PROMISES.keys() == SCENARIOS.keys()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Somebody who can be held; called like one of ours."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "paceline"])
    yield process
    process.kill()
    process.wait()


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    return process_state(process.pid) == "T"


def test_a_held_worker_goes_on_when_its_holder_is_left_alone(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    holder = sigstop.begin(tmp_path, "worker-0", sleeper.pid, share=1.0, for_s=300, action_id="a")
    until(lambda: is_stopped(sleeper), "it is stopped")
    assert holder.stdin is not None
    holder.stdin.close()  # as when whoever asked is killed
    holder.wait()
    assert not is_stopped(sleeper)
    assert "was let go" in (tmp_path / "events.jsonl").read_text()
    assert list(tmp_path.glob(".held-*")) == []


def test_a_held_worker_goes_on_when_somebody_says_so(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    holder = sigstop.begin(tmp_path, "worker-0", sleeper.pid, share=0.75, for_s=300, action_id="a")
    until(lambda: is_stopped(sleeper), "it is stopped")
    assert sigstop.end(tmp_path, "worker-0")
    assert holder.stdin is not None
    holder.wait()
    holder.stdin.close()
    assert not is_stopped(sleeper)
    assert not sigstop.end(tmp_path, "worker-0")


def look_with_steps(before_s: float, after_s: float, count: int) -> RunState:
    look = RunState(Path("runs/made"), steps_of="worker-1")
    for number in range(50):
        start_ns = round((100.0 + number * before_s) * 1e9)
        look.steps.append((start_ns, start_ns + round(before_s * 1e9)))
    for number in range(count):
        start_ns = round((200.0 + number * after_s) * 1e9)
        look.steps.append((start_ns, start_ns + round(after_s * 1e9)))
    return look


def test_a_slowdown_counts_as_seen_only_when_steps_take_longer() -> None:
    slow = wanted(ActionKind.SLOW, factor=3.0)
    applied_ns = round(200.0 * 1e9)
    unmoved = look_with_steps(0.02, 0.021, 60)
    assert executor.observed_effect(slow, FIXED, unmoved, applied_ns, 0) == ""
    assert (
        executor.observed_effect(slow, FIXED, look_with_steps(0.02, 0.05, 3), applied_ns, 0) == ""
    )  # too few yet
    assert "2.5 times" in executor.observed_effect(
        slow, FIXED, look_with_steps(0.02, 0.05, 60), applied_ns, 0
    )


@pytest.mark.parametrize("pace_s", [0.0005, 0.02, 0.05])
def test_stops_are_longer_than_the_sleep_of_a_paced_step(pace_s: float) -> None:
    cycle_s = sigstop.cycle_for(pace_s)
    assert cycle_s / 2 > pace_s  # of a worker that is made twice as slow
    assert cycle_s <= sigstop.MAX_CYCLE_S
