"""A node recovers everything it acknowledged, and refuses to start from damaged data."""

import errno
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.processes.forks import fork
from tests.fixtures.wording import Wording
from tests.raft_simulation.disk import PowerLossError, VirtualFiles

from paceline.coordinator.raft.log import empty_snapshot
from paceline.coordinator.raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    NodeId,
    Snapshot,
    Term,
)
from paceline.coordinator.server.storage import Storage, StorageError, StoredState, read_folder

ME = NodeId(1)
FIRST = Membership(frozenset({NodeId(1), NodeId(2), NodeId(3)}))


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(Index(index), Term(term), EntryKind.COMMAND, data)


def opened(folder: Path) -> Storage:
    storage = Storage(folder, ME)
    storage.load(FIRST)
    return storage


def written(folder: Path) -> Path:
    storage = opened(folder)
    storage.save(HardState(Term(1), NodeId(2)), [entry(1), entry(2)])
    storage.save(HardState(Term(2), None), [entry(3, 2, b"third")])
    storage.close()
    return folder / "wal-00000001.log"


def test_a_fresh_node_has_nothing_and_a_restarted_one_has_all(tmp_path: Path) -> None:
    storage = Storage(tmp_path, ME)
    loaded = storage.load(FIRST)
    assert (loaded.hard_state, loaded.entries) == (HardState(Term(0), None), [])
    assert loaded.snapshot == empty_snapshot(FIRST)
    storage.close()
    written(tmp_path)
    loaded = read_folder(tmp_path, ME, FIRST)
    assert loaded.hard_state == HardState(Term(2), None)
    assert loaded.entries == [entry(1), entry(2), entry(3, 2, b"third")]


def test_after_a_failed_write_the_whole_log_is_written_again(tmp_path: Path) -> None:
    """What a read returns then may be in memory only."""
    first = written(tmp_path)
    opened(tmp_path).close()
    assert first.exists()
    storage = Storage(tmp_path, ME)
    loaded = storage.load(FIRST, after_failure=True)
    storage.close()
    assert not first.exists()
    assert (
        read_folder(tmp_path, ME, FIRST).entries
        == loaded.entries
        == [entry(1), entry(2), entry(3, 2, b"third")]
    )


def test_a_later_entry_replaces_those_from_its_index_on(tmp_path: Path) -> None:
    written(tmp_path)
    storage = opened(tmp_path)
    storage.save(None, [entry(2, 3, b"other")])
    storage.close()
    assert read_folder(tmp_path, ME, FIRST).entries == [entry(1), entry(2, 3, b"other")]


def test_a_torn_end_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole").read_bytes()
    last = len(whole) - len(b"third") - 26  # where the last entry's record begins
    for cut in range(last + 1, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "wal-00000001.log").write_bytes(whole[:cut])
        storage = Storage(folder, ME)
        assert storage.load(FIRST).entries == [entry(1), entry(2)]
        storage.save(None, [entry(3, 4)])  # and it can be written on
        storage.close()
        assert read_folder(folder, ME, FIRST).entries[-1] == entry(3, 4)


