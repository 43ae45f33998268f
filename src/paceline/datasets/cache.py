"""Which blocks are on this machine's disk, and which go when the room is used up? The oldest.

A block is a file named by its SHA-256, so equal blocks of different data sets
or addresses are one file, and every process of this user finds it. It is
written under another name first: what bears its name is whole, and is still
proved once by every process that reads it. About as old as last used: a block
counts as used when a process first proves it.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.datasets.index import Block
from paceline.disk import remove_abandoned, write_shared
from paceline.errors import CannotWriteError

DEFAULT_MB = 10_000
KEPT = 0.9  # of the room, after old blocks were removed
_LOOKS = 16  # a process looks at the folder after it has added this part of the room
_BLOCK = re.compile(r"[0-9a-f]{64}")


class BlockCache:
    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self.folder, self._limit = folder, limit_bytes
        self._proved: set[str] = set()
        self._added = limit_bytes  # so that the first look is at once: somebody may have lowered the limit
        self.keeps = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".lock").touch()
        except OSError as error:
            raise CannotWriteError(
                f"data that was read cannot be kept in {folder}: {error.strerror or error}",
                "name another folder: --data-cache FOLDER",
            ) from error

    def is_proved(self, block: Block) -> bool:
        """Has this process seen that it is here, and right? It may go at any moment to make room."""
        return block.sha256 in self._proved

    def prove(self, block: Block) -> bool:
        """Look whether it is here; one that is not as it should be is thrown away."""
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
        """A file descriptor, for the caller to close; None: it is gone meanwhile."""
        try:
            return os.open(self.path(block), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._proved.discard(block.sha256)
            return None

    def keep(self, block: Block, data: bytes) -> None:
        """What was proved already. Where it cannot be written, as on a full disk, we go on without."""
        path = self.path(block)
        try:
            write_shared(path, data)
            self._proved.add(block.sha256)
        except OSError as error:
            self.keeps = False
            print(
                f"data is read again and again: it cannot be kept in {self.folder}: {error}", file=sys.stderr
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
            if total <= self._limit * KEPT:
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
                    found = entry.stat()
                    yield found.st_mtime, found.st_size, entry.path
