"""Exported weights of a checkpoint: other tools read them under the module's own names, bit by bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.fixtures.processes.command import CommandResult, paceline
from tests.fixtures.processes.warm_command import warm_paceline
from torch.distributed.checkpoint.state_dict_loader import load

from paceline.launchers.local import LocalLauncher
from paceline.tasks.load import load_task
from paceline.worker.participant import state_hash


@pytest.fixture(scope="module")
def run_dir(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose optimizer has moments, which are no weights."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    settings = ["--task", "xor", "--optimizer", "adam", "--steps", "60", "--checkpoint-every", "20"]
    result = warm_paceline(launcher, "train", *settings, "--run-dir", "run", folder=folder.parent)
    assert result.code == 0, result.err
    return folder


def export(run_dir: Path, out: Path, *args: str) -> CommandResult:
    return paceline("checkpoint", "export", str(run_dir), "--out", str(out), "--json", *args)


def final_hash(run_dir: Path) -> str:
    return str(json.loads((run_dir / "result.json").read_text())["state_sha256"]["worker-0"])


def test_one_safetensors_file_is_the_modules_state_dict(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "weights.safetensors")
    assert result.code == 0, result.out
    assert result.data()["checkpoint"] == "at-00000060"
    weights = load_file(tmp_path / "weights.safetensors")
    model = load_task("xor", seed=0, options={}).model()
    model.load_state_dict(weights)  # strict: these names, and no others
    assert state_hash(model.state_dict()) == final_hash(run_dir)


def test_an_older_one_can_be_taken_out_too(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "weights.safetensors", "--at", "20")
    assert result.data()["checkpoint"] == "at-00000020"


def test_torchs_distributed_checkpoint_is_loaded_by_torch(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "dcp", "--format", "dcp")
    assert result.code == 0, result.out
    assert result.err == ""
    model = load_task("xor", seed=1, options={}).model()
    state = model.state_dict()
    with pytest.warns(UserWarning, match="single process"):
        load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert state_hash({name: tensor.detach() for name, tensor in state.items()}) == final_hash(run_dir)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())


def test_of_a_servers_run_the_servers_weights_are_taken(launcher: LocalLauncher, tmp_path: Path) -> None:
    settings = ["--task", "xor", "--mode", "asgd", "--steps", "20", "--run-dir", "run"]
    result = warm_paceline(launcher, "train", *settings, "--json", folder=tmp_path).data()["result"]
    outcome = export(tmp_path / "run", tmp_path / "weights.safetensors")
    assert outcome.data()["who"] == "server-0"
    model = load_task("xor", seed=0, options={}).model()
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert state_hash(model.state_dict()) == result["state_sha256"]["server-0"]


def test_a_state_that_cannot_be_exported_is_an_error(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    refused = export(run_dir, tmp_path / "there")
    assert refused.code == 5
    assert '"code": "E309"' in refused.out
    assert (tmp_path / "there").read_text() == "mine"
    refused = export(run_dir, tmp_path / "weights", "--at", "7")
    assert "20, 40, 60" in refused.out
    assert "plan.json" in export(tmp_path, tmp_path / "weights").out
