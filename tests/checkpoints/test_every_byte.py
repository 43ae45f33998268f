"""Damage of any byte of any file of a run's checkpoints is detected, and the checkpoint before it is used."""

import json
import random
import shutil
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real, resumed
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import DAMAGED, newest_complete, newest_shared, verified
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import OptimizerChoice

WHOLE = 8192  # bytes of a file of which each one is changed; of larger ones a dense sample
ADAM = OptimizerChoice(name="adam", lr=0.01)


def positions(size: int) -> list[int]:
    if size <= WHOLE:
        return list(range(size))
    return sorted({*range(2048), *range(0, size, 97), *range(size - 64, size)})


@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_any_changed_byte_of_any_file_is_noticed(mode: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    run = real(small_plan(mode, checkpoint_every=4, optimizer=ADAM), tmp_path, launcher)
    newest = max((run.run_dir / "checkpoints").glob("at-*"))
    files = sorted(newest.glob("*-0.*"))  # those of one participant
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    rng, changed = random.Random(1), 0
    for path in files:
        data = path.read_bytes()
        for position in positions(len(data)):
            # A flipped bit; in text also any other value: a blank, for instance, that becomes another blank.
            flipped, other = data[position] ^ 1, (data[position] + rng.randrange(1, 256)) % 256
            for value in {flipped, other} if path.suffix == ".json" else {flipped}:
                path.write_bytes(data[:position] + bytes([value]) + data[position + 1 :])
                with pytest.raises(DAMAGED):
                    verified(path.parent, path.stem)
                changed += 1
        path.write_bytes(data)
        verified(path.parent, path.stem)
    assert changed >= sum(path.stat().st_size for path in files if path.stat().st_size <= WHOLE)


@pytest.mark.parametrize("blank", [b"\t", b"\n", b"\r"])
def test_also_a_blank_that_means_the_same_is_noticed(
    blank: bytes, launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    run = real(small_plan("single", checkpoint_every=4), tmp_path, launcher)
    path = max((run.run_dir / "checkpoints").glob("at-*/*.json"))
    path.write_bytes(path.read_bytes().replace(b" ", blank, 1))
    json.loads(path.read_bytes())
    with wording.raises(ValueError):
        verified(path.parent, path.stem)


@pytest.mark.parametrize(
    "damage",
    [
        "a changed byte",
        "cut short",
        "a missing file",
        "an empty folder",
        "garbage",
        "a wrong object",
        "a folder",
    ],
)
def test_the_one_before_is_used_and_leads_to_the_same_bits(
    damage: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("ssgd", checkpoint_every=4, optimizer=ADAM)
    run = real(plan, tmp_path, launcher)
    folder = max((tmp_path / "checkpoints").glob("at-*"))
    path = folder / "worker-1.json"
    match damage:
        case "a changed byte":
            data = bytearray((folder / "worker-0.safetensors").read_bytes())
            data[-1] ^= 0x40
            (folder / "worker-0.safetensors").write_bytes(data)
        case "cut short":
            (folder / "worker-1.safetensors").write_bytes((folder / "worker-1.safetensors").read_bytes()[:-1])
        case "a missing file":
            (folder / "worker-0.safetensors").unlink()
        case "an empty folder":
            shutil.rmtree(folder)
            folder.mkdir()
        case "garbage":
            path.write_bytes(random.Random(3).randbytes(500))
        case "a wrong object":
            path.write_text('{"sha256": 3, "facts": [1, 2]}')
        case "a folder":
            path.unlink()
            path.mkdir()
    checkpoint = newest_complete(tmp_path / "checkpoints", 2)
    assert checkpoint is not None
    assert checkpoint.version == 8
    assert checkpoint.passed_over == (folder.name,)
    again = resumed(tmp_path, launcher)
    assert again.sha256 == run.sha256
    whole = newest_complete(tmp_path / "checkpoints", 2)
    assert whole is not None
    assert whole.version == plan.steps
    assert whole.passed_over == ()  # the damaged one was set aside and written again


def test_nothing_at_all_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    for name in ("at-", "at-x", "elsewhere", "at-00000003"):
        (tmp_path / name).mkdir()
    (tmp_path / "at-00000004").write_text("a file")
    assert newest_complete(tmp_path, 2) is None
    assert newest_shared(tmp_path, 2) is None


def test_the_command_warns_and_resumes_from_the_previous_checkpoint(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    settings = ["--task", "xor", "--steps", "60", "--checkpoint-every", "20", "--run-dir", str(run_dir)]
    outcome = warm_paceline(launcher, "train", *settings, "--json", folder=tmp_path)
    assert outcome.code == 0, outcome.err
    newest = max((run_dir / "checkpoints").glob("at-*"))
    data = bytearray((newest / "worker-1.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "worker-1.safetensors").write_bytes(data)
    listed = paceline("checkpoint", "list", str(run_dir), "--json").data()["checkpoints"]
    assert [(row["at"], row["valid"], row["pinned_by"]) for row in listed] == [
        (20, True, ""),
        (40, True, "resume"),
        (60, False, ""),
    ]
    checked = paceline("checkpoint", "verify", str(run_dir), "--json")
    assert checked.code == 8
    assert [f["file"] for f in checked.data()["findings"] if not f["ok"]] == ["at-00000060/worker-1"]
    again = warm_paceline(launcher, "train", "--resume", str(run_dir), folder=tmp_path)
    assert again.code == 0, again.err
    assert "warning: checkpoint at-00000060 " in again.err
    assert " at-00000040" in again.err
    result = json.loads((run_dir / "result.json").read_text())
    assert result["state_sha256"] == outcome.data()["result"]["state_sha256"]
    assert paceline("checkpoint", "verify", str(run_dir)).code == 0
