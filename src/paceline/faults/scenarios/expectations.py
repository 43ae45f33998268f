"""Expectations of a scenario: a limit, the measured value and the verdict; progress reports."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from paceline.plan.codec import Json


@dataclass(frozen=True, slots=True)
class Expectation:
    what: str
    limit: str
    measured: str
    ok: bool


def at_most(what: str, measured: float, limit: float, unit: str) -> Expectation:
    return Expectation(what, f"at most {limit:g} {unit}", f"{measured:.4g} {unit}", measured <= limit)


def at_least(what: str, measured: float, limit: float, unit: str = "") -> Expectation:
    return Expectation(
        what, f"at least {limit:g} {unit}".strip(), f"{measured:.4g} {unit}".strip(), measured >= limit
    )


def not_judged(what: str, measured: str) -> Expectation:
    """A measured value without a limit."""
    return Expectation(what, "told, not judged", measured, ok=True)


def exactly(what: str, measured: object, limit: object) -> Expectation:
    return Expectation(what, str(limit), str(measured), measured == limit)


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile of the values; infinity without values."""
    if not values:
        return float("inf")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class State(StrEnum):
    """`open` until measured, or while it does not hold yet; `so_far` while it holds; then final."""

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


def ignore(_: object) -> None:
    """A callback that does nothing."""


class ScenarioReporter:
    """Reports of a scenario: lines of text, and the state of its expectations."""

    def __init__(self, say: Callable[[str], None] = ignore, on_tick: Callable[[Tick], None] = ignore) -> None:
        self._say = say
        self._on_tick = on_tick
        self._ticks: dict[str, Tick] = {}

    def __call__(self, line: str) -> None:
        self._say(line)

    def so_far(self, expectations: Iterable[Expectation]) -> None:
        """Intermediate expectations. One that does not hold yet stays open: the run's log lags a little."""
        for expectation in expectations:
            self._tick(expectation, State.SO_FAR if expectation.ok else State.OPEN)

    def settled(self, expectations: Sequence[Expectation]) -> list[Expectation]:
        """Final expectations; returned unchanged."""
        for expectation in expectations:
            self._tick(expectation, State.HELD if expectation.ok else State.BROKEN)
        return list(expectations)

    def _tick(self, expectation: Expectation, state: State) -> None:
        tick = Tick(expectation.what, expectation.limit, expectation.measured, state)
        if self._ticks.get(expectation.what) != tick:
            self._ticks[expectation.what] = tick
            self._on_tick(tick)


def merge_ticks(promises: Sequence[str], ticks: Iterable[Tick]) -> list[Tick]:
    """The newest tick of each promise, in order, then ticks without a promise."""
    by_name = {what: Tick(what, "", "", State.OPEN) for what in promises}
    for tick in ticks:
        # Some texts get more precise once they are measured.
        name = next((what for what in by_name if tick.what.startswith(what)), tick.what)
        by_name[name] = tick
    return list(by_name.values())


ALWAYS = (
    "nothing is lost or done twice",
    "the parameters are those of an undisturbed run",
    "processes left behind",
)

PROMISES: dict[str, tuple[str, ...]] = {
    "kill-worker": (
        "survivors commit their next step after a kill, p95",
        "survivors that were restarted",
        "steps that a survivor computed again after a kill",
        "generations that were entered with different bits",
    ),
    "kill-two": ("survivors commit their next step after two kills at once, at the latest",),
    "freeze-worker": (
        "a frozen worker is left out, at the latest",
        "it is back after it wakes, at the latest",
        "steps that it committed while left out",
    ),
    "kill-leader": ("a training step is delayed by the loss of the leader by, at the latest", "generations"),
    "kill-server": ("the next update after a kill of the primary, p95", "promotions"),
    "quorum-lost": (
        "the longest time without a committed step meanwhile",
        "times that it was said",
        "generations",
    ),
    "resize": (
        "a change of size (2 → 4 → 3), at the latest",
        "workers that were restarted without being lost",
    ),
    "slow-worker": (
        "the slow worker is found after it begins to be slow",
        "throughput afterwards, of what it was in good health",
        "workers that were found slow and are not",
    ),
    "partition-workers": (
        "a worker that is cut off is left out, at the latest",
        "it is back after its line is mended, at the latest",
        "steps that it committed while left out",
    ),
    "partition-coordinators": (
        "requests that the minority answered",
        "entries that the minority committed",
        "the minority's worker is left out, at the latest",
        "leaders that the nodes follow in the end",
    ),
    "drop-packets": ("a training step is delayed in bad weather by, at the latest",),
    "delay-packets": ("a training step is delayed in bad weather by, at the latest",),
    "full-disk": ("times it said why", "a training step is delayed by a full disk by, at the latest"),
    "nan-gradient": (
        "with --on-nan stop the error names step and shard",
        "steps that were left out, and whose shard it was",
    ),
    "corrupt-checkpoint": (
        "resumes that warned of the damaged checkpoint",
        "the one before it was used",
        "the run's outcome",
    ),
    "lose-node-and-rejoin": (
        "survivors commit their next step after the loss, at the latest",
        "all workers train together again, at the latest",
        "times the node came back by a snapshot",
    ),
}
