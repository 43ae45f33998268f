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
    """The requested data is not in the store."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E806"


class NoDataSetError(MissingDataError):
    """There is no index where a data set should be."""

    code = "E807"


class DamagedDataError(HopelessError):
    """Data in the store differs from its index."""

    exit_code = ExitCode.GATE_FAILED
    code = "E808"


class BrokenLineError(Exception):
    """A read or write that failed and may succeed when it is tried again."""


class NoSuchFileError(Exception):
    """The store has no file of this name."""


def without_secrets(text: object) -> str:
    """Vendors' messages repeat addresses, and some people write passwords into them."""
    return _SECRET.sub(lambda match: "//" if match[0].startswith("/") else "?…", str(text))


def unreachable(url: str, why: object) -> UnreachableStoreError:
    return UnreachableStoreError(
        f"{url} cannot be reached: {without_secrets(why)}",
        "check the network and AWS_ENDPOINT_URL, then run the command again: it resumes",
    )


def refused(url: str, why: object) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} denied access: {without_secrets(why)}",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of a user with read access (and "
        "write access for `paceline data shard`)",
    )


def no_bucket(url: str) -> MissingDataError:
    bucket = url.split("/")[2]
    return MissingDataError(
        f"{url}: there is no bucket {bucket} in this store",
        f"check its name and AWS_ENDPOINT_URL; create it: aws s3 mb s3://{bucket}",
    )


def no_data_set(url: str) -> NoDataSetError:
    return NoDataSetError(
        f"there is no data set at {url}: it has no index.json, which is written last",
        f"create or complete it: paceline data shard charlm --out {url} (or cifar10, sp500, your files)",
    )


def no_shard(url: str, file: str) -> MissingDataError:
    return MissingDataError(
        f"{url}/{file} is missing, but the index lists it", _again(url, "writes what is missing")
    )


def too_short(url: str, file: str, *, end: int | None = None) -> DamagedDataError:
    where = "the size in its index" if end is None else f"byte {end}"
    return DamagedDataError(
        f"{url}/{file} is truncated: it ends before {where}", _again(url, "writes what differs")
    )


def other_bytes(url: str, file: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/{file} does not match its index: the SHA-256 differs", _again(url, "writes what differs")
    )


def no_index(url: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/index.json is not an index, or was modified",
        f"remove {url}/index.json, and run the same `paceline data shard … --out {url}` again",
    )


def no_ranges(url: str) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} does not support range requests: it sent the whole file",
        "use a store that supports HTTP ranges, or copy the data to a folder",
    )


def _again(url: str, effect: str) -> str:
    again = f"run the same `paceline data shard … --out {url}` again, which {effect}"
    return f"{again}; see all: paceline data verify {url}"


class Store(Protocol):
    url: str

    def read(self, name: str, start: int, size: int | None) -> bytes:
        """At most `size` bytes from `start` on; empty at the end of the file. `size` None: all bytes.

        NoSuchFileError; BrokenLineError when nothing came that may come yet; a PacelineError else.
        """
        ...

    def sha256(self, name: str) -> str | None:
        """Hash of the stored file; None without the file."""
        ...

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        """Write atomically. BrokenLineError if a retry may succeed."""
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
            message = f"{self._folder / name} cannot be read: {error.strerror or error}"
            raise NotReadyError(message, f"make it readable: chmod -R u+rX {self._folder}") from error

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
            message = f"{self._folder / name} cannot be written: {error.strerror or error}"
            raise NotReadyError(message, "free disk space, or name another location with --out") from error


def open_store(url: str) -> Store:
    if not is_remote(url):
        return FolderStore(Path(local_path(url)))
    # Imported here: reading folders needs neither.
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
            data: bytes = files.cat_file(path, start, start + size)
            return data

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
            self._opened = {os.getpid(): self._filesystem()}
        return self._opened[os.getpid()]

    def _filesystem(self) -> tuple[Any, str]:  # Any: as above
        try:
            import fsspec

            files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise NotReadyError(
                f"{self.url} cannot be opened: {without_secrets(error)}",
                "install the package that fsspec needs, or use s3://BUCKET/PREFIX or a folder",
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
