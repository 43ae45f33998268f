"""Segments of an event log: rotation at a size, compression of closed segments, reading in order.

A log is the concatenation of its segments, each without its own header; offsets count bytes of that
concatenation. The newest segment is always `events.jsonl`, and writers append to no other file. Segment 0
has the header of the log. The first line of a later segment has its number and the offset at which
it begins, so this line alone decides which files belong to the log: the closed segments with smaller
numbers, `events.000000.jsonl`, or `.jsonl.gz` once they are compressed. Any other file is a leftover.

A writer holds a shared lock (flock) on the file while it checks that it is still the newest and appends a
line. Rotation needs the exclusive lock, so no line reaches a segment after its size was noted. The steps
of a rotation, each of which may be the last one before a crash: the closed name becomes a second link to
`events.jsonl`; a new segment with its header is written to a draft; the draft replaces `events.jsonl`.
A segment is compressed into a draft, which is synced, renamed and read back before the original is removed.

Where the file system has no locks or no links, the log stays one file. A closed segment that is missing or
damaged is read as a line that cannot be parsed, of as many bytes as are missing, so offsets stay valid.
"""

import errno
import fcntl
import gzip
import json
import mmap
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.disk import HAS_NO_LOCKS, write_durably
from paceline.core.errors import DamagedRecordError

SEGMENT_SCHEMA = "paceline.events.segment/1"
SEGMENT_BYTES = 64 << 20
READ_BYTES = 262_144
LOCK_S = 0.5  # longest wait of a writer for a rotation; then its line waits in memory
GZIP_LEVEL = 3  # half the time of the usual level, and a tenth more bytes
_HEAD = f'{{"schema":"{SEGMENT_SCHEMA}"'.encode()
_MAX_HEAD_BYTES = 1 << 20
_SESSION_START = b'{"kind":"run_started"'
_DAMAGED = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError)


@dataclass(frozen=True, slots=True)
class Session:
    """A moment of the newest session, by its own clock and by the calendar."""

    at_ns: int
    unix_s: float


@dataclass(frozen=True, slots=True)
class Head:
    """The place of one segment in its log, and facts from the segments before it."""

    number: int = 0
    begins: int = 0  # offset of its first byte behind the header
    header_bytes: int = 0  # which are not part of the log; 0 for segment 0, whose header is
    plans: tuple[str, ...] = ()  # that earlier segments name
    session: Session | None = None  # None: it began in this segment, or is not known


def closed_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number:06d}{path.suffix}")


def compressed_path(path: Path, number: int) -> Path:
    closed = closed_path(path, number)
    return closed.with_name(f"{closed.name}.gz")


def head_of(path: Path) -> Head:
    """Head of the newest segment; FileNotFoundError without a log."""
    with path.open("rb") as file:
        return _read_head(file, path)


def end_of_lines(path: Path) -> int:
    """Offset behind the last newline; 0 without a log."""
    try:
        head = head_of(path)
    except FileNotFoundError:
        return 0
    return head.begins + max(0, size_of_whole_lines(path) - head.header_bytes)


