"""Stores of data sets: a folder, an S3-compatible store, or any that fsspec opens.

A store has named files; it reads ranges of them and writes them whole. A read may
end early: the caller continues from there (datasets/fetching.py).
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from paceline.core.disk import make_folder, write_durably
from paceline.core.errors import ExitCode, HopelessError, NotReadyError, PacelineError
from paceline.plan.urls import is_remote, local_path

# Name and password in an address, and what follows a question mark: signatures, tokens.
_SECRET = re.compile(r"//[^\s\"']*@|\?[^\s\"']+")


class UnreachableStoreError(PacelineError):
    """A store did not answer, or broke off again and again."""

    exit_code = ExitCode.UNREACHABLE
    code = "E804"


class RefusedByStoreError(HopelessError):
    """A store answers, but not to us."""

    exit_code = ExitCode.NOT_READY
    code = "E805"


class MissingDataError(HopelessError):
    """What was asked for is not in the store."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E806"


class NoDataSetError(MissingDataError):
    """There is no index where a data set should be."""

    code = "E807"


class DamagedDataError(HopelessError):
    """What is in the store is not what its index says."""

    exit_code = ExitCode.GATE_FAILED
    code = "E808"


class BrokenLineError(Exception):
    """A read or write that failed and may succeed when it is tried again."""


class NoSuchFileError(Exception):
    """The store has no file of this name."""


def without_secrets(text: object) -> str:
    """Vendors' messages repeat addresses, and some people write passwords into them."""
    return _SECRET.sub(lambda found: "//" if found[0].startswith("/") else "?…", str(text))


def unreachable(url: str, why: object) -> UnreachableStoreError:
    return UnreachableStoreError(
        f"{url} cannot be reached: {without_secrets(why)}",
        "look whether this machine is online and AWS_ENDPOINT_URL is right; then run the command again, "
        "which goes on from what has come",
    )


def refused(url: str, why: object) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} is not for us: {without_secrets(why)}",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of someone who may read it "
        "(and write it, for `paceline data shard`)",
    )


def no_bucket(url: str) -> MissingDataError:
    bucket = url.split("/")[2]
    return MissingDataError(
        f"{url}: there is no bucket {bucket} in this store",
        f"check its name and AWS_ENDPOINT_URL; make it with: aws s3 mb s3://{bucket}",
    )


def no_data_set(url: str) -> NoDataSetError:
    return NoDataSetError(
        f"there is no data set at {url}: it has no index.json, which is written last",
        f"make it, or finish it: paceline data shard charlm --out {url} (or cifar10, sp500, your files)",
    )


def no_shard(url: str, file: str) -> MissingDataError:
    return MissingDataError(
        f"{url}/{file} is not there, though the index names it", _again(url, "writes what is missing")
    )


def too_short(url: str, file: str, *, end: int | None = None) -> DamagedDataError:
    where = "what its index names" if end is None else f"byte {end}"
    return DamagedDataError(
        f"{url}/{file} is cut short: it ends before {where}", _again(url, "writes what differs")
    )


def other_bytes(url: str, file: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/{file} is not what its index says: the SHA-256 differs", _again(url, "writes what differs")
    )


def no_index(url: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/index.json is no index, or was changed",
        f"remove {url}/index.json, and run the same `paceline data shard … --out {url}` again",
    )


def no_ranges(url: str) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} sends whole files where a part was asked for",
        "read it from a store that answers HTTP ranges, or copy it to a folder",
    )


def _again(url: str, what: str) -> str:
    again = f"run the same `paceline data shard … --out {url}` again, which {what}"
    return f"{again}; see all: paceline data verify {url}"


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
        self.url = str(folder)
        self._folder = folder

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
        from paceline.storage.s3 import S3Store

        return S3Store(url)

    return FsspecStore(url)


# The only importer of fsspec. It comes with torch; what it needs for a kind of
# store (gcsfs for gs://, adlfs for az://) is the user's to install.


class FsspecStore:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._opened: dict[int, tuple[Any, str]] = {}  # by pid: their event loops do not outlive a fork

    def read(self, name: str, start: int, size: int | None) -> bytes:
        if size == 0:
            return b""
        with self._answered(name):
            files, root = self._files()
            path = f"{root}/{name}"
            if size is None:  # asked for what is behind the end, many stores raise
                whole: bytes = files.cat_file(path)
                return whole[start:]
            found: bytes = files.cat_file(path, start, start + size)
            return found

    def sha256(self, name: str) -> str | None:
        try:
            return hashlib.sha256(self.read(name, 0, None)).hexdigest()
        except NoSuchFileError:
            return None

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        with self._answered(name):
            files, root = self._files()
            files.makedirs(root, exist_ok=True)
            files.pipe_file(f"{root}/{name}", data)

    def _files(self) -> tuple[Any, str]:  # Any: fsspec types nothing
        if os.getpid() not in self._opened:
            self._opened = {os.getpid(): self._found()}
        return self._opened[os.getpid()]

    def _found(self) -> tuple[Any, str]:  # Any: as above
        try:
            import fsspec

            files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise NotReadyError(
                f"{self.url} cannot be opened: {without_secrets(error)}",
                "install what fsspec asks for, or use s3://BUCKET/PREFIX or a folder",
            ) from error
        return files, str(root).rstrip("/")

    @contextmanager
    def _answered(self, name: str) -> Iterator[None]:
        try:
            yield
        except PacelineError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchFileError(name) from error
        except PermissionError as error:
            raise refused(self.url, error) from error
        except Exception as error:  # each kind of store has its own: aiohttp's and gcsfs' are no OSErrors
            if 416 in (getattr(error, "status", 0), getattr(error, "code", 0)):
                raise too_short(self.url, name) from error
            raise BrokenLineError(without_secrets(error)) from error
