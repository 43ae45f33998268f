"""How is a data set read from and written to any other kind of store? By whatever fsspec has for its address.

The only importer of fsspec. It comes with torch; what it needs for a kind of
store (gcsfs for gs://, adlfs for az://) is the user's to install.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paceline.datasets.errors import BrokenLineError, NoSuchFileError, refused, too_short, without_secrets
from paceline.errors import NotReadyError, PacelineError


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
