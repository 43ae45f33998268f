"""A Llama trains the same under a PyTorchJob's command in two pods and under `paceline train`."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.torchrun import free_port, starting

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.events.read import read_history
from paceline.training.session import Session

WORDS = ("--task", "llama", "--model", "llama_tiny", "--mode", "fsdp", "--max-steps", "60", "--seq-len", "32")
MORE = ("--batch-size", "4", "--lr", "0.01", "--clip-norm", "1", "--timeout", "60s")


def test_the_command_of_a_pytorchjob_trains_as_workers_here_do_and_it_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 5.5, which is not to know anything, to what a few minutes of reading would give."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 200)
    words = (*WORDS, *MORE, "--data", str(tmp_path / "text.txt"))
    pods = _pods(["job", "render", *words, "--name", "tiny"], tmp_path, capsys)
    assert sorted(pods) == ["Master", "Worker"]
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        started = []
        for rank, pod in enumerate(("Master", "Worker")):
            variables = {**given, "RANK": str(rank)}
            args = [_as_in_a_pod(word, variables, tmp_path) for word in pods[pod]]
            started.append(stack.enter_context(starting(*args, folder=tmp_path, is_warm=True, **variables)))
        for result in [item.end() for item in started]:
            assert result.code == 0, result.err
    here = paceline("train", *words, "--num-workers", "2", "--run-dir", str(tmp_path / "here"))
    assert here.code == 0, here.err
    (there,) = (tmp_path / "results").glob("*")
    results = [json.loads((folder / "result.json").read_text()) for folder in (there, tmp_path / "here")]
    assert results[0]["state_sha256"] == results[1]["state_sha256"]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["metrics"]["val_loss"] < 1.0
    rows = read_history(there / "events.jsonl").steps
    assert sorted(rows) == [0, 1]
    assert rows[0][-1].loss < 1.0 < 5.0 < rows[0][0].loss
    assert all(row.grad_norm is not None and row.grad_norm > 0 for row in rows[1])


def _pods(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """What torchrun is given in each kind of pod."""
    more = ["--target", "pytorchjob", "--image", "example.com/x:1", "--nodes", "2"]
    assert run([*words, *more], Session(folder=folder)) == ExitCode.OK
    job = yaml.safe_load(capsys.readouterr().out)
    spec = job["spec"]["pytorchReplicaSpecs"]
    return {name: item["template"]["spec"]["containers"][0]["args"] for name, item in spec.items()}


def _as_in_a_pod(word: str, variables: dict[str, str], folder: Path) -> str:
    """$(NAME) as Kubernetes puts it in, and the volume."""
    for name, value in variables.items():
        word = word.replace(f"$({name})", value)
    return str(folder / "results") if word == "/results" else word
