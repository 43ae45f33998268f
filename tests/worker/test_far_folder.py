"""Rank 0 writes for a remote rank exactly what that rank would have written."""

import threading
from pathlib import Path

import torch
from tests.fixtures.runs.plans import small_plan
from tests.transport.test_meeting_place import two_places

from paceline.checkpoints.catalog import folders, newest_complete
from paceline.checkpoints.snapshot import Snapshot, read_snapshot
from paceline.checkpoints.writer import CheckpointWriter, WriteReport
from paceline.core.clock import SystemClock
from paceline.events.log import write_header
from paceline.events.read import read_history
from paceline.worker.context import (
    GatheringRunDir,
    RemoteClock,
    RemoteRunDir,
    ahead_ns,
    receive_snapshot,
    send_snapshot,
)

PLAN = small_plan("ssgd", keep_checkpoints=2)


def snapshot(value: float, clock: int) -> Snapshot:
    return Snapshot({"weight": torch.full((5,), value)}, {"clock": clock, "at": clock})


def save(writer: CheckpointWriter, number: int, value: float) -> None:
    writer.save(number, number, lambda: snapshot(value, number), must=True)


def writers(folder: Path) -> tuple[CheckpointWriter, CheckpointWriter, RemoteRunDir]:
    here, there = two_places()
    write_header(folder / "events.jsonl", run="r", plan="p", t0_ns=0, started_unix_s=0.0)
    near, far = GatheringRunDir(here, folder, None), RemoteRunDir(there, None)
    return near.writer(PLAN, "worker-0"), far.writer(PLAN, "worker-1"), far


def drain_all(*drained: CheckpointWriter) -> list[list[WriteReport]]:
    for writer in drained:
        writer.drain()
    return [writer.take_reports() for writer in drained]


def test_snapshots_of_both_ranks_are_in_the_folder_whether_they_are_equal_or_not(tmp_path: Path) -> None:
    near, far, _ = writers(tmp_path)
    for number, own in ((4, 1.0), (8, 2.0)):  # equal to rank 0's, then not
        save(near, number, 1.0)
        save(far, number, own)
    reported = drain_all(near, far)
    assert [[news.failure for news in each] for each in reported] == [["", ""], ["", ""]]
    root = tmp_path / "checkpoints"
    assert [folder.name for folder in folders(root)] == ["at-00000004", "at-00000008"]
    for folder, own in zip(folders(root), (1.0, 2.0), strict=True):
        assert read_snapshot(folder, "worker-0").tensors["weight"].tolist() == [1.0] * 5
        assert read_snapshot(folder, "worker-1").tensors["weight"].tolist() == [own] * 5
    newest = newest_complete(root, 2)
    assert newest is not None
    assert newest.clocks == (8, 8)


def test_a_checkpoint_brings_what_was_recorded_before_it_and_old_ones_go(tmp_path: Path) -> None:
    near, far, folder = writers(tmp_path)
    log = folder.open_log(PLAN, "worker-1", SystemClock())
    for number in (1, 2, 3):
        log.write("worker_started", pid=number, clock=0)
        save(near, number, 1.0)
        save(far, number, 1.0)
    drain_all(near, far)
    pids = [event.fields["pid"] for event in read_history(tmp_path / "events.jsonl").plain]
    assert pids == [1, 2, 3]
    assert folder.unsent() == b""
    assert [folder.name for folder in folders(tmp_path / "checkpoints")] == ["at-00000002", "at-00000003"]


def test_a_disk_that_refuses_fails_the_checkpoint_and_not_the_next_one(tmp_path: Path) -> None:
    near, far, _ = writers(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    save(near, 1, 1.0)
    save(far, 1, 2.0)
    reported = drain_all(near, far)
    assert reported[0][0].failure
    (tmp_path / "checkpoints").unlink()
    save(near, 2, 1.0)
    save(far, 2, 2.0)
    assert drain_all(near, far)[0][0].failure == ""
    assert newest_complete(tmp_path / "checkpoints", 2) is not None


def test_a_snapshot_to_resume_from_reaches_its_rank() -> None:
    here, there = two_places()
    sending = threading.Thread(target=send_snapshot, args=(here, 1, snapshot(3.0, 7)))
    sending.start()
    result = receive_snapshot(there)
    sending.join()
    assert result.tensors["weight"].tolist() == [3.0] * 5
    assert result.facts["clock"] == 7


def test_another_hosts_clock_is_learnt_by_asking() -> None:
    assert ahead_ns(asked_ns=100, theirs_ns=1_000_150, answered_ns=200) == 1_000_000
    clock = RemoteClock(5_000_000_000_000)
    assert clock.now_ns() - SystemClock().now_ns() > 4_000_000_000_000
    clock.sleep(0.0)
