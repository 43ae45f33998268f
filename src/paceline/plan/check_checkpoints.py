"""Can copies of checkpoints go where the user says? Only the name is looked at here; nothing is asked."""

import re

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem

_STORE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^\s]*?))?/*")


def split_store(text: str) -> tuple[str, str] | None:
    """(bucket, prefix) of s3://bucket/prefix; None when it is none."""
    found = _STORE.fullmatch(text)
    return None if found is None else (found[1], (found[2] or "").strip("/"))


def check_checkpoints(config: TrainConfig) -> list[Problem]:
    store = config.checkpoint_store
    if store is None or split_store(store) is not None:
        return []
    what = f"checkpoint_store is {store!r}, but it must be s3://BUCKET/PREFIX"
    return [Problem(what, "for example s3://my-bucket/runs/first", config.origin("checkpoint_store"))]
