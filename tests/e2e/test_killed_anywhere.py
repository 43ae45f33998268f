"""A run that is killed at any moment, and resumed each time, ends with the bits of an undisturbed one."""

import random
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.kill_and_resume import KilledRun

SSGD = ["--mode", "ssgd", "--num-workers", "2"]
LOCALSGD = ["--mode", "localsgd", "--sync-every", "4", "--num-workers", "2", "--optimizer", "momentum"]
SHARDS = ["--shards", "4", "--num-workers", "2"]
UNDISTURBED = {"shards": ["--mode", "ssgd", "--num-workers", "4"]}


def kill_and_compare(name: str, mode: list[str], folder: Path, *, kills: int, steps: int, seed: int) -> None:
    common = ["--task", "digits", "--batch-size", "4", "--steps", str(steps), "--seed", "5"]
    settings = [*common, *mode, "--pace", "4ms", "--checkpoint-every", "10"]
    killed = KilledRun(folder / "killed", settings, random.Random(seed))
    while killed.kills < kills and killed.strike():
        pass
    assert killed.kills > 0, "it finished before anybody struck: give it more steps"
    hashes = set(killed.finish().values())
    plain = [*common, *UNDISTURBED.get(name, mode)]
    undisturbed = paceline("train", *plain, "--run-dir", str(folder / "undisturbed"), "--json")
    assert undisturbed.code == 0, undisturbed.err
    assert hashes == set(undisturbed.data()["result"]["state_sha256"].values())
    assert paceline("checkpoint", "verify", str(folder / "killed")).code == 0


CASES = [("ssgd", SSGD), ("localsgd", LOCALSGD), ("shards", SHARDS)]
IDS = [name for name, _ in CASES]
QUICK = [case for case in CASES if case[0] != "localsgd"]  # its rounds are killed in test_elastic_rounds too


@pytest.mark.parametrize(("name", "mode"), QUICK, ids=[name for name, _ in QUICK])
def test_a_run_killed_at_random_moments_equals_the_uninterrupted_one(
    name: str, mode: list[str], tmp_path: Path
) -> None:
    kill_and_compare(name, mode, tmp_path, kills=2, steps=600, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "mode"), CASES, ids=IDS)
def test_a_run_killed_twenty_times_equals_the_uninterrupted_one(
    name: str, mode: list[str], tmp_path: Path
) -> None:
    kill_and_compare(name, mode, tmp_path, kills=20, steps=2500, seed=20)
