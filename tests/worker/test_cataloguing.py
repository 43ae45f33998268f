"""After the loss of all workers a run resumes from the newest recorded checkpoint that can be read."""

from pathlib import Path

import pytest
import torch
from tests.fixtures.processes.command import paceline
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import folder_at, verified
from paceline.checkpoints.snapshot import Snapshot, write_snapshot
from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.worker.elastic.catalogue import find_resume_folder


def write(root: Path, at: int) -> pb.Checkpoint:
    """A checkpoint on disk, and its entry in the catalogue."""
    folder = folder_at(root, 4 * at)
    facts = {"clock": at, "at": at, "optimizer": None, "strategy": None}
    write_snapshot(folder, "worker-0", Snapshot({"w": torch.full((3,), float(at))}, facts))
    sha256 = verified(folder, "worker-0").sha256
    shard = pb.Shard(shard=0, uri=str(folder / "worker-0.safetensors"), sha256=sha256)
    return pb.Checkpoint(step=at, phase=pb.CHECKPOINT_COMMITTED, shards_expected=1, shards=[shard])


def spoil(root: Path, at: int) -> None:
    path = folder_at(root, 4 * at) / "worker-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def choose(
    root: Path, catalogue: list[pb.Checkpoint], resume_from: Path | None = None
) -> tuple[str, list[str]]:
    notes: list[str] = []
    path = find_resume_folder(catalogue, root, 4, resume_from, notes.append)
    return ("" if path is None else path.name), notes


def test_the_newest_that_is_noted_is_taken_even_if_a_newer_one_lies_there(tmp_path: Path) -> None:
    catalogue = [write(tmp_path, 10), write(tmp_path, 20)]
    write(tmp_path, 30)
    assert choose(tmp_path, catalogue) == ("at-00000080", [])


def test_one_that_is_damaged_is_passed_over_with_a_warning(tmp_path: Path, wording: Wording) -> None:
    catalogue = [write(tmp_path, 10), write(tmp_path, 20)]
    spoil(tmp_path, 20)
    name, notes = choose(tmp_path, catalogue)
    assert name == "at-00000040"
    assert len(notes) == 1
    assert "at-00000080" in notes[0]
    wording(notes[0])


def test_one_that_is_whole_but_another_than_was_noted_is_passed_over(
    tmp_path: Path, wording: Wording
) -> None:
    catalogue = [write(tmp_path, 10), write(tmp_path, 20)]
    catalogue[1].shards[0].sha256 = "0" * 64
    name, notes = choose(tmp_path, catalogue)
    assert name == "at-00000040"
    wording(notes[0])


def test_without_a_catalogue_the_files_show_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, 10)
    assert choose(tmp_path, []) == ("at-00000040", [])
    assert choose(tmp_path / "empty", [], tmp_path / "at-resumed") == ("at-resumed", [])
    assert choose(tmp_path / "empty", []) == ("", [])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogued") / "run"
    settings = ["--task", "xor", "--num-workers", "2", "--elastic", "--steps", "100", "--pace", "5ms"]
    more = ["--checkpoint-every", "20", "--keep-checkpoints", "2", "--run-dir", str(folder)]
    result = paceline("train", *settings, *more)
    assert result.code == 0, result.err
    return folder


def test_an_elastic_runs_checkpoints_are_noted_by_the_coordinator_and_old_ones_dropped(run_dir: Path) -> None:
    with EmbeddedNode(run_dir) as node:
        (run,) = node.client.read("Runs.List", pb.ListRuns(with_ended=True), pb.RunList).runs
        content = node.client.read("Checkpoints.List", pb.ListCheckpoints(run=run.run), pb.CheckpointList)
    steps = [checkpoint.step for checkpoint in content.checkpoints]
    assert set(steps) <= {20, 40, 60, 80, 100}
    assert 100 in steps, "no worker leaves, and so ends the generation, before the last one is noted"
    assert 20 not in steps
    for checkpoint in content.checkpoints:
        (shard,) = checkpoint.shards
        folder = Path(shard.uri).parent
        if folder.exists():
            assert verified(folder, "worker-0").sha256 == shard.sha256


def test_the_run_reports_which_were_noted(run_dir: Path) -> None:
    rows = paceline("checkpoint", "list", str(run_dir), "--json").data()["checkpoints"]
    assert [(row["at"], row["steps"]) for row in rows] == [(160, 80), (200, 100)]
    assert "catalogue" in rows[0]["pinned_by"]
    assert rows[1]["pinned_by"] == "resume, catalogue"


def test_checkpoints_of_elastic_servers_are_noted_too_also_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["--task", "xor", "--mode", "asgd", "--num-workers", "2", "--elastic", "--steps", "60"]
    more = ["--pace", "5ms", "--checkpoint-every", "20", "--keep-checkpoints", "2", "--run-dir", str(folder)]
    result = paceline("train", *settings, *more)
    assert result.code == 0, result.err
    rows = paceline("checkpoint", "list", str(folder), "--json").data()["checkpoints"]
    assert rows[-1]["pinned_by"] == "resume, catalogue"
    with EmbeddedNode(folder) as node:
        (run,) = node.client.read("Runs.List", pb.ListRuns(with_ended=True), pb.RunList).runs
        content = node.client.read("Checkpoints.List", pb.ListCheckpoints(run=run.run), pb.CheckpointList)
    assert [checkpoint.step for checkpoint in content.checkpoints][-1] == 120
