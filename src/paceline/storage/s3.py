"""S3-compatible object stores: one client over boto3, and the store of data sets on top of it.

S3Client is the only module code that calls boto3: it connects, and turns every error of boto3,
botocore and urllib3 into an S3Error of one kind. S3Store (data sets) and S3Objects
(objects.py, of run folders) give each kind the meaning that it has for them. Endpoint and credentials are
those of the standard AWS variables and files, and are never part of a plan.

S3Store makes one attempt: who tries again, and when, is decided in datasets/fetching.py. A body that
breaks off in the middle is as much as has come, and the reader continues from there.
"""

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from paceline.core import environ
from paceline.core.errors import MissingPackageError, NotReadyError
from paceline.plan.urls import split_store
from paceline.storage.store import (
    BrokenLineError,
    NoSuchFileError,
    no_bucket,
    no_ranges,
    refused,
    without_secrets,
)

CONNECT_S = 5
PIECE = 1 << 16
_CHECKSUM = "sha256"  # in the object's metadata
_REFUSED = frozenset(
    {
        "403",
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "AllAccessDisabled",
    }
)


class S3Problem(Enum):
    NO_KEY = auto()
    NO_BUCKET = auto()
    PAST_END = auto()  # the range begins behind the last byte
    NO_RANGES = auto()  # the store ignores ranges and sends whole objects
    EXISTS = auto()  # a write that must create its object found one
    CONFLICT = auto()  # it met another request for the same key; which one wins is open
    REFUSED = auto()  # credentials are missing, wrong or not allowed
    BROKEN = auto()  # the network, or an error of the store that may pass


class S3Error(Exception):
    """A request that failed; its text is that of the error below."""

    def __init__(self, kind: S3Problem, text: object) -> None:
        super().__init__(str(text))
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    needed_by: str  # named where boto3 is not installed
    read_timeout_s: int
    attempts: int
    connections: int = 10


