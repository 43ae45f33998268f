"""Is what was said about data the name of a place elsewhere? Only the text is looked at; nothing is asked."""

import re

from paceline.plan.check_checkpoints import may_hold_secret, split_store

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
FILE = "file://"


def is_remote(text: str) -> bool:
    """s3://bucket/prefix and the like; file:///folder is here."""
    return is_url(text) and not text.lower().startswith(FILE)


def is_elsewhere(said: str | None) -> bool:
    """Has the data to be fetched by whoever trains on it?"""
    return said is not None and is_remote(said)


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def local_path(text: str) -> str:
    return text[len(FILE) :] if text.lower().startswith(FILE) else text


def what_is_wrong(text: str) -> tuple[str, str] | None:
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
