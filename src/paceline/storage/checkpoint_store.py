"""How do checkpoints get into an S3-compatible store, and back? Files first, a manifest last.

The manifest is the commit point: a checkpoint without one does not exist. It
names every file with its size and SHA-256 and is sealed itself, so whatever
the store or the way to it damaged is noticed, and the one before is used.
Endpoint and credentials are those of the standard AWS variables and files.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.checkpoints.catalog import DAMAGED, number_of
from paceline.core import environ
from paceline.core.disk import sync_folder
from paceline.core.errors import AlreadyThereError, MissingPackageError, PacelineError
from paceline.core.sealed_json import seal, unseal
from paceline.plan.urls import split_store

MANIFEST = "manifest.json"
PLAN = "plan.json"
CONNECT_S, READ_S, ATTEMPTS = 5, 60, 3


class StoreError(PacelineError):
    """The object store does not do what it is asked."""

    code = "E809"


class ObjectStore:
    """One run's checkpoints under s3://bucket/prefix."""

    def __init__(self, url: str) -> None:
        place = split_store(url)
        assert place is not None, "the plan's check has looked at it"
        self.url = url
        self._bucket, self._prefix = place
        self._client = _connect()

    def numbers(self) -> list[int]:
        """Of all checkpoints that have a manifest, oldest first."""
        suffix = f"/{MANIFEST}"
        names = [key.removesuffix(suffix) for key in self._keys() if key.endswith(suffix)]
        return sorted(number_of(Path(name)) for name in names if name[3:].isdigit())

    def upload(self, folder: Path) -> int:
        """This checkpoint, whole; how many bytes. Whatever was there under its name is gone before."""
        self._delete(folder.name)
        files = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".safetensors"):
                files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                with self._named(f"upload {path}"):
                    self._client.upload_file(str(path), self._bucket, self._key(folder.name, path.name))
        manifest, _ = seal({"checkpoint": folder.name, "files": files})
        self._put(self._key(folder.name, MANIFEST), manifest)
        return sum(int(str(said["bytes"])) for said in files.values())

    def download(self, number: int, root: Path) -> Path:
        """The checkpoint in `root`, checked; one of DAMAGED when it is not what was uploaded."""
        name = f"at-{number:08d}"
        manifest, _ = unseal(self._get(self._key(name, MANIFEST)))
        draft, folder = root / f"fetched-{name}", root / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, said in manifest["files"].items():
            path = draft / Path(file).name  # never out of the folder, whatever the manifest says
            with self._named(f"download {name}/{file}"):
                self._client.download_file(self._bucket, self._key(name, file), str(path))
            if path.stat().st_size != said["bytes"] or _sha256(path) != said["sha256"]:
                raise ValueError(f"{self.url}/{name}/{file} is not what its manifest says")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
        sync_folder(root)
        return folder

    def remove(self, number: int) -> None:
        self._delete(f"at-{number:08d}")

    def begin(self, plan: str) -> None:
        """Say whose checkpoints these will be; refused where another run's are."""
        if self.plan() is not None:
            raise AlreadyThereError(
                f"{self.url} already holds a run", "name another prefix, or resume that run by its folder"
            )
        self._put(self._key(PLAN), plan.encode())

    def plan(self) -> str | None:
        """The plan of the run that is kept here."""
        with self._named(f"look into {self.url}"):
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._key(PLAN))
        is_there = any(entry["Key"] == self._key(PLAN) for entry in listed.get("Contents", []))
        return self._get(self._key(PLAN)).decode() if is_there else None

    def _delete(self, name: str) -> None:
        """The manifest first: from then on there is no such checkpoint."""
        keys = [self._key(key) for key in self._keys(f"{name}/")]
        for key in sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
            with self._named(f"delete {key}"):
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def _keys(self, under: str = "") -> list[str]:
        """Names below our prefix."""
        whole = self._key(under) if under else self._key("at-")
        start = len(self._prefix) + 1 if self._prefix else 0
        with self._named(f"look into {self.url}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=whole)
            return [entry["Key"][start:] for page in pages for entry in page.get("Contents", [])]

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts) if self._prefix else parts)

    def _get(self, key: str) -> bytes:
        with self._named(f"read {key}"):
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            return data

    def _put(self, key: str, data: bytes) -> None:
        with self._named(f"write {key}"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError) as error:
            answer = getattr(error, "response", {})
            if answer.get("Error", {}).get("Code") in ("404", "NoSuchKey"):
                raise FileNotFoundError(f"{what}: it is not in {self.url}") from error
            hint = "check the bucket, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise StoreError(f"cannot {what}: {error}", hint) from error


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


def _connect() -> Any:  # Any: boto3 makes its clients at run time and types none of them
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise MissingPackageError(
            "checkpoint_store needs boto3, which is not installed", "pip install 'paceline[s3]'"
        ) from error
    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"max_attempts": ATTEMPTS, "mode": "standard"},
            # Buckets as host names are Amazon's; others are known by one address.
            s3={"addressing_style": "path" if environ.has_s3_endpoint() else "auto"},
            # Trailing checksums are new, and many stores refuse them; we have a SHA-256 of our own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
