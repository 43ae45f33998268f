"""Which ways are there for data in a store not to come? Each has its own error, and its own next command."""

import re

from paceline.errors import ExitCode, HopelessError, PacelineError

# Name and password in an address, and what follows a question mark: signatures, tokens.
_SECRET = re.compile(r"//[^\s\"']*@|\?[^\s\"']+")


class UnreachableStoreError(PacelineError):
    """A store did not answer, or broke off again and again."""

    exit_code = ExitCode.UNREACHABLE
    code = "E804"


class RefusedByStoreError(HopelessError):
    """A store answers, but not to us."""

    exit_code = ExitCode.NOT_READY
    code = "E805"


class MissingDataError(HopelessError):
    """What was asked for is not in the store."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E806"


class NoDataSetError(MissingDataError):
    """There is no index where a data set should be."""

    code = "E807"


class DamagedDataError(HopelessError):
    """What is in the store is not what its index says."""

    exit_code = ExitCode.GATE_FAILED
    code = "E808"


class BrokenLineError(Exception):
    """A read or write that failed and may succeed when it is tried again."""


class NoSuchFileError(Exception):
    """The store has no file of this name."""


def without_secrets(text: object) -> str:
    """Vendors' messages repeat addresses, and some people write passwords into them."""
    return _SECRET.sub(lambda found: "//" if found[0].startswith("/") else "?…", str(text))


def unreachable(url: str, why: object) -> UnreachableStoreError:
    return UnreachableStoreError(
        f"{url} cannot be reached: {without_secrets(why)}",
        "look whether this machine is online and AWS_ENDPOINT_URL is right; then run the command again, "
        "which goes on from what has come",
    )


def refused(url: str, why: object) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} is not for us: {without_secrets(why)}",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of someone who may read it "
        "(and write it, for `paceline data shard`)",
    )


def no_bucket(url: str) -> MissingDataError:
    bucket = url.split("/")[2]
    return MissingDataError(
        f"{url}: there is no bucket {bucket} in this store",
        f"check its name and AWS_ENDPOINT_URL; make it with: aws s3 mb s3://{bucket}",
    )


def no_data_set(url: str) -> NoDataSetError:
    return NoDataSetError(
        f"there is no data set at {url}: it has no index.json, which is written last",
        f"make it, or finish it: paceline data shard charlm --out {url} (or cifar10, sp500, your files)",
    )


def no_shard(url: str, file: str) -> MissingDataError:
    return MissingDataError(
        f"{url}/{file} is not there, though the index names it", _again(url, "writes what is missing")
    )


def too_short(url: str, file: str, *, end: int | None = None) -> DamagedDataError:
    where = "what its index names" if end is None else f"byte {end}"
    return DamagedDataError(
        f"{url}/{file} is cut short: it ends before {where}", _again(url, "writes what differs")
    )


def other_bytes(url: str, file: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/{file} is not what its index says: the SHA-256 differs", _again(url, "writes what differs")
    )


def no_index(url: str) -> DamagedDataError:
    return DamagedDataError(
        f"{url}/index.json is no index, or was changed",
        f"remove {url}/index.json, and run the same `paceline data shard … --out {url}` again",
    )


def no_ranges(url: str) -> RefusedByStoreError:
    return RefusedByStoreError(
        f"{url} sends whole files where a part was asked for",
        "read it from a store that answers HTTP ranges, or copy it to a folder",
    )


def _again(url: str, what: str) -> str:
    again = f"run the same `paceline data shard … --out {url}` again, which {what}"
    return f"{again}; see all: paceline data verify {url}"
