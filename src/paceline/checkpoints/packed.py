"""How does a whole checkpoint travel to a process that cannot reach its folder? All its files in one piece.

For states in parts: whoever puts one together needs the parts of all. Files are verified when they are read,
as on any disk.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIXES = (".json", ".safetensors")


def packed(folder: Path) -> bytes:
    files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    contents = [file.read_bytes() for file in files]
    names = json.dumps([[file.name, len(data)] for file, data in zip(files, contents, strict=True)]).encode()
    return b"".join([len(names).to_bytes(8, "little"), names, *contents])


@contextmanager
def unpacked(data: bytes) -> Iterator[Path]:
    """A folder of this user's alone, with the files; it is gone afterwards."""
    at = 8 + int.from_bytes(data[:8], "little")
    with tempfile.TemporaryDirectory(prefix="paceline-parts-") as folder:
        for name, size in json.loads(data[8:at]):
            if Path(name).name != name or Path(name).suffix not in _SUFFIXES:
                raise ValueError(f"{name!r} is no file of a checkpoint")
            (Path(folder) / name).write_bytes(memoryview(data)[at : at + size])
            at += size
        yield Path(folder)
