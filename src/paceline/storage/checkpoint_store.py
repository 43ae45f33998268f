"""Checkpoints in an S3-compatible store: files are uploaded first, a manifest last.

The manifest is the commit point: a checkpoint without one does not exist. It names every file with
its size and SHA-256 and is sealed itself, so damage by the store or the network is detected, and the
checkpoint before is used. Connections and errors are those of s3.py.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED, number_of
from paceline.core.disk import sync_folder
from paceline.core.errors import AlreadyThereError, PacelineError
from paceline.core.sealed_json import seal, unseal
from paceline.plan.urls import split_store
from paceline.storage.s3 import S3Client, S3Error, S3Options, S3Problem

MANIFEST = "manifest.json"
PLAN = "plan.json"
OPTIONS = S3Options(needed_by="checkpoint_store", read_timeout_s=60, attempts=4)


class StoreError(PacelineError):
    """The object store failed a request."""

    code = "E809"


class ObjectStore:
    """One run's checkpoints under s3://bucket/prefix."""

    def __init__(self, url: str) -> None:
        place = split_store(url)
        assert place is not None, "the plan's check has looked at it"
        self.url = url
        bucket, self._prefix = place
        self._client = S3Client(bucket, OPTIONS)
        with self._named(f"list {url}"):
            self._client.connect()

    def numbers(self) -> list[int]:
        """Numbers of all checkpoints that have a manifest, oldest first."""
        suffix = f"/{MANIFEST}"
        names = [key.removesuffix(suffix) for key in self._keys() if key.endswith(suffix)]
        return sorted(number_of(Path(name)) for name in names if name[3:].isdigit())

    def upload(self, folder: Path) -> int:
        """Upload a complete checkpoint; returns its bytes. An existing one of that name is removed first."""
        self._delete(folder.name)
        files = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".safetensors"):
                files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                with self._named(f"upload {path}"):
                    self._client.upload(path, self._key(folder.name, path.name))
        manifest, _ = seal({"checkpoint": folder.name, "files": files})
        self._put(self._key(folder.name, MANIFEST), manifest)
        return sum(int(str(entry["bytes"])) for entry in files.values())

    def download(self, number: int, root: Path) -> Path:
        """The checkpoint in `root`, checked; one of DAMAGED when it is not what was uploaded."""
        name = f"at-{number:08d}"
        manifest, _ = unseal(self._get(self._key(name, MANIFEST)))
        draft = root / f"fetched-{name}"
        folder = root / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, entry in manifest["files"].items():
            path = draft / Path(file).name  # never outside the folder, whatever the manifest contains
            with self._named(f"download {name}/{file}"):
                self._client.download(self._key(name, file), path)
            if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
                raise ValueError(f"{self.url}/{name}/{file} does not match its manifest")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
        sync_folder(root)
        return folder

    def remove(self, number: int) -> None:
        self._delete(f"at-{number:08d}")

    def begin(self, plan: str) -> None:
        """Record the run of these checkpoints; refused if another run's exist there."""
        if self.plan() is not None:
            raise AlreadyThereError(
                f"{self.url} already holds a run", "name another prefix, or resume that run by its folder"
            )
        self._put(self._key(PLAN), plan.encode())

    def plan(self) -> str | None:
        """The plan of the run that is kept here."""
        with self._named(f"list {self.url}"):
            is_there = self._key(PLAN) in self._client.keys(self._key(PLAN))
        return self._get(self._key(PLAN)).decode() if is_there else None

    def _delete(self, name: str) -> None:
        """The manifest first: from then on there is no such checkpoint."""
        keys = [self._key(key) for key in self._keys(f"{name}/")]
        for key in sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
            with self._named(f"delete {key}"):
                self._client.delete(key)

    def _keys(self, under: str = "") -> list[str]:
        """Names below our prefix."""
        whole = self._key(under) if under else self._key("at-")
        start = len(self._prefix) + 1 if self._prefix else 0
        with self._named(f"list {self.url}"):
            return [key[start:] for key in self._client.keys(whole)]

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts) if self._prefix else parts)

    def _get(self, key: str) -> bytes:
        with self._named(f"read {key}"):
            return self._client.get(key)

    def _put(self, key: str, data: bytes) -> None:
        with self._named(f"write {key}"):
            self._client.put(key, data)

    @contextmanager
    def _named(self, action: str) -> Iterator[None]:
        try:
            yield
        except S3Error as error:
            if error.kind is S3Problem.NO_KEY:
                raise FileNotFoundError(f"{action}: it is not in {self.url}") from error
            hint = "check the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise StoreError(f"cannot {action}: {error}", hint) from error


def fetch_newest(store: ObjectStore, root: Path, *, after: int) -> list[str]:
    """Bring the newest whole checkpoint behind `after` into `root`; the names that were passed over."""
    passed_over = []
    for number in reversed(store.numbers()):
        if number <= after:
            break
        try:
            store.download(number, root)
            break
        except DAMAGED:
            passed_over.append(f"at-{number:08d}")
    return passed_over


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
