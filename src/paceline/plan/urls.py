"""Is what was said about data the name of a place elsewhere? Only the text is looked at; nothing is asked."""

import re

from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem

_STORE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^\s]*?))?/*")


def split_store(text: str) -> tuple[str, str] | None:
    """(bucket, prefix) of s3://bucket/prefix; None when it is none."""
    found = _STORE.fullmatch(text)
    return None if found is None else (found[1], (found[2] or "").strip("/"))


def may_hold_secret(url: str) -> bool:
    """User and password before an `@`, or a signature or token behind a `?`."""
    rest = url.partition("://")[2] or url
    return "@" in rest or "?" in rest


def find_store_problem(url: str) -> tuple[str, str] | None:
    """(what, hint) of an address that cannot be a store; what may be secret in it is not repeated."""
    if may_hold_secret(url):
        return (
            "checkpoint_store may hold a password or a token, which would end up in plans and logs",
            "write s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if split_store(url) is None:
        return (
            f"checkpoint_store is {url!r}, but it must be s3://BUCKET/PREFIX",
            "for example s3://my-bucket/runs/first",
        )
    return None


def check_checkpoints(config: TrainConfig) -> list[Problem]:
    store = config.checkpoint_store
    wrong = None if store is None else find_store_problem(store)
    return [] if wrong is None else [Problem(*wrong, config.origin("checkpoint_store"))]


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
FILE_SCHEME = "file://"


def is_remote(text: str) -> bool:
    """s3://bucket/prefix and the like; file:///folder is here."""
    return is_url(text) and not text.lower().startswith(FILE_SCHEME)


def is_remote_data(said: str | None) -> bool:
    """Has the data to be fetched by whoever trains on it?"""
    return said is not None and is_remote(said)


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def local_path(text: str) -> str:
    return text[len(FILE_SCHEME) :] if text.lower().startswith(FILE_SCHEME) else text


def find_url_problem(text: str) -> tuple[str, str] | None:
    """(what, hint) of an address that cannot be one; what is secret in it is not repeated."""
    found = _URL.fullmatch(text)
    if found is None or not is_remote(text):
        return None
    if may_hold_secret(text):
        what = (
            f"the {found[1]}:// address may hold a password or a token, which would end up in plans and logs"
        )
        return (
            what,
            "write s3://BUCKET/PREFIX, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if found[1].lower() == "s3" and split_store(text) is None:
        return (
            f"{text!r} is no place in an object store",
            "write s3://BUCKET/PREFIX, such as s3://my-bucket/text",
        )
    return None
