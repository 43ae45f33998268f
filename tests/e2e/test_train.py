"""`paceline train` as a newcomer types it, in every mode and over every transport."""

import json
import signal
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline, training
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.core.errors import ConfigError
from paceline.events.read import History, read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES, TRANSPORTS
from paceline.plan.codec import read
from paceline.plan.plan import Transport

EVERY = [
    (mode.name, transport.value)
    for mode in MODES.values()
    for transport in TRANSPORTS[mode.channel]
    if transport not in (Transport.NCCL, Transport.CUDA_IPC)  # they need a GPU
]
RESULT_KEYS = {
    "schema",
    "paceline",
    "run",
    "run_dir",
    "mode",
    "launcher",
    "task",
    "num_workers",
    "plan",
    "wall_s",
    "steps_s",
    "stopped_early",
    "evaluations",
    "best",
    "metrics",
    "state_sha256",
    "steps",
    "gradients",
    "samples",
    "loss",
    "training_s",
    "samples_per_s",
    "phases_s",
    "first_step_s",
    "discarded",
    "abandoned",
    "adapted",
    "grad_norm",
    "checkpoints",
    "staleness",
    "bytes",
}


@pytest.mark.parametrize(("mode", "transport"), EVERY, ids=["-".join(pair) for pair in EVERY])
def test_ten_steps_of_xor_leave_a_complete_run_folder(
    mode: str, transport: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    workers = 1 if mode == "single" else 2
    outcome = warm_paceline(
        launcher,
        *("train", "--task", "xor", "--mode", mode, "--num-workers", str(workers), "--steps", "10"),
        *("--transport", transport, "--run-dir", "run", "--json"),
        *(("--optimizer", "adam") if mode == "onebit" else ()),  # it is a kind of Adam
        folder=tmp_path,
    )
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    answer = json.loads(outcome.out)
    assert (answer["schema"], answer["ok"]) == ("paceline.train/1", True)
    assert set(answer["data"]) == {"run", "run_dir", "plan_hash", "result"}
    result, run_dir = answer["data"]["result"], tmp_path / "run"
    expected = RESULT_KEYS | ({"wire_bytes"} if transport == "gloo" else set())
    assert set(result) - {"compression"} == expected  # said only where something was compressed
    assert result["schema"] == "paceline.result/1"
    assert (result["mode"], result["gradients"], result["samples"]) == (mode, 10 * workers, 320 * workers)
    assert 0 < result["metrics"]["test_loss"] < 1
    assert (result["bytes"]["out"] > 0) == (mode != "single")
    assert json.loads((run_dir / "result.json").read_text()) == result
    assert read(run_dir / "plan.json").transport == transport
    assert list(run_dir.glob("checkpoints/at-*/*.safetensors"))
    history = read_history(run_dir / "events.jsonl")
    assert sorted(applied(history)) == list(range(10 * workers))
    assert not list(run_dir.glob(".rendezvous*"))


def applied(history: History) -> list[int]:
    """The shares of all steps whose gradient was not thrown away."""
    thrown_away = {(row.rank, row.step) for row in history.server if row.op == "discard"}
    return [
        row.position
        for rank, rows in history.steps.items()
        for row in rows
        if (rank, row.step) not in thrown_away
    ]


def test_an_hours_sleep_of_one_worker_is_abandoned_and_the_command_ends(tmp_path: Path) -> None:
    result = paceline(
        *("train", "--mode", "backup", "--num-workers", "4", "--steps", "10", "--pace", "5ms"),
        *("--straggler", "worker=3,delay=3600s", "--run-dir", "run"),
        folder=tmp_path,
    )
    assert result.code == 0, result.err
    assert "abandoned" in result.out
    history = read_history(tmp_path / "run" / "events.jsonl")
    assert sorted(applied(history)) == list(range(40))
    assert {row.rank for row in history.server if row.op == "apply"} == {0, 1, 2}
    assert history.abandoned[3]
    assert paceline("replay", "run", folder=tmp_path).code == 0


def test_without_json_a_person_reads_a_summary(tmp_path: Path) -> None:
    result = paceline("train", "--steps", "10", folder=tmp_path)
    assert result.code == 0
    assert "test_accuracy" in result.out
    assert " xor with 2 workers" in result.err
    assert " ssgd" in result.err
    assert (tmp_path / "runs" / "xor-ssgd" / "result.json").exists()


def test_a_users_own_task_and_strategy_are_trained_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from paceline.laws.tasks import TinyTask\n"
        "from paceline.strategies.ssgd import Ssgd\n\n\n"
        "class MyTask(TinyTask):\n    lr = 0.05\n\n\n"
        "class MyMode(Ssgd):\n    pass\n"
    )
    args = ["train", "--task", "mine:MyTask", "--steps", "5", "--json", "--transport", "shm"]
    own = paceline(*args, "--mode", "mine:MyMode", folder=tmp_path)
    assert own.code == 0, own.out
    built_in = paceline(*args, "--mode", "ssgd", folder=tmp_path)
    assert own.data()["result"]["state_sha256"] == built_in.data()["result"]["state_sha256"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--task", "missing_module:Task"], 3, "missing_module"),
        (["--task-option", "colour=red"], 3, "colour"),
        (["--task", "tests.fixtures.tasks.user_tasks:ForgetfulTask"], 3, " loss, metrics"),
        (["--task", "tests.fixtures.tasks.user_tasks:FailingTask"], 5, "ZeroDivisionError: "),
    ],
    ids=["no module", "no such option", "no methods", "raises"],
)
def test_a_mistake_in_a_task_is_reported_as_a_message_and_never_as_a_traceback(
    args: list[str], code: int, words: str, tmp_path: Path
) -> None:
    result = paceline("train", *args, "--steps", "3", "--run-dir", str(tmp_path / "run"))
    assert result.code == code
    assert words in result.err
    assert "fix: " in result.err
    assert "Traceback" not in result.err


