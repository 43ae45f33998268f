"""How is a file written so that it is whole or not there, even if the machine stops?

Into a file of another name, which is synced and then renamed; the folder is
synced too, because a name is the folder's content. What is left of a write
that failed never bears a name that anybody reads.
"""

import os
from collections.abc import Iterable
from pathlib import Path

Bytes = bytes | bytearray | memoryview


def write_durably(path: Path, parts: Iterable[Bytes]) -> None:
    part = path.with_suffix(path.suffix + ".part")
    try:
        with part.open("wb", buffering=0) as file:
            for data in parts:
                _write_all(file.fileno(), memoryview(data))
            os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """The folder, durably: what is put into it would be lost with its name."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    # A write may take less than it was given: Linux stops at 2 GB, and a disk that fills up earlier.
    rest = data.cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]
