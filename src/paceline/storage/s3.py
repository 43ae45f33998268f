"""How is a file of a data set read from and written to an S3-compatible store? By boto3, in one try.

Endpoint and credentials are those of the standard AWS variables and files, and
are never part of a plan. A body that breaks off in the middle is as much as has
come: whoever asks goes on from there. Who tries again, and when, is reading.py's.
"""

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from urllib3.exceptions import HTTPError

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

CONNECT_S, READ_S = 5, 8  # of silence; five tries and their pauses stay below the 60 s that peers wait
CONNECTIONS = 32
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


class S3Store:
    def __init__(self, url: str) -> None:
        place = split_store(url)
        if place is None:
            raise NotReadyError(f"{url!r} is no place in an object store", "write s3://BUCKET/PREFIX")
        self._bucket, self._prefix = place
        self.url = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        self._connecting = threading.Lock()
        self._clients: dict[int, Any] = {}  # by pid: what was opened before a fork is the parent's

    def read(self, name: str, start: int, size: int | None) -> bytes:
        if size == 0:
            return b""
        end = "" if size is None else start + size - 1
        with self._answered(name):
            try:
                answer = self._client().get_object(**self._key(name), Range=f"bytes={start}-{end}")
            except self._errors().ClientError as error:
                if _code(error) in ("416", "InvalidRange"):
                    return b""
                raise
            if answer["ResponseMetadata"]["HTTPStatusCode"] != 206:  # all of it, whatever was asked for
                answer["Body"].close()
                raise no_ranges(self.url)
            return _received(answer["Body"])

    def sha256(self, name: str) -> str | None:
        """As it was said when it was written; who wrote it otherwise did not say, and it is read."""
        try:
            with self._answered(name):
                head = self._client().head_object(**self._key(name))
        except NoSuchFileError:
            return None
        said = head["Metadata"].get(_CHECKSUM)
        return str(said) if said else self._computed(name, int(head["ContentLength"]))

    def _computed(self, name: str, size: int) -> str:
        digest, done = hashlib.sha256(), 0
        while done < size:
            piece = self.read(name, done, min(size - done, 1 << 24))
            if not piece:
                raise BrokenLineError(f"{name} became shorter")
            digest.update(piece)
            done += len(piece)
        return digest.hexdigest()

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        # Every store knows this checksum, and refuses what was damaged on the way.
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        with self._answered(name):
            self._client().put_object(
                **self._key(name), Body=data, ContentMD5=md5, Metadata={_CHECKSUM: sha256}
            )

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}/{name}" if self._prefix else name}

    @contextmanager
    def _answered(self, name: str) -> Iterator[None]:
        """Whatever boto3 raises, in our words."""
        errors = self._errors()
        try:
            yield
        except errors.ClientError as error:
            raise self._of_answer(name, error) from error
        except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound) as error:
            raise refused(self.url, error) from error
        except (errors.BotoCoreError, HTTPError, OSError) as error:
            raise BrokenLineError(without_secrets(error)) from error

    def _of_answer(self, name: str, error: Any) -> Exception:  # Any: botocore's ClientError
        code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "NoSuchBucket":
            return no_bucket(self.url)
        if code in ("NoSuchKey", "404"):
            return NoSuchFileError(name)
        if code in _REFUSED or status in (401, 403):
            return refused(self.url, error)
        return BrokenLineError(without_secrets(error))

    def _errors(self) -> Any:  # Any: boto3 is untyped
        return _boto().exceptions

    def _client(self) -> Any:  # Any: boto3 makes its clients at run time and types none of them
        with self._connecting:  # of several threads at once: boto3's session is no place to meet
            if os.getpid() not in self._clients:
                self._clients = {os.getpid(): self._connected()}
            return self._clients[os.getpid()]

    def _connected(self) -> Any:  # Any: as above
        from botocore.config import Config

        _boto()
        import boto3

        try:
            return boto3.client(
                "s3",
                config=Config(
                    connect_timeout=CONNECT_S,
                    read_timeout=READ_S,
                    max_pool_connections=CONNECTIONS,
                    retries={"total_max_attempts": 1},
                    # Buckets as host names are Amazon's; others are known by one address.
                    s3={"addressing_style": "path" if environ.has_s3_endpoint() else "auto"},
                    # Trailing checksums are new, and many stores refuse them; we have a SHA-256 of our own.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except (self._errors().BotoCoreError, ValueError) as error:  # a profile or an endpoint that is none
            raise refused(self.url, error) from error


def _received(body: Any) -> bytes:  # Any: botocore's stream
    """What comes until it ends or breaks; nothing at all is the error itself."""
    errors = _boto().exceptions
    pieces: list[bytes] = []
    try:
        with body:
            while piece := body.read(PIECE):
                pieces.append(piece)
    except (errors.BotoCoreError, HTTPError, OSError):
        if not pieces:
            raise
    return b"".join(pieces)


def _code(error: Any) -> str:  # Any: botocore's ClientError
    return str(error.response.get("Error", {}).get("Code", ""))


def _boto() -> Any:  # Any: botocore is untyped
    try:
        import boto3  # noqa: F401  # both are needed, and come together
        import botocore
        import botocore.exceptions
    except ImportError as error:
        raise MissingPackageError(
            "data in s3:// needs boto3, which is not installed", "pip install 'paceline[s3]'"
        ) from error
    return botocore
