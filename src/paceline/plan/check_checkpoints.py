"""Can copies of checkpoints go where the user says? Only the name is looked at here; nothing is asked."""

import re

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem

_STORE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^\s]*?))?/*")


def split_store(text: str) -> tuple[str, str] | None:
    """(bucket, prefix) of s3://bucket/prefix; None when it is none."""
    found = _STORE.fullmatch(text)
    return None if found is None else (found[1], (found[2] or "").strip("/"))


def may_hold_secret(url: str) -> bool:
    """User and password before an `@`, or a signature or token behind a `?`."""
    rest = url.partition("://")[2] or url
    return "@" in rest or "?" in rest


def store_problem(url: str) -> tuple[str, str] | None:
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
    wrong = None if store is None else store_problem(store)
    return [] if wrong is None else [Problem(*wrong, config.origin("checkpoint_store"))]
