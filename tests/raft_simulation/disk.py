"""Simulated disk: after a crash it holds all that was synced, and a part of the write in progress.

The product's own storage runs on these files, so that torn records are really
parsed. The power may fail at any byte.
"""

import random


class PowerLossError(Exception):
    """The machine is off; what was written so far is on the disk."""


class VirtualFiles:
    """The port of `shell/files.py`, in memory."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.files: dict[str, bytes] = {}
        self.fuse: int | None = None  # how many more bytes are written before the power fails

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        return self.files[name]

    def append(self, name: str, data: bytes) -> None:
        written = self._burn(len(data))
        tail = data[:written]
        if written < len(data) and self._rng.random() < 0.3:
            tail += bytes(len(data) - written)  # the file has grown, but its last block was never written
        self.files[name] += tail
        self._fail_if_burnt()

    def write_whole(self, name: str, data: bytes) -> None:
        written = self._burn(len(data))
        self.files[name.rpartition(".")[0] + ".tmp"] = data[:written]
        self._fail_if_burnt()
        self.files[name] = self.files.pop(name.rpartition(".")[0] + ".tmp")

    def remove(self, name: str) -> None:
        self._burn(1)
        self._fail_if_burnt()
        del self.files[name]

    def close(self) -> None:
        pass

    def _burn(self, size: int) -> int:
        """How many of these bytes are still written."""
        if self.fuse is None:
            return size
        written = min(size, self.fuse)
        self.fuse -= size
        return written

    def _fail_if_burnt(self) -> None:
        if self.fuse is not None and self.fuse < 0:
            raise PowerLossError
