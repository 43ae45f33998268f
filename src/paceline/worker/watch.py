"""Is the step that we are in still wanted? The loop asks between its phases, and while it sleeps.

Only the server can make a step obsolete, and only under a strategy that is Interruptible; under all others
a look does nothing, and sleeping is sleeping.
"""

from paceline.clock import Clock
from paceline.strategies.port import Interruptible, Strategy


class StepAbandonedError(Exception):
    """Ends a step in the middle: the others have gone on without it."""


class Watch:
    def __init__(self, strategy: Strategy, clock: Clock) -> None:
        self._strategy = strategy if isinstance(strategy, Interruptible) else None
        self._clock = clock

    def look(self) -> None:
        if self._strategy is not None and self._strategy.is_obsolete():
            raise StepAbandonedError

    def sleep(self, duration_s: float) -> None:
        if self._strategy is None:
            self._clock.sleep(duration_s)
        elif self._strategy.wait_unless_obsolete(duration_s):
            raise StepAbandonedError

    def abandon_step(self) -> None:
        assert self._strategy is not None, "only an interruptible strategy has obsolete steps"
        self._strategy.abandon_step()
