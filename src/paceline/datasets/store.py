"""Where may a data set lie? In a folder, in an S3-compatible store, or wherever fsspec finds its way to.

A store has files with names; it reads stretches of them and writes them whole.
Reading may end early: whoever asks goes on from there (reading.py).
"""

import hashlib
import os
from pathlib import Path
from typing import Protocol

from paceline.datasets.errors import NoSuchFileError
from paceline.datasets.index import INDEX
from paceline.disk import make_folder, write_durably
from paceline.errors import NotReadyError
from paceline.plan.data_url import is_remote, is_url, local_path


class Store(Protocol):
    url: str

    def read(self, name: str, start: int, size: int | None) -> bytes:
        """At most so many bytes from `start` on; none: the file ends there. None: all there are.

        NoSuchFileError; BrokenLineError when nothing came that may come yet; a PacelineError else.
        """
        ...

    def sha256(self, name: str) -> str | None:
        """Of the file as it is there; None: there is none."""
        ...

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        """Whole or not at all. BrokenLineError when it may succeed yet."""
        ...


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.url, self._folder = str(folder), folder

    def read(self, name: str, start: int, size: int | None) -> bytes:
        try:
            with (self._folder / name).open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size - start if size is None else size
                return os.pread(file.fileno(), max(0, length), start)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchFileError(name) from error
        except OSError as error:
            what = f"{self._folder / name} cannot be read: {error.strerror or error}"
            raise NotReadyError(what, f"make it readable: chmod -R u+rX {self._folder}") from error

    def open(self, name: str) -> int:
        """A file descriptor of a file that was read before, for the caller to close."""
        return os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)

    def sha256(self, name: str) -> str | None:
        try:
            with (self._folder / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        try:
            make_folder(self._folder)
            write_durably(self._folder / name, [data])
        except OSError as error:
            what = f"{self._folder / name} cannot be written: {error.strerror or error}"
            raise NotReadyError(what, "make room, or name another place by --out") from error


def open_store(url: str) -> Store:
    if not is_remote(url):
        return FolderStore(Path(local_path(url)))
    # Imported here: whoever reads folders needs neither.
    if url.startswith("s3://"):
        from paceline.datasets.s3_store import S3Store

        return S3Store(url)
    from paceline.datasets.fsspec_store import FsspecStore

    return FsspecStore(url)


def is_data_set(said: str | None) -> bool:
    """Is this a data set in shards, rather than a file or folder that only the task knows to read?"""
    if said is None:
        return False
    return is_url(said) or (Path(said) / INDEX).is_file()