def test_events_off_leaves_a_result_without_a_record(tmp_path: Path) -> None:
    outcome = paceline(
        "train", "--steps", "5", "--events", "off", "--run-dir", "run", "--json", folder=tmp_path
    )
    result = outcome.data()["result"]
    assert "gradients" not in result
    assert result["metrics"]
    assert result["steps_s"] > 0
    assert read_history(tmp_path / "run" / "events.jsonl").steps == {}


def test_a_run_stopped_by_ctrl_c_is_resumed_to_its_end(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with training(run_dir, "--mode", "ssgd", "--steps", "600") as run:
        run.send(signal.SIGINT)
        assert run.end().code == 130
    changed = paceline("train", "--resume", str(run_dir), "--steps", "7")
    assert changed.code == 3
    assert f"error[{ConfigError.code}]" in changed.err
    assert " steps " in changed.err
    outcome = paceline("train", "--resume", str(run_dir), "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.data()["result"]
    assert (result["gradients"], result["stopped_early"]) == (1200, False)
    assert paceline("replay", str(run_dir)).code == 0


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    result = paceline("train", "--resume", str(tmp_path))
    assert result.code != 0
    assert "plan.json" in result.err


def test_epochs_end_early_and_are_reported_and_a_task_that_cannot_be_counted_leaves_no_folder(
    tmp_path: Path,
) -> None:
    looked_at = (
        "train",
        "--task",
        "digits",
        "--epochs",
        "3",
        "--evaluate-every",
        "epoch",
        "--run-dir",
        "run",
    )
    outcome = paceline(
        *looked_at, "--early-stop-patience", "1", "--early-stop-metric", "valid_loss:max", folder=tmp_path
    )
    assert outcome.code == 0, outcome.err
    assert " step 23 (epoch 1.02): valid_loss " in outcome.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [evaluation["step"] for evaluation in result["evaluations"]] == [23, 45]
    assert result["best"]["step"] == 23
    assert result["stopped_by"].startswith("early stop: valid_loss ")
    refused = paceline(
        "train", "--task", "digits", "--epochs", "1", "--task-option", "hiden=3", folder=tmp_path
    )
    assert refused.code == 3
    assert "'hiden'" in refused.err
    assert not (tmp_path / "runs").exists()
