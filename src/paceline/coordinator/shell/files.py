"""How do bytes get onto a disk so that they stay there? Appended and synced, or whole under their name.

The port is small so that a disk that fails at any byte can take its place in the simulation.
"""

import os
from pathlib import Path
from typing import Protocol

from paceline.disk import write_all, write_durably


class Files(Protocol):
    """The files of one node. Whatever a method was given is on disk when it returns."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def append(self, name: str, data: bytes) -> None:
        """After a crash any part of `data`, from its beginning on, may be there."""
        ...

    def write_whole(self, name: str, data: bytes) -> None:
        """After a crash all of it is there, or no such file."""
        ...

    def remove(self, name: str) -> None: ...

    def close(self) -> None: ...


class Folder:
    """A real folder. The file that was appended to last stays open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._open = ""

    def names(self) -> list[str]:
        return sorted(path.name for path in self._path.iterdir())

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def append(self, name: str, data: bytes) -> None:
        if self._fd is None or self._open != name:
            self.close()
            self._fd, self._open = os.open(self._path / name, os.O_WRONLY | os.O_APPEND), name
        try:
            write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            self._forget_cached()
            raise

    def _forget_cached(self) -> None:
        """After a failed sync the kernel may hold pages as clean that are not on disk: read the disk."""
        if self._fd is not None:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()

    def write_whole(self, name: str, data: bytes) -> None:
        write_durably(self._path / name, [data], mode=0o600)

    def remove(self, name: str) -> None:
        (self._path / name).unlink()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
