"""Real processes end with a reason, in seconds, and leave nothing behind."""

import errno
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.processes.command import training
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import Watching, real, virtual_hash
from tests.fixtures.waiting import kill, until_gone
from tests.fixtures.wording import ANY_WORKER, Wording

from paceline.checkpoints.catalog import newest_complete
from paceline.core.errors import ConfigError, PeerLostError, SilenceError, TrainingError
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher, Message
from paceline.plan.plan import Transport
from paceline.training.run import train

FAILING = "tests.fixtures.tasks.user_tasks:FailingTask"


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "ssgd"],
        ["--mode", "ddp"],
        ["--mode", "fsdp"],
        ["--mode", "localsgd", "--transport", "gloo"],
    ],
    ids=lambda args: args[1],
)
def test_a_killed_worker_ends_the_run_with_its_name_and_the_signal(args: list[str], tmp_path: Path) -> None:
    with training(tmp_path / "run", *args) as run:
        processes = run.processes()
        kill(run.children()[1])
        result = run.end()
        assert result.code == 5
        assert f"error[{TrainingError.code}]" in result.err
        assert " worker-1: " in result.err
        assert "signal 9" in result.err
        until_gone(processes)
    outcome = read_history(tmp_path / "run" / "events.jsonl").plain[-1]
    assert (outcome.kind, outcome.fields) == ("run_finished", {"outcome": "failed"})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("victim", "name"), [(0, "server-0"), (2, "worker-1")])
def test_behind_a_server_a_killed_participant_ends_the_run_too(
    transport: str, victim: int, name: str, tmp_path: Path
) -> None:
    args = ["--mode", "asgd", "--transport", transport]
    with training(tmp_path / "run", *args, participants=3) as run:
        processes = run.processes()
        kill(run.children()[victim])
        result = run.end()
        assert result.code == 5
        assert f" {name}: " in result.err
        assert "signal 9" in result.err
        until_gone(processes)


def test_a_stopped_worker_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ssgd", "--timeout", "4s") as run:
        processes = run.processes()
        kill(run.children()[1], signal.SIGSTOP)
        result = run.end()
        assert result.code == 5
        assert f"error[{SilenceError.code}]" in result.err
        assert " 4 s " in result.err
        until_gone(processes)


def test_a_worker_that_is_stopped_for_ever_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "asgd", "--timeout", "1s", participants=3) as run:
        processes = run.processes()
        kill(run.children()[1], signal.SIGSTOP)
        run.until_it_trains()  # asynchronous workers do not miss it
        run.send(signal.SIGINT)
        result = run.end()
        assert result.code == 5
        assert " worker-0: " in result.err, result.err
        until_gone(processes)


