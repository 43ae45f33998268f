"""Objects of one run in a store: an S3-compatible bucket, or a folder of a volume of several machines.

An object has a name, such as `session-000001/plan.json`, is written whole, and has its name only when it is
whole. `create` writes an object that does not exist yet: of two writers at once, one succeeds. S3 does that
with `If-None-Match`, a folder with a link.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from paceline.core.disk import make_folder, sync_folder, write_all, write_durably
from paceline.core.errors import PacelineError
from paceline.plan.urls import is_remote, local_path, split_store
from paceline.storage.s3 import S3Client, S3Error, S3Options, S3Problem

# Short: a request that fails is repeated by its caller.
OPTIONS = S3Options(needed_by="checkpoint_store", read_timeout_s=15, attempts=2)


class StoreError(PacelineError):
    """The object store failed a request."""

    code = "E809"


class Objects(Protocol):
    url: str

    def sizes(self, under: str) -> dict[str, int]:
        """Bytes of every object whose name begins so, by name."""
        ...

    def read(self, name: str, start: int = 0) -> bytes:
        """From this byte on; FileNotFoundError without the object."""
        ...

    def write(self, name: str, data: bytes | Path) -> None:
        """Write or replace an object, from memory or from a file."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """False, and nothing changed, if there is an object of this name."""
        ...

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a file; FileNotFoundError without the object."""
        ...

    def delete(self, name: str) -> None: ...


def open_objects(url: str) -> Objects:
    """The store at `s3://BUCKET/PREFIX` or `file:///FOLDER`, by the rules of plan/urls.py."""
    return S3Objects(url) if is_remote(url) else FolderObjects(Path(local_path(url)))


class S3Objects:
    def __init__(self, url: str) -> None:
        place = split_store(url)
        assert place is not None, "the plan's check has looked at it"
        self.url = url
        bucket, self._prefix = place
        self._client = S3Client(bucket, OPTIONS)
        with self._named("open it"):
            self._client.connect()

    def sizes(self, under: str) -> dict[str, int]:
        start = len(self._key(""))
        with self._named("list it"):
            return {key[start:]: size for key, size in self._client.sizes(self._key(under)).items()}

    def read(self, name: str, start: int = 0) -> bytes:
        with self._named(f"read {name}"):
            if not start:
                return self._client.get(self._key(name))
            try:
                return self._client.get_range(self._key(name), start, None)
            except S3Error as error:
                if error.kind is S3Problem.PAST_END:
                    return b""
                raise

    def write(self, name: str, data: bytes | Path) -> None:
        with self._named(f"write {name}"):
            if isinstance(data, Path):
                self._client.upload(data, self._key(name))
            else:
                self._client.put(self._key(name), data)

    def create(self, name: str, data: bytes) -> bool:
        with self._named(f"write {name}"):
            found = self._create(name, data)
            if found is S3Problem.CONFLICT:  # the other request may have failed, or been a removal
                found = self._create(name, data)
            return found is None

    def _create(self, name: str, data: bytes) -> S3Problem | None:
        """None: the object is created."""
        try:
            self._client.put(self._key(name), data, IfNoneMatch="*")
        except S3Error as error:
            if error.kind in (S3Problem.EXISTS, S3Problem.CONFLICT):
                return error.kind
            raise
        return None

    def fetch(self, name: str, path: Path) -> None:
        with self._named(f"read {name}"):
            self._client.download(self._key(name), path)

    def delete(self, name: str) -> None:
        with self._named(f"delete {name}"):
            self._client.delete(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextmanager
    def _named(self, action: str) -> Iterator[None]:
        try:
            yield
        except S3Error as error:
            if error.kind is S3Problem.NO_KEY:
                raise FileNotFoundError(f"cannot {action}: it is not in {self.url}") from error
            hint = "check the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise StoreError(f"{self.url}: cannot {action}: {error}", hint) from error


class FolderObjects:
    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"
        self._folder = folder

    def sizes(self, under: str) -> dict[str, int]:
        top = under.rpartition("/")[0]
        found: dict[str, int] = {}
        with self._named("list it"):
            for folder, _, names in os.walk(self._folder / top):
                for name in names:
                    path = Path(folder) / name
                    relative = path.relative_to(self._folder).as_posix()
                    if relative.startswith(under) and not name.endswith(".part"):
                        with suppress(FileNotFoundError):  # another process removed it
                            found[relative] = path.stat().st_size
        return found

    def read(self, name: str, start: int = 0) -> bytes:
        with self._named(f"read {name}"), (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read()

    def write(self, name: str, data: bytes | Path) -> None:
        path = self._folder / name
        with self._named(f"write {name}"):
            self._require_volume()
            make_folder(path.parent)
            if isinstance(data, Path):
                _copy_durably(data, path)
            else:
                write_durably(path, [data])

    def create(self, name: str, data: bytes) -> bool:
        path = self._folder / name
        draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        with self._named(f"write {name}"):
            self._require_volume()
            make_folder(path.parent)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(fd, data)
                os.fsync(fd)
                os.link(draft, path)
            except FileExistsError:
                return False
            finally:
                os.close(fd)
                draft.unlink(missing_ok=True)
            sync_folder(path.parent)
            return True

    def fetch(self, name: str, path: Path) -> None:
        with self._named(f"read {name}"):
            shutil.copyfile(self._folder / name, path)

    def delete(self, name: str) -> None:
        with self._named(f"delete {name}"):
            (self._folder / name).unlink(missing_ok=True)

    def _require_volume(self) -> None:
        """An unmounted volume is an error; its folder is not made on the disk of this machine."""
        volume = self._folder.parent
        if not volume.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(volume))

    @contextmanager
    def _named(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if action.startswith("read"):
                raise
            raise self._error(action, error) from error
        except OSError as error:
            raise self._error(action, error) from error

    def _error(self, action: str, error: OSError) -> StoreError:
        why = error.strerror or str(error)
        return StoreError(
            f"{self.url}: cannot {action}: {why}",
            f"check that {self._folder.parent} is mounted, writable and has free space",
        )


def _copy_durably(source: Path, path: Path) -> None:
    with source.open("rb") as file:
        write_durably(path, iter(lambda: file.read(1 << 20), b""))
