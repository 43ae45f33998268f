"""Locations of data and checkpoints: local path, URL or object store, by their text alone."""

import re

from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_STORE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^\s]*?))?/*")


def split_store(text: str) -> tuple[str, str] | None:
    """(bucket, prefix) of s3://bucket/prefix; None when it is none."""
    match = _STORE.fullmatch(text)
    return None if match is None else (match[1], (match[2] or "").strip("/"))


def may_hold_secret(url: str) -> bool:
    """Whether it has user and password before an `@`, or a signature or token after a `?`."""
    rest = url.partition("://")[2] or url
    return "@" in rest or "?" in rest


def find_store_problem(url: str) -> tuple[str, str] | None:
    """(what, hint) of an address that cannot be a store; what may be secret in it is not repeated."""
    if url.startswith(f"{FILE_SCHEME}/") and url.removeprefix(FILE_SCHEME).strip("/"):
        return None
    if may_hold_secret(url):
        return (
            "the store of the run may hold a password or a token, which would end up in plans and logs",
            "write s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if url.startswith(FILE_SCHEME):
        return (
            f"the store of the run is {url!r}, but a folder must be absolute: other machines open it too",
            "write file:///FOLDER, such as file:///mnt/volume/runs/first",
        )
    if split_store(url) is None:
        return (
            f"the store of the run is {url!r}, but {_store_rule(url)}",
            "write s3://BUCKET/PREFIX, such as s3://my-bucket/runs/first, or file:///FOLDER",
        )
    return None


def _store_rule(url: str) -> str:
    """The rule that the address of an object store breaks."""
    match = re.match(r"s3://([^/]*)", url)
    if match is None:
        return "it must be s3://BUCKET/PREFIX or file:///FOLDER"
    bucket = match[1]
    if not bucket:
        return "it names no bucket"
    if not 3 <= len(bucket) <= 63:
        return (
            f"the bucket name {bucket!r} has {len(bucket)} character{'s' * (len(bucket) != 1)}, not 3 to 63"
        )
    if not _BUCKET.fullmatch(bucket):
        return (
            f"the bucket name {bucket!r} must have lower-case letters, digits, dots and hyphens only,"
            " and start and end with a letter or digit"
        )
    return "the prefix must not have spaces"


def check_checkpoints(config: TrainConfig) -> list[Problem]:
    store = config.checkpoint_store
    wrong = None if store is None else find_store_problem(store)
    return [] if wrong is None else [Problem(*wrong, config.origin("checkpoint_store"))]


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
FILE_SCHEME = "file://"


def is_remote(text: str) -> bool:
    """s3://bucket/prefix and the like; file:///folder is here."""
    return is_url(text) and not text.lower().startswith(FILE_SCHEME)


def is_remote_data(location: str | None) -> bool:
    """True if each worker has to fetch the data."""
    return location is not None and is_remote(location)


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def local_path(text: str) -> str:
    return text[len(FILE_SCHEME) :] if text.lower().startswith(FILE_SCHEME) else text


def find_url_problem(text: str) -> tuple[str, str] | None:
    """(what, hint) of an address that cannot be one; what is secret in it is not repeated."""
    match = _URL.fullmatch(text)
    if match is None or not is_remote(text):
        return None
    if may_hold_secret(text):
        message = (
            f"the {match[1]}:// address may hold a password or a token, which would end up in plans and logs"
        )
        return (
            message,
            "write s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if match[1].lower() == "s3" and split_store(text) is None:
        return (
            f"the address is {text!r}, but {_store_rule(text)}",
            "write s3://BUCKET/PREFIX, such as s3://my-bucket/text",
        )
    return None
