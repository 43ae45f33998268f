"""What is an actor of an elastic run told when it begins, and how do all of them read what is asked of them?

By memory of this process that has no name of its own: whoever opens it through /proc is on this machine, and
this user. It is gone with the last who has it open, also after `kill -9`.
"""

import os
import secrets
from pathlib import Path

from paceline import __version__
from paceline.launchers.local import Message
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.worker.control import ControlBlock


class SharedControl:
    def __init__(self, num_workers: int) -> None:
        self._secret = secrets.token_hex(8)
        self._fd = os.memfd_create(f"paceline-{self._secret}")
        self._file = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.block = ControlBlock(num_workers, file=self._file)

    def where(self) -> Message:
        return {"control": self._file, "secret": self._secret}

    def close(self) -> None:
        os.close(self._fd)


def words_of(plan: Plan, run_dir: Path, resume_from: Path | None, coordinator: Message) -> Message:
    return {
        "paceline": __version__,
        "plan": dumps(plan),
        "run_dir": str(run_dir.resolve()),
        "cwd": str(Path.cwd()),
        "token": secrets.token_bytes(32).hex(),
        "resume_from": None if resume_from is None else str(resume_from.resolve()),
        "coordinator": coordinator,
    }
