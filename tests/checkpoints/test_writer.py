"""Checkpoint writer: training continues while at most two checkpoints are written, and when writing fails."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.fixtures.processes.full_disk import files_of_at_most
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import folder_at, newest_complete, newest_shared
from paceline.checkpoints.snapshot import Snapshot, WriteResult, read_snapshot
from paceline.checkpoints.writer import Cataloguer, CheckpointWriter, SnapshotTarget
from paceline.events.log import MemoryLog
from paceline.worker.reporting import CheckpointReporter, Report


class SlowCoordinator(Cataloguer):
    """Keeps the writing thread waiting until it is let go."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.noted: list[tuple[int, int, str]] = []

    def begin(self, generation: int, at: int) -> None:
        assert self.may_go_on.wait(120), "the writer was not released"

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool:
        assert file.exists()
        self.noted.append((generation, at, wrote.sha256))
        return True


@dataclass
class Stage:
    """One participant with a live tensor, which changes after every snapshot."""

    root: Path
    participants: int = 1
    keep: int = 100
    cataloguer: Cataloguer = field(default_factory=Cataloguer)

    def __post_init__(self) -> None:
        place = SnapshotTarget(root=self.root, who="worker-0", participants=self.participants, keep=self.keep)
        self.writer = CheckpointWriter(place, self.cataloguer)
        self.live = torch.zeros(1000)

    def save(self, step: int, *, must: bool = False) -> None:
        self.live.fill_(step)

        def take() -> Snapshot:
            return Snapshot({"w": self.live}, {"clock": step, "at": step, "optimizer": None})

        self.writer.save(step, step, take, must=must, generation=7)
        self.live.fill_(-1)

    def saved(self, step: int) -> float:
        tensors = read_snapshot(folder_at(self.root, step), "worker-0").tensors["w"]
        assert len(set(tensors.tolist())) == 1
        return float(tensors[0])


def test_training_continues_before_the_write_and_the_file_holds_the_state_of_that_moment(
    tmp_path: Path,
) -> None:
    slow = SlowCoordinator()
    stage = Stage(tmp_path, cataloguer=slow)
    stage.save(1)
    assert not list(tmp_path.iterdir())  # we are back, and the writer has not even begun
    slow.may_go_on.set()
    stage.writer.drain()
    assert stage.saved(1) == 1.0
    (news,) = stage.writer.take_reports()
    assert (news.name, news.step, news.failure, news.is_catalogued) == ("at-00000001", 1, "", True)
    assert news.nbytes == sum(p.stat().st_size for p in folder_at(tmp_path, 1).iterdir())
    assert [(generation, at) for generation, at, _ in slow.noted] == [(7, 1)]


def test_a_worker_that_saves_for_all_skips_early_requests_but_never_the_last(tmp_path: Path) -> None:
    slow = SlowCoordinator()
    stage = Stage(tmp_path, cataloguer=slow)
    for step in (1, 2, 3, 4):
        stage.save(step)
    last = threading.Thread(target=lambda: stage.save(5, must=True))
    last.start()
    slow.may_go_on.set()
    last.join()
    stage.writer.drain()
    assert [stage.saved(step) for step in (1, 2, 5)] == [1.0, 2.0, 5.0]
    assert not folder_at(tmp_path, 3).exists()
    assert [news.name for news in stage.writer.take_reports() if news.is_skipped] == [
        "at-00000003",
        "at-00000004",
    ]


def test_where_all_must_save_the_same_ones_none_is_skipped(tmp_path: Path) -> None:
    slow = SlowCoordinator()
    stage = Stage(tmp_path, participants=2, cataloguer=slow)
    stage.save(1)
    stage.save(2)
    third = threading.Thread(target=lambda: stage.save(3))
    third.start()
    assert not stage.writer.take_reports()
    slow.may_go_on.set()
    third.join()
    stage.writer.drain()
    assert [stage.saved(step) for step in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_a_full_disk_is_reported_once_and_the_previous_checkpoint_stays(
    tmp_path: Path, wording: Wording
) -> None:
    stage, log, reported = Stage(tmp_path), MemoryLog(), list[Report]()
    reporter = CheckpointReporter(log, reported.append)
    stage.save(1)
    stage.writer.drain()
    with files_of_at_most(16):  # bytes: as on a disk that is full
        for step in (2, 3):
            stage.save(step)
        stage.writer.drain()
    checkpoint = newest_complete(tmp_path, 1)
    assert checkpoint is not None
    assert checkpoint.version == 1
    assert not list(tmp_path.rglob("*.part"))
    stage.save(4)
    stage.writer.drain()
    assert stage.saved(4) == 4.0
    reporter.report(stage.writer.take_reports())
    notes = [str(report["text"]) for report in reported if report["ev"] == "note"]
    assert len(notes) == 2
    assert "at-00000002" in notes[0]
    assert "at-00000004" in notes[1]
    wording("\n".join(notes))
    kinds = [event.kind for event in log.plain]
    assert kinds == ["checkpoint", "checkpoint_failed", "checkpoint_failed", "checkpoint"]


def test_a_folder_that_cannot_be_made_is_a_failure_and_no_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("a file is in the way")
    stage.save(1)
    stage.writer.drain()
    (news,) = stage.writer.take_reports()
    assert "checkpoints" in news.failure


def test_a_bug_in_the_thread_is_raised_in_the_caller(tmp_path: Path) -> None:
    class Broken(Cataloguer):
        def begin(self, generation: int, at: int) -> None:
            raise ZeroDivisionError("a mistake")

    stage = Stage(tmp_path, cataloguer=Broken())
    stage.save(1)
    stage.writer.drain()
    try:
        stage.writer.take_reports()
    except ZeroDivisionError:
        return
    raise AssertionError("the error was not raised")


def test_a_checkpoint_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.save(1)
    stage.writer.drain()
    before = (folder_at(tmp_path, 1) / "worker-0.json").stat().st_mtime_ns
    stage.save(1)
    stage.writer.drain()
    assert (folder_at(tmp_path, 1) / "worker-0.json").stat().st_mtime_ns == before
    assert len(stage.writer.take_reports()) == 1


def test_old_checkpoints_go_when_newer_ones_are_complete(tmp_path: Path) -> None:
    stage = Stage(tmp_path, keep=2)
    for step in range(1, 6):
        stage.save(step)
        stage.writer.drain()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at-00000004", "at-00000005"]
    assert [number for news in stage.writer.take_reports() for number in news.removed] == [1, 2, 3]
    assert newest_shared(tmp_path, 1) is not None


def test_there_is_a_thread_only_while_there_is_something_to_write(tmp_path: Path) -> None:
    slow = SlowCoordinator()
    before, stage = threading.active_count(), Stage(tmp_path, cataloguer=slow)
    assert threading.active_count() == before
    stage.save(1)
    assert threading.active_count() == before + 1
    slow.may_go_on.set()
    stage.writer.drain()
    assert threading.active_count() == before
    stage.save(2, must=True)
    stage.writer.drain()
    assert stage.saved(2) == 2.0
