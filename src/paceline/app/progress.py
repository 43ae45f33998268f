"""What a long command tells whoever watches it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. `step` is the mean number of steps that its workers have finished."""

    step: int
    total_steps: int
    loss: float | None
    samples_per_s: float
    workers_alive: int
    num_workers: int
    elapsed_s: float
    # Since the workers of this session began: starting them says nothing about what is left.
    fresh_steps: float = 0.0
    fresh_s: float = 0.0


class Watcher(Protocol):
    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None:
        """One line for a person: a change of state."""
        ...


class SilentWatcher:
    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None: ...
