"""Download of CIFAR-10: fetched, verified by SHA-256 and unpacked, each once.

Run again, it resumes: an archive that is there, however it came,
is verified and unpacked without a network, and a folder that is there is read.
An archive is not trusted: only the files with the expected names are
taken out, under these names, and read as data before the folder gets its own.
"""

import fcntl
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO

from paceline import __version__
from paceline.core.disk import sync_folder
from paceline.core.errors import CannotWriteError, ExitCode, InUseError, NotReadyError, PacelineError
from paceline.tasks.cifar10.data import (
    ARCHIVE,
    FETCH,
    FOLDER,
    NAMES,
    TEST,
    TRAINING,
    check_batches,
    members,
    read_images,
)

# A download is written to NAME.part, and the next attempt requests the rest of it
# (HTTP Range). It is renamed to NAME only when its SHA-256 is the expected one, so
# a file of that name is whole.

PIECE = 1 << 18
TIMEOUT_S = 30.0
OnBytes = Callable[[int, int | None], None]  # bytes received, and total (None: unknown)
_PARTIAL = 206
_RANGE_NOT_SATISFIABLE = 416


class UnreachableFileError(PacelineError):
    """A file could not be downloaded completely."""

    exit_code = ExitCode.UNREACHABLE
    code = "E801"


class WrongFileError(PacelineError):
    """A file is not the one that was meant."""

    exit_code = ExitCode.GATE_FAILED
    code = "E802"


@dataclass(frozen=True, slots=True)
class _Came:
    total: int | None  # bytes that the whole file has; None: the server does not report it
    trouble: str | None = None  # what ended it early


def download(url: str, target: Path, *, sha256: str, by_hand: str, on_bytes: OnBytes) -> None:
    """`by_hand` is the advice for machines without downloads."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise UnreachableFileError(
            f"{url} is not an http:// or https:// URL", "write --url https://… , or leave it out"
        )
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab", buffering=0) as file:
            _be_alone(file, part)
            _get_all(url, file, by_hand, on_bytes)
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(part, error) from error
    digest = sha256_of(part)
    if digest != sha256:
        part.unlink()
        raise WrongFileError(
            f"the file from {url} has the SHA-256 {digest}, not {sha256}; it was deleted",
            "run the command again; if it happens again, use another source with --url",
        )
    part.rename(target)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cannot_write(path: Path, error: OSError) -> NotReadyError:
    why = error.strerror or str(error)
    return CannotWriteError(
        f"{path} cannot be written: {why}", "free disk space, or name another folder with --to FOLDER"
    )


def _be_alone(file: FileIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUseError(
            f"another command is downloading {part}", "wait for it, and run this one again"
        ) from error


def _get_all(url: str, file: FileIO, by_hand: str, on_bytes: OnBytes) -> None:
    """Tries as long as each try brings more."""
    while True:
        before = file.tell()
        came = _get_rest(url, file, on_bytes)
        if came.trouble is None and came.total in (None, file.tell()):
            return
        if file.tell() > before or (before and not file.tell()):  # or it started over
            continue
        has = f" after {before} of {came.total or '?'} bytes" if before else ""
        why = came.trouble or "the server ended the connection"
        raise UnreachableFileError(f"{url} cannot be downloaded{has}: {why}", by_hand)


def _get_rest(url: str, file: FileIO, on_bytes: OnBytes) -> _Came:
    start = file.tell()
    headers = {"User-Agent": f"paceline/{__version__}", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S
        ) as answer:
            if start and answer.status != _PARTIAL:
                _restart(file)  # the server ignored the range and sends the whole file
            total = _announced(answer.headers.get("Content-Length"), file.tell())
            return _receive(answer, file, total, on_bytes)
    except urllib.error.HTTPError as error:
        with error:
            return _refused(error, file)
    except urllib.error.URLError as error:
        return _Came(None, _why(error.reason))
    except (OSError, http.client.HTTPException) as error:
        return _Came(None, _why(error))


def _receive(answer: IO[bytes], file: FileIO, total: int | None, on_bytes: OnBytes) -> _Came:
    while True:
        try:
            piece = answer.read(PIECE)
        except (OSError, http.client.HTTPException) as error:
            return _Came(total, _why(error))
        if not piece:
            return _Came(total)
        _write(file, memoryview(piece))
        on_bytes(file.tell(), total)


def _write(file: FileIO, rest: memoryview) -> None:
    """Its errors are the disk's, and not the line's."""
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise cannot_write(Path(str(file.name)), error) from error


def _refused(error: urllib.error.HTTPError, file: FileIO) -> _Came:
    whole = error.headers.get("Content-Range", "").removeprefix("bytes */")
    if error.code == _RANGE_NOT_SATISFIABLE and file.tell():
        if whole == str(file.tell()):
            return _Came(file.tell())  # nothing was missing but the name
        _restart(file)
    return _Came(None, f"the server returned {error.code} {error.reason}")


def _restart(file: FileIO) -> None:
    file.truncate(0)
    file.seek(0)


def _announced(length: str | None, start: int) -> int | None:
    return start + int(length) if length is not None and length.isdigit() else None


def _why(reason: object) -> str:
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    folder: Path
    training_images: int
    test_images: int
    was_downloaded: bool
    was_there: bool  # nothing had to be done


def fetch_cifar10(to: Path, *, url: str = URL, sha256: str = SHA256, on_bytes: OnBytes) -> Fetched:
    folder = to / FOLDER
    archive = to / ARCHIVE
    if folder.is_dir():
        return _inspect(folder, was_downloaded=False, was_there=True)
    is_new = not archive.is_file()
    if is_new:
        by_hand = (
            f"check the network and run `{FETCH} --to {to}` again, which resumes; or copy {ARCHIVE} "
            f"to {archive} and run the same command"
        )
        download(url, archive, sha256=sha256, by_hand=by_hand, on_bytes=on_bytes)
    elif (digest := sha256_of(archive)) != sha256:
        raise WrongFileError(
            f"{archive} has the SHA-256 {digest}, not {sha256}",
            f"rm {archive}, and fetch it; or, if you trust it, add --sha256 {digest}",
        )
    _unpack(archive, folder)
    return _inspect(folder, was_downloaded=is_new, was_there=False)


def _unpack(archive: Path, folder: Path) -> None:
    contents = members(archive, (*TRAINING, TEST), also=(NAMES,))
    check_batches(archive, contents)
    fresh = folder.with_name(f".{FOLDER}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (fresh / name).write_bytes(content)
        fresh.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _inspect(folder: Path, *, was_downloaded: bool, was_there: bool) -> Fetched:
    read = read_images(folder)
    return Fetched(
        folder=folder,
        training_images=len(read.training[1]),
        test_images=len(read.test[1]),
        was_downloaded=was_downloaded,
        was_there=was_there,
    )
