"""Durable files, whole appends and exclusive folders on a local disk.

A file that is written here is whole or absent, also after a crash: its bytes go into a
draft under a name that no other writer uses, are synced, and the draft is renamed.

In a folder that several processes fill (`write_shared`), a writer holds a lock on its draft. A draft whose
lock is free was left by a writer that ended: only such a draft is removed, whatever the clocks say.

An append puts a whole record behind the others or nothing at all: what a full disk cut
short is taken back, or ended with a newline so that the next record begins a line.

A folder is exclusive while one thread of one process holds its lock. The kernel keeps the
lock (flock on the file `.lock`) and releases it when the process ends, however it ends. The
holder's children do not inherit it. The file names the holder for the error that the second
command gets; it is removed on release, so an acquirer checks that the file it locked still
has that name.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from paceline.errors import FolderInUseError

Bytes = bytes | bytearray | memoryview

LOCK_NAME = ".lock"
_DRAFT = re.compile(r".+\.\d+-[0-9a-f]{8}\.part")
# What a file system answers that has no locks at all: NFS without lockd, some FUSE and 9p mounts.
HAS_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def write_durably(path: Path, parts: Iterable[Bytes], *, mode: int = 0o666) -> None:
    """The whole file under its name, synced; on an error what was there before stays."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            for data in parts:
                write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_drafts(folder: Path) -> None:
    """What killed writers left in a folder that the caller holds exclusively."""
    for path in folder.iterdir():
        if _DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_shared(path: Path, data: Bytes) -> None:
    """The whole file under its name, not synced, in a folder where `remove_abandoned` may run meanwhile."""
    draft, fd = locked_draft(path)
    try:
        write_all(fd, data)
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def remove_abandoned(folder: Path) -> None:
    """Drafts of `write_shared` whose writers ended; without locks a draft may be in use, and stays."""
    for path in [path for path in folder.iterdir() if _DRAFT.fullmatch(path.name)]:
        with suppress(OSError):  # it got its name, another process removed it, or it is locked
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(fd, path):
                    path.unlink()
            finally:
                os.close(fd)


def locked_draft(path: Path) -> tuple[Path, int]:
    """An empty file under a name of its own, and its descriptor, which holds the lock."""
    while True:
        draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in HAS_NO_LOCKS:
                os.close(fd)
                draft.unlink(missing_ok=True)
                raise
        if _is_named(fd, draft):
            return draft, fd
        os.close(fd)  # removed between our open and our lock


def make_folder(folder: Path) -> None:
    """The folder, durably: a file in it would be lost with the folder's name."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: Bytes) -> None:
    # A write may take less than it was given: Linux stops at 2 GB, and a disk that fills up earlier.
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a folder, as its lock file names it."""

    pid: int
    host: str
    since: str
    command: str

    def in_words(self) -> str:
        return f"`{self.command}`, process {self.pid} on {self.host}, since {self.since}"


@dataclass(slots=True)
class _Held:
    fd: int
    thread: int
    depth: int = 1


_held: dict[tuple[int, int], _Held] = {}  # by device and inode of the folder
_held_guard = threading.Lock()


def _forget_in_child() -> None:
    # Closing a copy of the descriptor keeps the parent's lock; LOCK_UN would release it.
    for held in _held.values():
        with suppress(OSError):
            os.close(held.fd)
    _held.clear()
    _held_guard.release()


os.register_at_fork(
    before=_held_guard.acquire,
    after_in_parent=_held_guard.release,
    after_in_child=_forget_in_child,
)


@contextmanager
def exclusive(folder: Path) -> Iterator[str | None]:
    """Hold the folder, which exists; FolderInUseError names the holder if another command has it.

    The thread that holds it may enter again. Yields a warning where the file system has no locks.
    """
    status = folder.stat()
    key = (status.st_dev, status.st_ino)
    thread = threading.get_ident()
    with _held_guard:
        held = _held.get(key)
        if held is not None and held.thread == thread:
            held.depth += 1
            warning = None
        elif held is not None:
            raise in_use(folder, holder_of(folder))
        else:
            fd, warning = _locked(folder)
            held = _held[key] = _Held(fd, thread)
    try:
        yield warning
    finally:
        with _held_guard:
            held.depth -= 1
            if held.depth == 0:
                del _held[key]
                # Before the lock goes: an acquirer that locked the removed file sees that it has no name.
                with suppress(OSError):
                    if _is_named(held.fd, folder / LOCK_NAME):
                        (folder / LOCK_NAME).unlink()
                os.close(held.fd)


def holder_of(folder: Path) -> Holder | None:
    """None: the lock file does not say."""
    try:
        said = json.loads((folder / LOCK_NAME).read_bytes())
        return Holder(int(said["pid"]), str(said["host"]), str(said["since"]), str(said["command"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def in_use(folder: Path, holder: Holder | None) -> FolderInUseError:
    who = "another command" if holder is None else holder.in_words()
    return FolderInUseError(
        f"{folder} is in use by {who}",
        "wait until it ends, or stop it (Ctrl-C or SIGTERM writes a checkpoint), or name another folder",
    )


def _locked(folder: Path) -> tuple[int, str | None]:
    path = folder / LOCK_NAME
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        warning = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise in_use(folder, holder_of(folder)) from error
        except OSError as error:
            if error.errno not in HAS_NO_LOCKS:
                os.close(fd)
                raise
            warning = (
                f"the file system of {folder} has no locks ({error.strerror}): "
                "nothing keeps a second command out of this folder"
            )
        if warning is None and not _is_named(fd, path):
            os.close(fd)  # the last holder removed it between our open and our lock
            continue
        with suppress(OSError):  # a full disk: the lock holds, it only does not say by whom
            os.ftruncate(fd, 0)
            os.pwrite(fd, _name_of_holder(), 0)
        return fd, warning


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _name_of_holder() -> bytes:
    # The subcommand alone: an argument may be a secret.
    words = [word for word in sys.argv[1:2] if word.isalpha()]
    said = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": " ".join(["paceline", *words]),
    }
    return (json.dumps(said) + "\n").encode()