def test_when_the_command_is_killed_nothing_is_left(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ps", participants=3, is_warm=False) as run:
        processes = run.processes()
        assert len(processes) == 5
        kill(run.process.pid)
        run.process.wait()
        until_gone(processes)


def test_when_the_helper_is_killed_nothing_is_left_and_the_command_reports_it(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ssgd", is_warm=False) as run:
        processes = run.processes()
        kill(run.helper())
        result = run.end()
        assert result.code == 5
        (error,) = [line for line in result.err.splitlines() if line.startswith("error[")]
        assert "signal 9" in error
        assert "worker-" not in error
        until_gone(processes)


@pytest.mark.parametrize(
    ("number", "code", "args"),
    [
        (signal.SIGINT, 130, ["--mode", "ssgd"]),
        (signal.SIGTERM, 143, ["--mode", "localsgd"]),
        (signal.SIGINT, 130, ["--mode", "asgd", "--transport", "tcp"]),
    ],
    ids=["ssgd-SIGINT", "localsgd-SIGTERM", "asgd-SIGINT"],
)
def test_one_signal_stops_the_run_in_order_with_a_checkpoint_and_a_result(
    number: signal.Signals, code: int, args: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    participants = 3 if "asgd" in args else 2
    with training(run_dir, *args, "--json", participants=participants) as run:
        processes = run.processes()
        run.send(number)
        outcome = run.end()
        until_gone(processes)
    assert outcome.code == code
    result = outcome.data()["result"]
    assert (result["stopped_early"], result["stopped_by"]) == (True, number.name)
    assert json.loads((run_dir / "result.json").read_text())["state_sha256"] == result["state_sha256"]
    checkpoint = newest_complete(run_dir / "checkpoints", 2)
    assert checkpoint is not None
    history = read_history(run_dir / "events.jsonl")
    assert checkpoint.clocks == tuple(len(history.steps.get(rank, [])) for rank in (0, 1))
    events = [(event.kind, dict(event.fields)) for event in history.plain]
    assert ("stop_requested", {"by": number.name}) in events
    assert events[-1] == ("run_finished", {"outcome": "stopped"})


def test_a_second_ctrl_c_ends_everything_now(tmp_path: Path) -> None:
    # A period that never ends: the workers would go on for minutes before they can agree to stop.
    with training(tmp_path / "run", "--mode", "localsgd", "--sync-every", "100000") as run:
        processes = run.processes()
        run.send(signal.SIGINT)
        assert run.process.stderr is not None
        while "press Ctrl-C again" not in run.process.stderr.readline():
            assert run.process.poll() is None
        run.send(signal.SIGINT)
        assert run.end().code == 130
        until_gone(processes)


def test_a_task_that_raises_is_an_error_with_the_exception_and_the_log(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError) as caught:
        train(small_plan("ssgd", task=FAILING), tmp_path, Watching(launcher), warm=launcher)
    assert "ZeroDivisionError" in caught.value.what
    assert f"{tmp_path}/logs/worker-" in caught.value.hint
    log = Path(caught.value.hint.split()[-1])
    assert "Traceback" in log.read_text()
    kinds = [event.kind for event in read_history(tmp_path / "events.jsonl").plain]
    assert kinds[-2:] == ["worker_lost", "run_finished"]


@pytest.mark.parametrize("mode", ["ps", "ddp"])
def test_in_every_mode_the_exception_is_the_cause_and_not_its_consequences(
    mode: str, launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(TrainingError, hide=ANY_WORKER):
        train(small_plan(mode, task=FAILING), tmp_path, Watching(launcher), warm=launcher)


def test_a_task_that_cannot_be_loaded_is_refused_before_anything_starts(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    messages: list[Message] = []
    plan = small_plan("ssgd", task="tests.fixtures.tasks.user_tasks:NoSuchTask")
    with wording.raises(ConfigError):
        launcher.run(plan, tmp_path, on_message=messages.append)
    assert "started" not in {message["ev"] for message in messages}


def test_a_task_with_a_wrong_option_is_one_problem(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ssgd", task_options={"colour": "red"})
    with pytest.raises((ConfigError, TrainingError), match="colour"):
        train(plan, tmp_path, Watching(launcher), warm=launcher)


def test_after_a_failed_run_the_launcher_still_works(launcher: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        train(small_plan("ssgd", task=FAILING), tmp_path / "bad", Watching(launcher), warm=launcher)
    plan = small_plan("ssgd")
    assert real(plan, tmp_path / "good", launcher).sha256 == virtual_hash(plan)


def test_one_launcher_runs_plan_after_plan_without_leaking(launcher: LocalLauncher, tmp_path: Path) -> None:
    for number, transport in enumerate([Transport.SHM, Transport.TCP] * 3):
        plan = replace(small_plan("ps"), transport=transport)
        assert real(plan, tmp_path / str(number), launcher).sha256 == virtual_hash(plan)


def test_a_launcher_that_is_closed_at_once_leaves_nothing() -> None:
    launcher = LocalLauncher()
    launcher.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        launcher._socket.send(b"x")


def test_a_lost_peer_is_a_failed_run() -> None:
    assert PeerLostError("x", "y").exit_code == 5
