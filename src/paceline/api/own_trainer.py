"""By what does a Python program train, and where does talk about it go?"""

import sys
from pathlib import Path

from paceline.cli.session import Common, Session
from paceline.cli.trainer import AppTrainer
from paceline.launchers.local import LocalLauncher


class OwnTrainer(AppTrainer):
    """The command's own, whose workers can import what this process can."""

    def __init__(self) -> None:
        self.launcher = self._warm = LocalLauncher(import_from=sys.path)


def session_for(progress: bool, config: str | Path | None) -> Session:
    """Without variables of the environment: a call means the same everywhere."""
    file = None if config is None else Path(config)
    return Session(common=Common(quiet=not progress, config=file), folder=Path())
