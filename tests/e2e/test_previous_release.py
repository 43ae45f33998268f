"""Run folders that the previous release wrote are read, verified, replayed and resumed.

`tests/fixtures/previous_release/*.tar.gz` were written by `paceline train --seed 7` of the version
before the packages were reorganised; formats are a promise, so these files are never regenerated.
"""

import json
import tarfile
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline

FOLDER = Path(__file__).parent.parent / "fixtures" / "previous_release"
FINISHED = ("asgd-elastic", "asgd-static", "fsdp-static", "ssgd-elastic", "ssgd-static")
AFTER_40_STEPS = "0d8dcbf3fd6e9c03c929a518f946df8f95f5875fb53246e8819c920019fdea77"


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_of_the_previous_release_is_read_and_verified(name: str, tmp_path: Path) -> None:
    run = unpack(name, tmp_path)
    before = json.loads((run / "result.json").read_text("utf-8"))
    verified = paceline("verify", str(run), "--json", folder=tmp_path)
    assert verified.code == 0, verified.out + verified.err
    status = paceline("status", str(run), "--json", folder=tmp_path)
    assert status.code == 0, status.err
    assert json.loads((run / "result.json").read_text("utf-8")) == before


@pytest.mark.parametrize("name", ["asgd-elastic", "asgd-static", "ssgd-elastic", "ssgd-static"])
def test_a_schedule_recorded_by_the_previous_release_replays_bit_by_bit(name: str, tmp_path: Path) -> None:
    run = unpack(name, tmp_path)
    replayed = paceline("replay", str(run), "--json", folder=tmp_path)
    assert replayed.code == 0, replayed.out + replayed.err


@pytest.mark.parametrize("name", ["ssgd-interrupted", "elastic-interrupted"])
def test_a_run_that_the_previous_release_began_is_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    run = unpack(name, tmp_path)
    resumed = paceline("train", "--resume", str(run), "--json", folder=tmp_path)
    assert resumed.code == 0, resumed.err
    assert set(resumed.data()["result"]["state_sha256"].values()) == {AFTER_40_STEPS}
