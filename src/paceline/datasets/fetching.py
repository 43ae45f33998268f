"""How do blocks come here before they are needed, each once on this machine? Threads fetch what is announced.

Whoever needs a block that is on its way waits for it and does not ask twice;
nor do other processes with the same cache, which stand in line for a while at a
lock of the block's own. What goes wrong on the way is raised where the block is needed, and
an announced block that nobody needs any more is nobody's trouble.
"""

import fcntl
import hashlib
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from paceline.clock import SystemClock
from paceline.datasets.cache import BlockCache
from paceline.datasets.errors import other_bytes
from paceline.datasets.index import Block
from paceline.datasets.reading import read_block
from paceline.datasets.store import Store

THREADS = 8
WAIT_S, LOOK_S = 10.0, 0.05  # for the lock: it spares a second fetch, and who is frozen may hold up nobody
MOST_ANNOUNCED = 256  # blocks that wait to be fetched before anybody needs them


class Fetcher:
    def __init__(self, store: Store, cache: BlockCache) -> None:
        self._store, self.cache, self._clock = store, cache, SystemClock()
        self._pid = 0
        self._begin()

    def announce(self, blocks: Iterable[Block]) -> None:
        """They will be needed soon. Costs next to nothing, and may be forgotten."""
        self._after_a_fork()
        with self._changed:
            for block in blocks:
                if len(self._waiting) >= MOST_ANNOUNCED:
                    return
                self._order(block)

    def bring(self, blocks: Iterable[Block]) -> "dict[str, Future[bytes]]":
        """They are needed now: before all that was only announced. By SHA-256."""
        self._after_a_fork()
        with self._changed:
            wanted = {block.sha256: self._order(block) for block in blocks}
            for sha256 in wanted:
                if sha256 in self._waiting:
                    self._waiting.move_to_end(sha256, last=False)
            return wanted

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
            except BaseException as error:  # it belongs to whoever needs the block, whatever it is
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
        for _ in range(int(WAIT_S / LOOK_S)):
            try:
                self._set_lock(fcntl.F_WRLCK, place)
                return True
            except (BlockingIOError, PermissionError):  # another has it
                self._clock.sleep(LOOK_S)
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
