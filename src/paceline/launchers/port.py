"""What does `app.train` ask of whoever starts workers, or was started with them?"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from paceline.launchers.local import Ended, Message, Supervisor
from paceline.plan.plan import Plan


class RunLauncher(Protocol):
    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> Ended:
        """Follow the plan's participants to their end."""
        ...

    def stop(self) -> None:
        """Ask the run to stop at the next step on which its workers agree."""
        ...

    def kill(self) -> None:
        """End everything now."""
        ...

    def close(self) -> None: ...
