"""Can anybody else read this secret? A file with a secret is made for its owner alone, or refused."""

import os
import secrets
import stat
from pathlib import Path

from paceline.errors import NotReadyError


class SecretError(NotReadyError):
    """A token, a key or a certificate is missing, or cannot be trusted. Never holds the secret itself."""

    code = "E510"


def read_private(path: Path) -> bytes:
    """The content of a file that nobody else can read."""
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
