"""Block prefetching: threads fetch announced blocks, each once per machine.

A reader that needs a block under way waits for it and does not request it again;
nor do other processes with the same cache, which wait for a while at a lock of
the block. What goes wrong on the way is raised where the block is needed, and
the failure of an announced block that is no longer needed is ignored.
"""

import fcntl
import hashlib
import os
import re
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from paceline.core.clock import Clock, SystemClock
from paceline.core.disk import remove_abandoned, write_shared
from paceline.core.errors import CannotWriteError
from paceline.datasets.index import INDEX, Block, Index, decode
from paceline.storage.store import (
    BrokenLineError,
    NoSuchFileError,
    Store,
    no_data_set,
    no_index,
    no_ranges,
    no_shard,
    other_bytes,
    too_short,
    unreachable,
)

# A block is a file named by its SHA-256, so equal blocks of different data sets
# or addresses are one file, and every process of this user finds it. It is
# written under another name first: what bears its name is whole, and is still
# proved once by every process that reads it. About as old as last used: a block
# counts as used when a process first proves it.

DEFAULT_MB = 10_000
KEPT_FRACTION = 0.9  # of the room, after old blocks were removed
_LOOKS = 16  # a process looks at the folder after it has added this part of the room
_BLOCK = re.compile(r"[0-9a-f]{64}")


