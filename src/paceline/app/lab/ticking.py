"""How does an experiment say what holds while it still goes on? Each promise has a tick that changes.

`open` until it is measured, or as long as what was measured so far does not hold yet; `so_far`
when all that was measured until now holds; in the end `held` or `broken`, as the experiment judges
itself. A tick says nothing new: the judgement is that of the expectations.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from paceline.app.lab.expect import Expectation
from paceline.plan.codec import Json


class State(StrEnum):
    OPEN = "open"
    SO_FAR = "so_far"
    HELD = "held"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Tick:
    what: str
    limit: str
    measured: str
    state: State

    def json(self) -> dict[str, Json]:
        return dict(asdict(self))


def silent(_: object) -> None:
    """For who does not listen."""


class Telling:
    """What an experiment has to say: lines in words, and ticks. Called with a line it says it."""

    def __init__(self, say: Callable[[str], None] = silent, on_tick: Callable[[Tick], None] = silent) -> None:
        self._say, self._on_tick = say, on_tick
        self._told: dict[str, Tick] = {}

    def __call__(self, line: str) -> None:
        self._say(line)

    def so_far(self, found: Iterable[Expectation]) -> None:
        """What would be judged now. What does not hold yet may still: the run's log is a moment behind."""
        for one in found:
            self._tick(one, State.SO_FAR if one.ok else State.OPEN)

    def settled(self, found: Sequence[Expectation]) -> list[Expectation]:
        """What was judged in the end; handed on."""
        for one in found:
            self._tick(one, State.HELD if one.ok else State.BROKEN)
        return list(found)

    def _tick(self, one: Expectation, state: State) -> None:
        tick = Tick(one.what, one.limit, one.measured, state)
        if self._told.get(one.what) != tick:
            self._told[one.what] = tick
            self._on_tick(tick)


def merged(promises: Sequence[str], ticks: Iterable[Tick]) -> list[Tick]:
    """One for each promise, in their order, then what nobody had promised; the newest word counts."""
    found = {what: Tick(what, "", "", State.OPEN) for what in promises}
    for tick in ticks:
        # Some are said more precisely once they are measured.
        name = next((what for what in found if tick.what.startswith(what)), tick.what)
        found[name] = tick
    return list(found.values())