def size_of_whole_lines(path: Path) -> int:
    """Bytes of this one file up to its last newline, found from the end; 0 without a file."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 65_536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0


def chunks(path: Path, start: int = 0, *, end: int | None = None, size: int = READ_BYTES) -> Iterator[bytes]:
    """The bytes of the log from this offset on, up to what is written now; FileNotFoundError without a log.

    Raises ValueError if the log ends before `start`.
    """
    with path.open("rb") as newest:  # stays this segment, also if it is closed meanwhile
        head = _read_head(newest, path)
        at = start
        if at < head.begins:
            for data in _closed_chunks(path, head, start, size):
                at += len(data)
                yield data if end is None or at <= end else data[: end - at]
                if end is not None and at >= end:
                    return
        written = os.fstat(newest.fileno()).st_size - head.header_bytes + head.begins
        if at > written:
            raise ValueError(f"the log has {written} bytes, fewer than {at}")
        newest.seek(head.header_bytes + at - head.begins)
        while data := newest.read(size if end is None else max(0, min(size, end - at))):
            at += len(data)
            yield data


def _closed_chunks(path: Path, newest: Head, start: int, size: int) -> Iterator[bytes]:
    """All bytes between `start` and the newest segment; what is missing is filled up."""
    at = start
    heads = _closed_heads(path, newest.number, start)
    limits = [head.begins for head in heads[1:]] + [newest.begins]
    for head, limit in zip(heads, limits, strict=True):
        if at < head.begins:
            yield from _filler(head.begins - at, size)
            at = head.begins
        with suppress(*_DAMAGED), open_closed(path, head.number) as file:
            file.seek(head.header_bytes + at - head.begins)
            while at < limit and (data := file.read(min(size, limit - at))):
                at += len(data)
                yield data
    if at < newest.begins:
        yield from _filler(newest.begins - at, size)


def _closed_heads(path: Path, end: int, start: int) -> list[Head]:
    """Heads in order, from the segment with offset `start`; unreadable ones are left out."""
    heads: list[Head] = []
    for number in reversed(range(end)):
        with suppress(*_DAMAGED), open_closed(path, number) as file:
            heads.append(_read_head(file, path))
            if heads[-1].begins <= start:
                break
    return heads[::-1]


def _filler(missing: int, size: int) -> Iterator[bytes]:
    """Empty lines, and a last one that no reader can parse and every reader counts."""
    while missing > size:
        yield b"\n" * size
        missing -= size
    yield (b"\n" * size + b"!\n")[-missing:]


@contextmanager
def open_closed(path: Path, number: int) -> Iterator[IO[bytes]]:
    plain = closed_path(path, number)
    try:
        fd = os.open(plain, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # Compressed, or being compressed: the original is removed only once the compressed file exists.
        fd = os.open(compressed_path(path, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            yield file  # type: ignore[misc]  # GzipFile reads and seeks as IO[bytes] does
        return
    with os.fdopen(fd, "rb") as file:
        yield file


def _read_head(file: IO[bytes], path: Path) -> Head:
    """Leaves the file anywhere."""
    file.seek(0)
    line = file.readline(_MAX_HEAD_BYTES)
    if not line.startswith(_HEAD):
        return Head()
    try:
        fields = json.loads(line)
        session = fields.get("session")
        return Head(
            number=int(fields["segment"]),
            begins=int(fields["begins"]),
            header_bytes=len(line),
            plans=tuple(map(str, fields["plans"])),
            session=None if session is None else Session(int(session["at_ns"]), float(session["unix_s"])),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedRecordError(
            f"{path}: the header of this segment of the event log cannot be read: {error}",
            "the log is damaged or was written by another version; restore it from a backup",
        ) from error


class SegmentWriter:
    """The newest segment of a log that several processes append to; rotates it when it is large."""

    def __init__(self, path: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._path = path
        self._segment_bytes = self._rotate_at = segment_bytes
        self._has_locks = True
        self._guard = threading.Lock()  # the kernel's lock is the descriptor's, not the thread's
        self._fd = self._open()

    def write(self, data: bytes) -> int:
        with self._guard:
            self._lock_newest()
            try:
                written = os.write(self._fd, data)
            finally:
                self._unlock()
            if self._has_locks and os.fstat(self._fd).st_size >= self._rotate_at:
                self._rotate()
            return written

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        # Opened for reading too: NFS grants a shared lock only to such a descriptor.
        return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _lock_newest(self) -> None:
        """A shared lock on the newest segment, or BlockingIOError if a rotation takes longer than LOCK_S."""
        give_up_s = monotonic_s() + LOCK_S
        while self._has_locks:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic_s() > give_up_s:
                    raise
                SystemClock().sleep(0.001)
                continue
            except OSError as error:
                if error.errno not in HAS_NO_LOCKS:
                    raise
                self._has_locks = False
                return
            if self._is_newest():
                return
            newest = self._open()
            os.close(self._fd)
            self._fd = newest
            self._rotate_at = self._segment_bytes

    def _unlock(self) -> None:
        if self._has_locks:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _is_newest(self) -> bool:
        """A folder that was removed takes the lines that its descriptor still takes."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return True

    def _ends_with_a_line(self) -> bool:
        """False behind a write that was cut short: a line must not continue in the next segment."""
        return os.pread(self._fd, 1, os.fstat(self._fd).st_size - 1) == b"\n"

    def _rotate(self) -> None:
        """Unless another process appends or rotates just now: then one of the next lines does it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            if self._is_newest() and self._path.exists() and self._ends_with_a_line():
                begin_segment(self._path)
        except (OSError, ValueError, LookupError, TypeError, DamagedRecordError):
            # No room, no links, a damaged header: the segment grows, and this is tried again later.
            self._rotate_at = os.fstat(self._fd).st_size + self._segment_bytes // 8
        finally:
            self._unlock()


def begin_segment(path: Path) -> None:
    """Close the newest segment and begin another; the caller holds the exclusive lock on it."""
    head = head_of(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = json.loads(file.readline(_MAX_HEAD_BYTES))
    plans, session = _recorded_in(path)
    if head.number == 0:
        plans = (str(first["plan"]), *plans)
    session = session or head.session
    header = {
        "schema": SEGMENT_SCHEMA,
        "segment": head.number + 1,
        "begins": head.begins + size - head.header_bytes,
        "run": first["run"],
        "plan": first["plan"],
        "t0_ns": first["t0_ns"],
        "started_unix_s": first["started_unix_s"],
        "plans": list(dict.fromkeys((*head.plans, *plans))),
        "session": None if session is None else {"at_ns": session.at_ns, "unix_s": session.unix_s},
    }
    closed = closed_path(path, head.number)
    # Leftovers of a rotation that was cut off: no file with this number is part of the log yet.
    closed.unlink(missing_ok=True)
    compressed_path(path, head.number).unlink(missing_ok=True)
    os.link(path, closed)
    write_durably(path, [json.dumps(header, separators=(",", ":")).encode(), b"\n"], mode=0o644)


def newest_session(path: Path) -> Session | None:
    """When the newest session of the log began; None if the log does not record it."""
    return _recorded_in(path)[1] or head_of(path).session


def recorded_plans(path: Path) -> set[str]:
    """The hashes of the plans that a run was begun and resumed with; empty without a log."""
    plans: set[str] = set()
    if not path.exists():
        return plans
    with path.open("rb") as file, suppress(ValueError, LookupError, TypeError):
        plans.add(str(json.loads(file.readline(_MAX_HEAD_BYTES))["plan"]))
    return plans.union(head_of(path).plans, _recorded_in(path)[0])


def _recorded_in(path: Path) -> tuple[tuple[str, ...], Session | None]:
    """The plans of the sessions that began in this one file, and the newest of these sessions."""
    plans: list[str] = []
    session = None
    if not path.stat().st_size:
        return (), None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        at = text.find(_SESSION_START)
        while at >= 0:
            end = text.find(b"\n", at)
            with suppress(ValueError, LookupError, TypeError):
                event = json.loads(text[at : end if end >= 0 else len(text)])
                if "plan" in event:
                    plans.append(str(event["plan"]))
                if "unix_s" in event:
                    session = Session(int(event["at_ns"]), float(event["unix_s"]))
            at = text.find(_SESSION_START, at + 1)
    return tuple(plans), session


def compress_closed(path: Path) -> int:
    """Compress each closed segment that is not; how many were. Reading continues meanwhile."""
    try:
        newest = head_of(path)
    except FileNotFoundError:
        return 0
    done = 0
    for number in range(newest.number):
        plain = closed_path(path, number)
        if plain.is_symlink() or not plain.is_file():
            continue
        target = compressed_path(path, number)
        write_durably(target, _compressed(plain), mode=0o644)
        if _checksum(plain, is_compressed=False) != _checksum(target, is_compressed=True):
            target.unlink(missing_ok=True)
            raise OSError(errno.EIO, f"{target} does not hold what {plain} does")
        plain.unlink(missing_ok=True)
        done += 1
    return done


def _compressed(path: Path) -> Iterator[bytes]:
    coder = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            yield coder.compress(data)
    yield coder.flush()


def _checksum(path: Path, *, is_compressed: bool) -> tuple[int, int]:
    """Size and CRC of the content."""
    size = checksum = 0
    with gzip.open(path, "rb") if is_compressed else path.open("rb") as file:
        while data := file.read(READ_BYTES):
            size += len(data)
            checksum = zlib.crc32(data, checksum)
    return size, checksum