class BlockCache:
    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._proved: set[str] = set()
        self._added = limit_bytes  # so that the first check is at once: the limit may have been lowered
        self.keeps = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".lock").touch()
        except OSError as error:
            raise CannotWriteError(
                f"cannot write to the data cache {folder}: {error.strerror or error}",
                "name another folder: --data-cache FOLDER",
            ) from error

    def is_proved(self, block: Block) -> bool:
        """Whether this process has verified the local block. It may be removed at any time to free space."""
        return block.sha256 in self._proved

    def prove(self, block: Block) -> bool:
        """Verify the local block; an invalid one is removed."""
        path = self.path(block)
        try:
            with path.open("rb") as file:
                is_right = hashlib.file_digest(file, "sha256").hexdigest() == block.sha256
        except OSError:
            return False
        if is_right:
            with suppress(OSError):
                os.utime(path)
            self._proved.add(block.sha256)
        else:
            path.unlink(missing_ok=True)
        return is_right

    def open(self, block: Block) -> int | None:
        """A file descriptor, for the caller to close; None if it was removed meanwhile."""
        try:
            return os.open(self.path(block), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._proved.discard(block.sha256)
            return None

    def keep(self, block: Block, data: bytes) -> None:
        """What was proved already. Where it cannot be written, as on a full disk, we continue without."""
        path = self.path(block)
        try:
            write_shared(path, data)
            self._proved.add(block.sha256)
        except OSError as error:
            self.keeps = False
            print(
                f"the data cache {self.folder} is not writable, so data is fetched repeatedly: {error}",
                file=sys.stderr,
            )
        self._added += len(data)
        if self._added * _LOOKS >= self._limit:
            self._added = 0
            with suppress(OSError):  # not tidied up: no reason to lose what has come
                self.make_room()

    def make_room(self) -> None:
        """Several processes may do so at once: what one has removed already is no trouble to another."""
        remove_abandoned(self.folder)
        listed = sorted(_listed(self.folder))
        total = sum(size for _, size, _ in listed)
        if total <= self._limit:
            return
        for _, size, path in listed:
            if total <= self._limit * KEPT_FRACTION:
                return
            Path(path).unlink(missing_ok=True)
            self._proved.discard(Path(path).name)
            total -= size

    def path(self, block: Block) -> Path:
        return self.folder / block.sha256


def _listed(folder: Path) -> Iterator[tuple[float, int, str]]:
    """(when it was used, bytes, path) of every block; what else lies there is not ours to remove."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if _BLOCK.fullmatch(entry.name):
                    stat = entry.stat()
                    yield stat.st_mtime, stat.st_size, entry.path


# A try that brings bytes resets the count: a connection that is bad but alive is
# used as long as it takes. Only tries that bring nothing are counted.

T = TypeVar("T")
TRIES = 5
FIRST_WAIT_S = 0.25  # then twice as long each time: 3.75 s in all


def read_block(store: Store, block: Block, clock: Clock | None = None) -> bytes:
    """All bytes of the block, as they came; whether they are the right ones is for others to say."""
    pieces: list[bytes] = []
    missing = block.size
    while missing:
        start = block.start + block.size - missing
        try:
            piece = with_retries(store, partial(store.read, block.file, start, missing), clock)
        except NoSuchFileError as error:
            raise no_shard(store.url, block.file) from error
        if len(piece) > missing:
            raise no_ranges(store.url)
        if not piece:
            raise too_short(store.url, block.file, end=block.start + block.size)
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def read_index(store: Store, clock: Clock | None = None) -> Index:
    raw = b""
    try:
        while piece := with_retries(store, partial(store.read, INDEX, len(raw), None), clock):
            raw += piece
    except NoSuchFileError as error:
        raise no_data_set(store.url) from error
    try:
        return decode(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise no_index(store.url) from error


def with_retries(store: Store, ask: Callable[[], T], clock: Clock | None = None) -> T:
    """Result of the request, with retries after connection errors."""
    clock = clock or SystemClock()
    for number in range(TRIES - 1):
        try:
            return ask()
        except BrokenLineError:
            clock.sleep(FIRST_WAIT_S * 2**number)
    try:
        return ask()
    except BrokenLineError as error:
        raise unreachable(store.url, error) from error


THREADS = 8
WAIT_S = 10.0  # for the lock: it saves a second fetch, and a frozen holder must not block the others
POLL_S = 0.05
MAX_ANNOUNCED = 256  # blocks that wait to be fetched before anybody needs them


class Fetcher:
    def __init__(self, store: Store, cache: BlockCache) -> None:
        self._store = store
        self.cache = cache
        self._clock = SystemClock()
        self._pid = 0
        self._begin()

    def announce(self, blocks: Iterable[Block]) -> None:
        """They will be needed soon. Costs next to nothing, and may be forgotten."""
        self._after_a_fork()
        with self._changed:
            for block in blocks:
                if len(self._waiting) >= MAX_ANNOUNCED:
                    return
                self._order(block)

    def bring(self, blocks: Iterable[Block]) -> "dict[str, Future[bytes]]":
        """They are needed now: before all that was only announced. By SHA-256."""
        self._after_a_fork()
        with self._changed:
            orders = {block.sha256: self._order(block) for block in blocks}
            for sha256 in orders:
                if sha256 in self._waiting:
                    self._waiting.move_to_end(sha256, last=False)
            return orders

    def _order(self, block: Block) -> "Future[bytes]":
        future = self._futures.get(block.sha256)
        if future is None:
            future = self._futures[block.sha256] = Future()
            self._waiting[block.sha256] = block
            if len(self._threads) < min(THREADS, len(self._futures)):
                self._hire()
            self._changed.notify()
        return future

    def _hire(self) -> None:
        thread = threading.Thread(target=self._work, name=f"data-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                sha256, block = self._waiting.popitem(last=False)
                future = self._futures[sha256]
            try:
                data = self._fetched(block)
            except BaseException as error:  # it is raised to the caller that needs the block, whatever it is
                self._settle(sha256)
                future.set_exception(error)
            else:
                self._settle(sha256)
                future.set_result(data)

    def _settle(self, sha256: str) -> None:
        with self._changed:
            self._futures.pop(sha256, None)

    def _fetched(self, block: Block) -> bytes:
        with self._alone(block):
            if self.cache.prove(block) and (fd := self.cache.open(block)) is not None:
                try:
                    return os.pread(fd, block.size, 0)  # another process was faster
                finally:
                    os.close(fd)
            data = read_block(self._store, block)
            if hashlib.sha256(data).hexdigest() != block.sha256:
                data = read_block(self._store, block)  # it may have been the line
                if hashlib.sha256(data).hexdigest() != block.sha256:
                    raise other_bytes(self._store.url, block.file)
            if self.cache.keeps:
                self.cache.keep(block, data)
            return data

    @contextmanager
    def _alone(self, block: Block) -> Iterator[None]:
        """One process at a time; the kernel lets go of the lock of one that died.

        A lock of the open file: those of processes are taken for a deadlock when threads of two
        processes wait for each other's blocks.
        """
        place = int(block.sha256[:15], 16)
        is_alone = self._has_lock(place)
        try:
            yield
        finally:
            if is_alone:
                self._set_lock(fcntl.F_UNLCK, place)

    def _has_lock(self, place: int) -> bool:
        """Not, when another keeps it too long, or where the disk knows no locks: then both fetch."""
        for _ in range(int(WAIT_S / POLL_S)):
            try:
                self._set_lock(fcntl.F_WRLCK, place)
                return True
            except (BlockingIOError, PermissionError):  # another has it
                self._clock.sleep(POLL_S)
            except OSError:
                return False
        return False

    def _set_lock(self, kind: int, place: int) -> None:
        # struct flock: kind, whence, start, length, pid
        fcntl.fcntl(self._lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, place, 1, 0))

    def _after_a_fork(self) -> None:
        if self._pid != os.getpid():  # threads stay with the parent, and so do its locks
            os.close(self._lock)
            self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = os.open(self.cache.folder / ".lock", os.O_RDWR | os.O_CLOEXEC)
        self._changed = threading.Condition()
        self._futures: dict[str, Future[bytes]] = {}
        self._waiting: OrderedDict[str, Block] = OrderedDict()
        self._threads: list[threading.Thread] = []
