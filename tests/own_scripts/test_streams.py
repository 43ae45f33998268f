"""Streams: every record of every committed step is used once, also by resumed runs and replaced workers."""

from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch
from tests.fixtures.processes.command import resuming, running_script
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.elastic_runs import events, stop, strike, until_all_are_in
from tests.own_scripts.test_run_script import codes_of, result_of, run_script
from torch.utils.data import DataLoader

import datasets
from paceline.launchers.local import LocalLauncher
from paceline.laws.lab import Lab
from paceline.sync.assignment import WorkUnit
from paceline.worker.script.stream import StreamSamples, _Part

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "stream_script.py"


def noted(folder: Path) -> dict[tuple[int, int], list[int]]:
    """The records of each share, by step and by the first record."""
    shares = {}
    for file in folder.iterdir():
        step, first = file.name.split(".")
        shares[int(step), int(first)] = [int(number) for number in file.read_text().split()]
    return shares


def expected(*, parts: int, records: int, steps: int, size: int) -> dict[tuple[int, int], list[int]]:
    shares = {}
    for part in range(parts):
        numbers = cycle(range(part, records, parts))
        for step in range(steps):
            share = list(islice(numbers, size))
            shares[step, share[0]] = share
    return shares


def test_a_resumed_stream_has_no_gap_and_no_double(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Four passes over the records; stopped in the middle of one."""
    (tmp_path / "noted").mkdir()
    arguments = (f"noted={tmp_path}/noted", "records=60")
    done = run_script(
        launcher, tmp_path, "--num-workers", "2", arguments=(*arguments, "stop=8"), script=SCRIPT
    )
    assert result_of(done, tmp_path)["stopped_early"]
    assert warm_paceline(launcher, "run", "--resume", "run", folder=tmp_path).code == 0
    assert noted(tmp_path / "noted") == expected(parts=2, records=60, steps=20, size=6)


@pytest.mark.soak
def test_a_stream_continues_with_other_workers(tmp_path: Path) -> None:
    """Three workers; one is killed and replaced; stopped, and resumed, when one more is killed."""
    notes = tmp_path / "noted"
    notes.mkdir()
    run_dir = tmp_path / "run"
    flags = ("--elastic", "--num-workers", "3", "--shards", "6", "--seed", "3", "--checkpoint-every", "5")
    gates = f"gates=6:{tmp_path}/killed,12:{tmp_path}/never,16:{tmp_path}/joined"
    with running_script(run_dir, SCRIPT, f"noted={notes}", gates, flags=flags, participants=3) as run:
        until_all_are_in(run, 0, workers=3)
        strike(run, "worker-1")
        run.until(lambda: len(events(run, "worker_started")) > 3, "the lost worker is replaced")
        (tmp_path / "killed").touch()
        run.until(lambda: any(file.name.startswith("11.") for file in notes.iterdir()), "step 11 has begun")
        (tmp_path / "never").touch()
        stop(run)
    with resuming(run_dir, participants=3) as run:
        strike(run, "worker-2")
        (tmp_path / "joined").touch()
        done = run.end()
        assert done.code == 0, done.err
    assert noted(notes) == expected(parts=6, records=500, steps=20, size=2)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (("stateless=1",), ("--num-workers", "2")),
        (("epochs=1",), ("--num-workers", "2")),
        ((), ("--mode", "asgd", "--num-workers", "2")),
    ],
)
def test_streams_that_could_not_be_continued_are_refused(
    arguments: tuple[str, ...], flags: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = run_script(launcher, tmp_path, *flags, arguments=(f"noted={tmp_path}", *arguments), script=SCRIPT)
    assert done.code == 3
    assert codes_of(done) == {"E125"}


def test_a_stream_of_hugging_face_is_read_by_parts_and_continued() -> None:
    def rows(shards: list[int]) -> list[dict[str, int]]:
        return [{"id": shard * 100 + number} for shard in shards for number in range(5)]

    stream = datasets.IterableDataset.from_generator(
        lambda shards: iter(rows(shards)), gen_kwargs={"shards": [0, 1, 2, 3]}
    )
    first = _Part(stream, 0, 2)
    begun = [row["id"] for row in first.read(7)]
    other = _Part(stream, 0, 2)
    other.load_state_dict(first.state_dict())
    rest = [row["id"] for row in other.read(6)]
    second = [row["id"] for row in _Part(stream, 1, 2).read(10)]
    assert sorted(begun + rest[:3] + second) == sorted(row["id"] for row in rows([0, 1, 2, 3]))
    assert rest[3:] == begun[:3]  # the next pass


def test_a_worker_reads_on_from_the_newest_state_that_it_knows() -> None:
    class Count(torch.utils.data.IterableDataset[int]):
        at = 0
        read = 0

        def __iter__(self):  # type: ignore[no-untyped-def]  # numbers
            while self.at < 1000:
                self.at += 1
                Count.read += 1
                yield self.at - 1

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    plan = replace(Lab("ssgd").plan(), batch_sizes=(2, 2, 2))
    samples, other = (StreamSamples(DataLoader(Count(), batch_size=6), seed=0) for _ in range(2))
    for step in range(5):
        (batch,) = samples.batches(plan, WorkUnit(1, step))
        assert list(batch) == [1 + 6 * step, 4 + 6 * step]
    samples.commit(4)
    other.load_state_dict(samples.state_dict())
    Count.read = 0
    (again,) = other.batches(plan, WorkUnit(1, 4))  # its generation was lost
    assert list(again) == [25, 28]
    assert Count.read == 6
    (ahead,) = other.batches(plan, WorkUnit(1, 7))
    assert list(ahead) == [43, 46]