class S3Client:
    """Objects of one bucket. Connects on the first request, and again after a fork."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options
        self._connecting = threading.Lock()
        self._clients: dict[int, Any] = {}  # by pid: sockets opened before a fork are the parent's

    def connect(self) -> Any:  # Any: boto3 makes its clients at run time and types none of them
        """MissingPackageError without boto3; S3Error where a profile or the endpoint is none."""
        with self._connecting:  # boto3's default session is not thread-safe
            if os.getpid() not in self._clients:
                self._clients = {os.getpid(): self._connected()}
            return self._clients[os.getpid()]

    def get(self, key: str) -> bytes:
        with self._translated() as client:
            data: bytes = client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            return data

    def get_range(self, key: str, start: int, size: int | None) -> bytes:
        """At most `size` bytes; fewer if the connection breaks after the first."""
        end = "" if size is None else start + size - 1
        with self._translated() as client:
            answer = client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end}")
            if answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                answer["Body"].close()
                raise S3Error(S3Problem.NO_RANGES, "the whole object was sent")
            return _received(answer["Body"])

    def head(self, key: str) -> tuple[int, dict[str, str]]:
        """Size and metadata."""
        with self._translated() as client:
            head = client.head_object(Bucket=self._bucket, Key=key)
        return int(head["ContentLength"]), dict(head["Metadata"])

    def put(self, key: str, data: bytes, **more: object) -> None:
        with self._translated() as client:
            client.put_object(Bucket=self._bucket, Key=key, Body=data, **more)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of every object whose key begins so, by key."""
        with self._translated() as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return {entry["Key"]: int(entry["Size"]) for page in pages for entry in page.get("Contents", [])}

    def delete(self, key: str) -> None:
        with self._translated() as client:
            client.delete_object(Bucket=self._bucket, Key=key)

    def upload(self, path: Path, key: str) -> None:
        """Upload a file, in parts if it is large. OSError is an error of the local file."""
        with self._translated(has_file=True) as client:
            client.upload_file(str(path), self._bucket, key)

    def download(self, key: str, path: Path) -> None:
        with self._translated(has_file=True) as client:
            client.download_file(self._bucket, key, str(path))

    @contextmanager
    def _translated(self, *, has_file: bool = False) -> Iterator[Any]:  # Any: boto3's client
        """The connected client; every error of the libraries becomes an S3Error."""
        client = self.connect()
        from boto3.exceptions import Boto3Error
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        try:
            yield client
        except exceptions.ClientError as error:
            raise S3Error(_kind(error), error) from error
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.ProfileNotFound,
        ) as error:
            raise S3Error(S3Problem.REFUSED, error) from error
        except (Boto3Error, exceptions.BotoCoreError, HTTPError) as error:
            raise S3Error(S3Problem.BROKEN, error) from error
        except OSError as error:
            if has_file:
                raise
            raise S3Error(S3Problem.BROKEN, error) from error

    def _connected(self) -> Any:  # Any: boto3's client
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise MissingPackageError(
                f"{self._options.needed_by} needs boto3, which is not installed", "pip install 'paceline[s3]'"
            ) from error
        try:
            return boto3.client(
                "s3",
                config=Config(
                    connect_timeout=CONNECT_S,
                    read_timeout=self._options.read_timeout_s,
                    max_pool_connections=self._options.connections,
                    retries={"total_max_attempts": self._options.attempts, "mode": "standard"},
                    # Buckets as host names are Amazon's; others are known by one address.
                    s3={"addressing_style": "path" if environ.s3_endpoint() else "auto"},
                    # Trailing checksums are new, and many stores refuse them; we have a SHA-256 of our own.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except (BotoCoreError, ValueError) as error:  # a profile or an endpoint that is none
            raise S3Error(S3Problem.REFUSED, error) from error


def _kind(error: Any) -> S3Problem:  # Any: botocore's ClientError
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code == "NoSuchBucket":
        return S3Problem.NO_BUCKET
    if code in ("NoSuchKey", "404"):
        return S3Problem.NO_KEY
    if code in ("416", "InvalidRange"):
        return S3Problem.PAST_END
    if code in ("412", "PreconditionFailed"):
        return S3Problem.EXISTS
    if code == "ConditionalRequestConflict":
        return S3Problem.CONFLICT
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return S3Problem.REFUSED if code in _REFUSED or status in (401, 403) else S3Problem.BROKEN


def _received(body: Any) -> bytes:  # Any: botocore's stream
    """Bytes until the stream ends or breaks; raises the error if none arrived."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    pieces: list[bytes] = []
    try:
        with body:
            while piece := body.read(PIECE):
                pieces.append(piece)
    except (BotoCoreError, HTTPError, OSError):
        if not pieces:
            raise
    return b"".join(pieces)


class S3Store:
    """A data set's files under s3://bucket/prefix; implements storage.store.Store."""

    # Silence of 8 s: five attempts and their pauses stay below the 60 s that peers wait.
    OPTIONS = S3Options(needed_by="data in s3://", read_timeout_s=8, attempts=1, connections=32)

    def __init__(self, url: str) -> None:
        place = split_store(url)
        if place is None:
            raise NotReadyError(f"{url!r} is not an object store URL", "write s3://BUCKET/PREFIX")
        bucket, self._prefix = place
        self.url = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._client = S3Client(bucket, self.OPTIONS)

    def read(self, name: str, start: int, size: int | None) -> bytes:
        if size == 0:
            return b""
        with self._explained(name):
            try:
                return self._client.get_range(self._key(name), start, size)
            except S3Error as error:
                if error.kind is S3Problem.PAST_END:
                    return b""
                raise

    def sha256(self, name: str) -> str | None:
        """Hash from the object's metadata; computed if another program wrote the object."""
        try:
            with self._explained(name):
                size, metadata = self._client.head(self._key(name))
        except NoSuchFileError:
            return None
        return metadata.get(_CHECKSUM) or self._computed(name, size)

    def _computed(self, name: str, size: int) -> str:
        digest = hashlib.sha256()
        done = 0
        while done < size:
            piece = self.read(name, done, min(size - done, 1 << 24))
            if not piece:
                raise BrokenLineError(f"{name} became shorter")
            digest.update(piece)
            done += len(piece)
        return digest.hexdigest()

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        # Every store supports this checksum, and refuses data damaged in transit.
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        with self._explained(name):
            self._client.put(self._key(name), data, ContentMD5=md5, Metadata={_CHECKSUM: sha256})

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except S3Error as error:
            raise self._meaning(name, error) from error

    def _meaning(self, name: str, error: S3Error) -> Exception:
        match error.kind:
            case S3Problem.NO_KEY:
                return NoSuchFileError(name)
            case S3Problem.NO_BUCKET:
                return no_bucket(self.url)
            case S3Problem.NO_RANGES:
                return no_ranges(self.url)
            case S3Problem.REFUSED:
                return refused(self.url, error)
            case S3Problem.BROKEN | S3Problem.PAST_END | S3Problem.EXISTS | S3Problem.CONFLICT:
                return BrokenLineError(without_secrets(error))