def test_a_changed_byte_before_the_end_is_refused(tmp_path: Path, wording: Wording) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    last = len(whole) - len(b"third") - 26
    for place in range(0, last, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with wording.raises(StorageError):
            read_folder(tmp_path, ME, FIRST)


LONG = bytes(range(1, 256)) * 1024  # 255 KiB, as a plan or a list of members may be


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_damage_in_a_long_record_is_refused_wherever_it_is(
    tmp_path: Path, damaged: int, wording: Wording
) -> None:
    storage = opened(tmp_path)
    ends = []
    for index in (1, 2, 3):
        storage.save(None, [entry(index, 1, LONG)])
        ends.append((tmp_path / "wal-00000001.log").stat().st_size)
    storage.close()
    path, start = tmp_path / "wal-00000001.log", ends[damaged - 1] - len(LONG)
    whole = path.read_bytes()
    for place in (start, start + 70_000, ends[damaged - 1] - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with wording.raises(StorageError):
            read_folder(tmp_path, ME, FIRST)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_length_of_a_long_record_is_no_torn_end(tmp_path: Path, damaged: int) -> None:
    """The next record that verifies is 255 KiB behind it."""
    path = written(tmp_path)
    storage = opened(tmp_path)
    begins = []
    for index in (4, 5, 6):
        begins.append(path.stat().st_size)
        storage.save(None, [entry(index, 2, LONG)])
    storage.close()
    whole = bytearray(path.read_bytes())
    whole[begins[damaged - 1] + 3] ^= 0x40  # the length, which now ends behind the file
    path.write_bytes(whole)
    with pytest.raises(StorageError):
        read_folder(tmp_path, ME, FIRST)


def test_a_long_append_that_was_interrupted_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path)
    storage, before = opened(tmp_path), path.stat().st_size
    storage.save(None, [entry(4, 2, LONG), entry(5, 2, LONG)])
    storage.close()
    whole = path.read_bytes()
    for cut in (before + 5, before + 70_000, len(whole) - 70_000):
        for tail in (b"", bytes(len(whole) - cut)):  # or the file has grown without its last blocks
            path.write_bytes(whole[:cut] + tail)
            assert [e.index for e in read_folder(tmp_path, ME, FIRST).entries][:3] == [1, 2, 3]


def test_a_snapshot_takes_the_place_of_the_log_before_it(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    storage.save(HardState(Term(1), None), [entry(n) for n in range(1, 8)])
    snapshot = Snapshot(Index(5), Term(1), FIRST, b"state")
    storage.save_snapshot(snapshot, HardState(Term(1), None), [entry(6), entry(7)])
    storage.save(None, [entry(8)])
    storage.close()
    stored_state = read_folder(tmp_path, ME, FIRST)
    assert stored_state.snapshot == snapshot
    assert [e.index for e in stored_state.entries] == [6, 7, 8]
    assert [path.name for path in tmp_path.glob("wal-*")] == ["wal-00000002.log"]


def test_a_snapshot_that_is_damaged_is_not_made_up_for(tmp_path: Path, wording: Wording) -> None:
    storage = opened(tmp_path)
    storage.save(HardState(Term(1), None), [entry(n) for n in range(1, 5)])
    snapshot = Snapshot(Index(3), Term(1), FIRST, b"state")
    storage.save_snapshot(snapshot, HardState(Term(1), None), [entry(4)])
    storage.close()
    path = next(tmp_path.glob("snapshot-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with wording.raises(StorageError):
        read_folder(tmp_path, ME, FIRST)


def test_a_folder_belongs_to_one_node_and_one_process(tmp_path: Path, wording: Wording) -> None:
    written(tmp_path)
    with wording.raises(StorageError):
        read_folder(tmp_path, NodeId(2), FIRST)
    storage = Storage(tmp_path, ME)
    with wording.raises(StorageError):
        Storage(tmp_path, ME)
    storage.close()


def test_a_full_disk_stops_the_node_and_breaks_no_guarantee(tmp_path: Path) -> None:
    written(tmp_path)

    def body() -> bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        storage = opened(tmp_path)
        size = (tmp_path / "wal-00000001.log").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        storage.save(None, [entry(4, 2, b"y" * 1000)])
        return b"not reached"

    error = fork(body).end().error
    assert error.startswith("StorageError: ")
    assert os.strerror(errno.EFBIG) in error
    assert [e.index for e in read_folder(tmp_path, ME, FIRST).entries] == [1, 2, 3]


def test_the_initial_members_are_remembered_and_not_read_again(tmp_path: Path) -> None:
    storage = Storage(tmp_path, ME)
    storage.load(FIRST)
    storage.close()
    other = Membership(frozenset({NodeId(1)}))
    storage = Storage(tmp_path, ME)
    assert storage.load(other).snapshot.membership == FIRST
    storage.close()


def crashes_while(act: str, snapshot: Snapshot, entries: list[Entry]) -> Iterator[StoredState]:
    """What is found when the power fails after each byte of an act; the last one was not disturbed."""
    fuse = 0
    while True:
        files = VirtualFiles(random.Random(fuse))
        storage = Storage(Path("node"), ME, files=files)
        storage.load(FIRST)
        storage.save(HardState(Term(1), None), [entry(n) for n in range(1, 8)])
        files.fuse = fuse
        try:
            if act == "save":
                storage.save(HardState(Term(3), ME), entries)
            else:
                storage.save_snapshot(snapshot, HardState(Term(3), ME), entries)
        except PowerLossError:
            files.fuse = None
            again = Storage(Path("node"), ME, files=files)
            loaded = again.load(FIRST)
            again.save(None, [])
            assert (
                Storage(Path("node"), ME, files=files).load(FIRST).log().last_index == loaded.log().last_index
            )
            yield loaded
            fuse += 1
            continue
        yield Storage(Path("node"), ME, files=files).load(FIRST)
        return


def test_a_crash_at_any_byte_of_a_write_leaves_a_beginning_of_it() -> None:
    new = [entry(6, 3), entry(7, 3), entry(8, 3)]
    seen = [
        [e.term for e in stored_state.entries]
        for stored_state in crashes_while("save", Snapshot(Index(0), Term(0), FIRST, b""), new)
    ]
    lengths = [(len(terms), terms.count(Term(3))) for terms in seen]
    assert set(lengths) == {(7, 0), (6, 1), (7, 2), (8, 3)}
    assert lengths[0] == (7, 0)
    assert lengths[-1] == (8, 3)


def test_a_crash_at_any_byte_of_a_compaction_loses_nothing() -> None:
    snapshot = Snapshot(Index(5), Term(1), FIRST, b"state")
    for stored_state in crashes_while("snapshot", snapshot, [entry(6), entry(7)]):
        assert stored_state.log().last_index == 7
        assert stored_state.snapshot.index in (0, 5)


def test_a_crash_at_any_byte_of_a_leaders_snapshot_never_mixes_two_stories() -> None:
    """The leader's snapshot ends with another entry 5 than ours: what we had after it is not its story."""
    snapshot = Snapshot(Index(5), Term(3), FIRST, b"state")
    stored_states = list(crashes_while("snapshot", snapshot, [entry(6, 3)]))
    assert {(f.snapshot.index, tuple(e.term for e in f.entries)) for f in stored_states} == {
        (0, (1,) * 7),
        (5, ()),
        (5, (3,)),
    }
    # A node never lives in an older term than its log, or it could write an old term's entry after a new one.
    assert all(f.hard_state.term >= f.log().last_term for f in stored_states)


def test_what_a_crashed_node_writes_next_is_found_again() -> None:
    """Also after a crash between the leader's snapshot and the file that goes with it."""
    files = VirtualFiles(random.Random(0))
    storage = Storage(Path("node"), ME, files=files)
    storage.load(FIRST)
    storage.save(HardState(Term(1), None), [entry(n) for n in range(1, 8)])
    files.fuse = 130  # the snapshot, but not the file that follows
    with pytest.raises(PowerLossError):
        storage.save_snapshot(Snapshot(Index(5), Term(3), FIRST, b"state"), HardState(Term(3), ME), [])
    files.fuse = None
    storage = Storage(Path("node"), ME, files=files)
    assert storage.load(FIRST).is_unfinished
    storage.save(None, [entry(6, 3, b"acknowledged")])
    loaded = Storage(Path("node"), ME, files=files).load(FIRST)
    assert (loaded.snapshot.index, loaded.entries) == (5, [entry(6, 3, b"acknowledged")])
