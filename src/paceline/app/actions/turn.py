"""How do several who want the same do it one after another? By a lock that the kernel keeps while they live.

Whether a cut may be made is seen on the nodes, and then it is made: two who looked at the same instant
would both see that nobody is cut off. Of two who hold one worker, one would never be found again. All are
processes or threads of this machine, so they find the same file, by the name of what they want: a cluster,
or a worker of a run.
"""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from paceline.clock import SystemClock, monotonic_s

WITHIN_S = 20.0  # somebody else asks nodes, one after another, or waits for a process to begin
LOOK_S = 0.02


class Turn:
    def __init__(self, what: str) -> None:
        name = hashlib.sha256(what.encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{name}.turn"
        self._fd: int | None = None

    def take(self, within_s: float = WITHIN_S) -> bool:
        """False: somebody else has it."""
        assert self._fd is None, "it is taken once"
        fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        until_s = monotonic_s() + within_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic_s() >= until_s:
                    os.close(fd)
                    return False
                SystemClock().sleep(LOOK_S)
            else:
                self._fd = fd
                return True

    def end(self) -> None:
        """Also one that nobody has."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
