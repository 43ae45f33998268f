"""Real processes end with a reason, in seconds, and leave nothing behind."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.command import training
from tests.fixtures.plans import small_plan
from tests.fixtures.runs import Watching, real, virtual_hash
from tests.fixtures.waiting import kill, until_gone

from paceline.checkpoints.catalog import newest_complete
from paceline.core.errors import ConfigError, PeerLostError, TrainingError
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher, Message
from paceline.plan.plan import Transport
from paceline.training.run import train

FAILING = "tests.fixtures.tasks:FailingTask"


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
        everybody = run.everybody()
        kill(run.children()[1])
        done = run.end()
        assert done.code == 5
        assert "worker-1: worker-1 was killed by signal 9" in done.err
        assert "fix: " in done.err
        until_gone(everybody)
    outcome = read_history(tmp_path / "run" / "events.jsonl").plain[-1]
    assert (outcome.kind, outcome.fields) == ("run_finished", {"outcome": "failed"})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("victim", "name"), [(0, "server-0"), (2, "worker-1")])
def test_behind_a_server_a_killed_participant_ends_the_run_too(
    transport: str, victim: int, name: str, tmp_path: Path
) -> None:
    args = ["--mode", "asgd", "--transport", transport]
    with training(tmp_path / "run", *args, participants=3) as run:
        everybody = run.everybody()
        kill(run.children()[victim])
        done = run.end()
        assert done.code == 5
        assert f"{name} was killed by signal 9" in done.err
        until_gone(everybody)


def test_a_stopped_worker_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ssgd", "--timeout", "4s") as run:
        everybody = run.everybody()
        kill(run.children()[1], signal.SIGSTOP)
        done = run.end()
        assert done.code == 5
        assert "waited 4 s for the other workers" in done.err
        until_gone(everybody)


def test_a_worker_that_is_stopped_for_ever_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "asgd", "--timeout", "1s", participants=3) as run:
        everybody = run.everybody()
        kill(run.children()[1], signal.SIGSTOP)
        run.until_it_trains()  # asynchronous workers do not miss it
        run.send(signal.SIGINT)
        done = run.end()
        assert done.code == 5
        assert "worker-0 did not answer any more and was ended" in done.err, done.err
        until_gone(everybody)


def test_when_the_command_is_killed_nothing_is_left(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ps", participants=3) as run:
        everybody = run.everybody()
        assert len(everybody) == 5
        kill(run.process.pid)
        run.process.wait()
        until_gone(everybody)


def test_when_the_helper_is_killed_nothing_is_left_and_the_command_says_so(tmp_path: Path) -> None:
    with training(tmp_path / "run", "--mode", "ssgd") as run:
        everybody = run.everybody()
        kill(run.helper())
        done = run.end()
        assert done.code == 5
        assert "the process that starts the workers was killed by signal 9" in done.err
        until_gone(everybody)


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
        everybody = run.everybody()
        run.send(number)
        done = run.end()
        until_gone(everybody)
    assert done.code == code
    result = done.data()["result"]
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
        everybody = run.everybody()
        run.send(signal.SIGINT)
        assert run.process.stderr is not None
        while "press Ctrl-C again" not in run.process.stderr.readline():
            assert run.process.poll() is None
        run.send(signal.SIGINT)
        assert run.end().code == 130
        until_gone(everybody)


def test_a_task_that_raises_is_an_error_with_the_exception_and_the_log(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError) as caught:
        train(small_plan("ssgd", task=FAILING), tmp_path, Watching(launcher), warm=launcher)
    assert "ZeroDivisionError: this task cannot count" in caught.value.what
    assert f"{tmp_path}/logs/worker-" in caught.value.hint
    log = Path(caught.value.hint.split()[-1])
    assert "Traceback" in log.read_text()
    kinds = [event.kind for event in read_history(tmp_path / "events.jsonl").plain]
    assert kinds[-2:] == ["worker_lost", "run_finished"]


@pytest.mark.parametrize("mode", ["ps", "ddp"])
def test_in_every_mode_the_exception_is_the_cause_and_not_its_consequences(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="ZeroDivisionError: this task cannot count"):
        train(small_plan(mode, task=FAILING), tmp_path, Watching(launcher), warm=launcher)


def test_a_task_that_cannot_be_loaded_is_refused_before_anything_starts(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    messages: list[Message] = []
    plan = small_plan("ssgd", task="tests.fixtures.tasks:NoSuchTask")
    with pytest.raises(ConfigError, match="NoSuchTask"):
        launcher.run(plan, tmp_path, on_message=messages.append)
    assert "started" not in {message["ev"] for message in messages}


def test_a_task_with_a_wrong_option_is_one_problem_in_words(launcher: LocalLauncher, tmp_path: Path) -> None:
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
    with pytest.raises(OSError, match="Bad file descriptor"):
        launcher._socket.send(b"x")


def test_a_lost_peer_is_a_failed_run() -> None:
    assert PeerLostError("x", "y").exit_code == 5
