"""Durable files, whole appends and exclusive folders on a local disk.

A file that is written here is whole or absent, also after a crash: its bytes go into a
draft under a name that no other writer uses, are synced, and the draft is renamed.

In a folder that several processes fill (`write_shared`), a writer holds a lock on its draft. A draft whose
lock is free was left by a writer that ended: only such a draft is removed, independent of clocks.

An append adds a whole record or nothing: a record that a full disk cut
short is taken back, or ended with a newline so that the next record begins a line.

A folder is exclusive while one thread of one process holds its lock. The kernel keeps the
lock (flock on the file `.lock`) and releases it when the process ends, in any way. The
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
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from paceline.core.errors import FolderInUseError, NotReadyError

Bytes = bytes | bytearray | memoryview

LOCK_NAME = ".lock"
_DRAFT = re.compile(r".+\.\d+-[0-9a-f]{8}\.part")
# Errors of a file system without locks: NFS without lockd, some FUSE and 9p mounts.
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
    """Remove drafts of killed writers from a folder that the caller holds exclusively."""
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
    """Create an empty file with a unique name; returns it and its descriptor, which holds the lock."""
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
class LockHolder:
    """The process that holds a folder, as its lock file names it."""

    pid: int
    host: str
    since: str
    command: str

    def describe(self) -> str:
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
            raise folder_in_use_error(folder, holder_of(folder))
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
                # Before the release: an acquirer that locked the removed file detects that it has no name.
                with suppress(OSError):
                    if _is_named(held.fd, folder / LOCK_NAME):
                        (folder / LOCK_NAME).unlink()
                os.close(held.fd)


def holder_of(folder: Path) -> LockHolder | None:
    """Holder of the lock; None if the lock file does not name it."""
    try:
        record = json.loads((folder / LOCK_NAME).read_bytes())
        return LockHolder(
            int(record["pid"]), str(record["host"]), str(record["since"]), str(record["command"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def folder_in_use_error(folder: Path, holder: LockHolder | None) -> FolderInUseError:
    holder_text = "another command" if holder is None else holder.describe()
    return FolderInUseError(
        f"{folder} is in use by {holder_text}",
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
            raise folder_in_use_error(folder, holder_of(folder)) from error
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
        with suppress(OSError):  # on a full disk the lock holds, but does not name its holder
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
    command = [word for word in sys.argv[1:2] if word.isalpha()]
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": " ".join(["paceline", *command]),
    }
    return (json.dumps(record) + "\n").encode()


# The port is small so that a disk that fails at any byte can take its place in the simulation.


class DurableFiles(Protocol):
    """The files of one node. Data passed to a method is on disk when it returns."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def append(self, name: str, data: bytes) -> None:
        """Append; after a crash any prefix of `data` may be in the file."""
        ...

    def write_whole(self, name: str, data: bytes) -> None:
        """Write a file; after a crash it exists complete or not at all."""
        ...

    def remove(self, name: str) -> None: ...

    def close(self) -> None: ...


class DurableFolder:
    """A real folder. The file that was appended to last stays open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._open = ""

    def names(self) -> list[str]:
        return sorted(path.name for path in self._path.iterdir())

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def append(self, name: str, data: bytes) -> None:
        if self._fd is None or self._open != name:
            self.close()
            self._fd = os.open(self._path / name, os.O_WRONLY | os.O_APPEND)
            self._open = name
        try:
            write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            self._forget_cached()
            raise

    def _forget_cached(self) -> None:
        """Drop cached pages: after a failed sync the kernel may mark pages clean that are not on disk."""
        if self._fd is not None:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()

    def write_whole(self, name: str, data: bytes) -> None:
        write_durably(self._path / name, [data], mode=0o600)

    def remove(self, name: str) -> None:
        (self._path / name).unlink()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class SecretError(NotReadyError):
    """A token, a key or a certificate is missing, or cannot be trusted. Never holds the secret itself."""

    code = "E510"


def read_private(path: Path) -> bytes:
    """The content of a file that only this user can read."""
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        raise SecretError(
            f"cannot read {path}: {error.strerror}",
            "give the path of a file that this user may read",
        ) from error


def write_private(path: Path, data: bytes) -> bool:
    """The whole file, for its owner alone; False, and nothing changed, if there is one already."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        try:
            # A link, not a rename: of several processes that start at once, one makes the file.
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
    except OSError as error:
        raise SecretError(
            f"cannot write {path}: {error.strerror}",
            "give a folder that this user may write to, on a disk with space left",
        ) from error
    return True


def _check_private(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    # A file of root's may be shown to us through our group: secrets are mounted so in containers.
    is_mounted = status.st_uid == 0 and os.geteuid() != 0
    if mode & (0o037 if is_mounted else 0o077):
        raise SecretError(
            f"{path} can be read or changed by other users (its mode is {mode:04o})",
            f"run `chmod 600 {path}`; if others may have read it, delete it and make a new one",
        )
