"""Actions on a live run and their guarantees: no worker is paused for ever."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.processes import command_line
from paceline.events.log import EventLog, write_header
from paceline.events.schema import StepRow
from paceline.faults.actions import executor, sigstop
from paceline.faults.actions.request import ActionKind, ActionRequest, refusal
from paceline.faults.actions.run_state import RunState, process_state
from paceline.faults.scenarios.catalog import SCENARIOS
from paceline.faults.scenarios.expectations import PROMISES
from paceline.faults.scenarios.training import default_plan
from paceline.plan.codec import dumps, plan_hash
from paceline.plan.plan import Launcher, Plan

PIDS = {"worker-0": 10, "worker-1": 11}
ELASTIC = default_plan(workers=2, steps=10)
FIXED = Plan(run="a", task="xor", mode="ssgd", num_workers=2, steps=10, batch_sizes=(8, 8))


def action_request(
    deed: ActionKind, worker: str = "worker-1", *, for_s: float = 30.0, factor: float = 4.0
) -> ActionRequest:
    return ActionRequest(id="a", kind=deed, worker=worker, for_s=for_s, factor=factor)


def test_a_worker_of_an_elastic_run_may_be_killed() -> None:
    for deed in (ActionKind.KILL, ActionKind.PAUSE, ActionKind.SLOW, ActionKind.RESUME):
        assert refusal(action_request(deed), ELASTIC, PIDS, is_over=False) == ""
    assert refusal(action_request(ActionKind.CHECKPOINT, ""), ELASTIC, PIDS, is_over=False) == ""


def test_what_would_end_a_run_is_only_done_by_force(wording: Wording) -> None:
    wording(refusal(action_request(ActionKind.KILL), FIXED, PIDS, is_over=False))
    forced = ActionRequest(id="a", kind=ActionKind.KILL, worker="worker-1", is_forced=True)
    assert refusal(forced, FIXED, PIDS, is_over=False) == ""


@pytest.mark.parametrize(
    "action_request",
    [
        action_request(ActionKind.KILL, "worker-7"),
        action_request(ActionKind.PAUSE, for_s=1000.0),
        action_request(ActionKind.SLOW, factor=1.0),
        action_request(ActionKind.PARTITION, "server-0"),
        action_request(ActionKind.PARTITION, "worker-7"),
        action_request(ActionKind.PARTITION, for_s=301.0),
    ],
)
def test_an_invalid_action_is_refused_with_the_reason(
    action_request: ActionRequest, wording: Wording
) -> None:
    why = refusal(action_request, ELASTIC, PIDS, is_over=False)
    assert why
    wording(why)


def test_nothing_is_done_to_a_run_that_is_over_or_elsewhere(wording: Wording) -> None:
    from dataclasses import replace

    wording(refusal(action_request(ActionKind.KILL), ELASTIC, PIDS, is_over=True))
    on_ray = replace(FIXED, launcher=Launcher.RAY)
    wording(refusal(action_request(ActionKind.PAUSE), on_ray, PIDS, is_over=False))
    wording(refusal(action_request(ActionKind.CHECKPOINT, ""), FIXED, PIDS, is_over=False))


def test_every_experiment_states_its_guarantees() -> None:
    assert PROMISES.keys() == SCENARIOS.keys()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that can be paused; its command is that of a worker."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "paceline"])
    yield process
    process.kill()
    process.wait()


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    return process_state(process.pid) == "T"


def test_a_paused_worker_continues_when_its_holder_ends(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    holder = sigstop.begin(tmp_path, "worker-0", sleeper.pid, share=1.0, for_s=300, action_id="a")
    until(lambda: is_stopped(sleeper), "it is stopped")
    assert holder.stdin is not None
    holder.stdin.close()  # as when the requesting process is killed
    holder.wait()
    assert not is_stopped(sleeper)
    (released,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert released["action"] == "resume"
    assert list(tmp_path.glob(".held-*")) == []


def test_a_paused_worker_continues_on_request(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
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
    slow = action_request(ActionKind.SLOW, factor=3.0)
    applied_ns = round(200.0 * 1e9)
    unmoved = look_with_steps(0.02, 0.021, 60)
    assert executor.observed_effect(slow, FIXED, unmoved, applied_ns, 0) == ""
    assert (
        executor.observed_effect(slow, FIXED, look_with_steps(0.02, 0.05, 3), applied_ns, 0) == ""
    )  # too few yet
    assert "2.5 times" in executor.observed_effect(
        slow, FIXED, look_with_steps(0.02, 0.05, 60), applied_ns, 0
    )


def step_of_50_ms(number: int) -> StepRow:
    return StepRow(
        step=number,
        position=number,
        start_ns=number * 50_000_000,
        data_ns=0,
        forward_ns=0,
        backward_ns=0,
        delay_ns=50_000_000,
        wait_ns=0,
        codec_ns=0,
        comm_ns=0,
        apply_ns=0,
        loss=1.0,
        samples=8,
        bytes_out=0,
        bytes_in=0,
        version=0,
        synced=True,
    )


def test_a_slowed_worker_is_stopped_in_a_cycle_that_fits_its_steps(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    (tmp_path / "plan.json").write_text(dumps(FIXED))
    path = tmp_path / "events.jsonl"
    write_header(path, run="a", plan=plan_hash(FIXED), t0_ns=0, started_unix_s=0.0)
    log = EventLog(path, who="worker-1", clock=SystemClock())
    log.write("worker_started", pid=sleeper.pid)
    for number in range(50):
        log.add_step(step_of_50_ms(number))
    log.close()
    slow = executor.ActionExecutor(tmp_path, action_request(ActionKind.SLOW), lambda _: None, within_s=0.0)
    slow.run()
    (holder,) = slow.holders
    cycle_s = command_line(holder.pid).split()[-1]
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait()
    assert float(cycle_s) == pytest.approx(sigstop.CYCLE_STEPS * 0.05, rel=0.01)


@pytest.mark.parametrize("pace_s", [0.0005, 0.02, 0.05])
def test_stops_are_longer_than_the_sleep_of_a_paced_step(pace_s: float) -> None:
    cycle_s = sigstop.cycle_for(pace_s)
    assert cycle_s / 2 > pace_s  # of a worker that is made twice as slow
    assert cycle_s <= sigstop.MAX_CYCLE_S
