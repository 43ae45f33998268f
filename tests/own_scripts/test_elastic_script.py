"""`paceline run --elastic`: workers that are killed change neither a bit nor a sample."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.fixtures.processes.command import Running, running_script
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.elastic_runs import events, strike, until_all_are_in
from tests.fixtures.waiting import until_gone
from tests.own_scripts.test_run_script import run_script

from paceline.launchers.local import LocalLauncher

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "gated_script.py"
SHARDS = 4
ELASTIC = ("--elastic", "--num-workers", "2", "--shards", str(SHARDS), "--seed", "3")


def hashes_of(run_dir: Path) -> set[str]:
    return set(json.loads((run_dir / "result.json").read_text())["state_sha256"].values())


def undisturbed(launcher: LocalLauncher, folder: Path, *flags: str, arguments: tuple[str, ...]) -> set[str]:
    """The hashes of a run that keeps its workers, one for each shard."""
    workers = ("--num-workers", str(SHARDS), "--seed", "3", "--run-dir", "plain")
    done = warm_paceline(
        launcher, "run", *workers, *flags, str(SCRIPT), "gates=0:/", *arguments, folder=folder
    )
    assert done.code == 0, done.err
    return hashes_of(folder / "plain")


def has_started(run: Running, workers: int) -> bool:
    """Whether so many workers, replacements included, have started."""
    return len(events(run, "worker_started")) >= workers


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (("--mode", "ssgd"), ("loaders=2",)),
        pytest.param(("--mode", "ssgd"), (), marks=pytest.mark.soak),
        pytest.param(("--mode", "localsgd", "--sync-every", "5"), ("loaders=1",), marks=pytest.mark.soak),
        pytest.param(("--mode", "diloco", "--sync-every", "5"), (), marks=pytest.mark.soak),
    ],
)
def test_a_killed_worker_is_replaced_and_the_bits_stay_the_same(
    flags: tuple[str, ...], arguments: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    gates = f"gates=6:{tmp_path}/killed,22:{tmp_path}/joined"
    with running_script(run_dir, SCRIPT, gates, *arguments, flags=(*ELASTIC, *flags), participants=2) as run:
        until_all_are_in(run, 0, workers=2)
        strike(run, "worker-1")
        (tmp_path / "killed").touch()
        run.until(partial(has_started, run, 3), "the lost worker is replaced")
        (tmp_path / "joined").touch()
        processes = run.processes()
        done = run.end()
        assert done.code == 0, done.err
        until_gone(processes)
    assert hashes_of(run_dir) == undisturbed(launcher, tmp_path, *flags, arguments=arguments)
    verified = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out


def test_commits_are_counted_in_steps_of_the_run(launcher: LocalLauncher, tmp_path: Path) -> None:
    flags = ("--mode", "localsgd", "--sync-every", "4")
    run_script(launcher, tmp_path, *ELASTIC, *flags, arguments=("save=1",))
    for rank in range(2):
        assert json.loads((tmp_path / "run" / f"commits-{rank}.json").read_text()) == [4, 8, 12, 16]


@pytest.mark.soak
@pytest.mark.parametrize(("loaders", "every", "epochs"), [(2, 50, 52), (4, 50, 52)])
def test_twenty_kills_change_neither_a_bit_nor_a_sample(
    loaders: int, every: int, epochs: int, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Four workers, 5 kills of each, with loader processes; forks leave no warning of gRPC."""
    kills = range(1, 21)
    gates = "gates=" + ",".join(f"{every * kill}:{tmp_path}/{kill}" for kill in kills)
    arguments = (f"loaders={loaders}", f"epochs={epochs}")
    flags = ("--elastic", "--num-workers", "4", "--shards", str(SHARDS), "--seed", "3")
    run_dir = tmp_path / "run"
    generation = 0
    with running_script(run_dir, SCRIPT, gates, *arguments, flags=flags, participants=4) as run:
        for kill in kills:
            generation = until_all_are_in(run, generation, workers=4)
            strike(run, f"worker-{kill % 4}")
            run.until(partial(has_started, run, 4 + kill), "it is replaced")
            (tmp_path / str(kill)).touch()  # the survivors stay in the body of a step until then
        processes = run.processes()
        done = run.end()
        assert done.code == 0, done.err
        until_gone(processes)
    assert hashes_of(run_dir) == undisturbed(launcher, tmp_path, arguments=arguments)
    verified = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out
    logs = [log.read_text() for log in (run_dir / "logs").iterdir()]
    assert not [line for log in logs for line in log.splitlines() if "fork" in line or "grpc" in line.lower()]
