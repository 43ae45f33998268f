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


def at_most(promise: str, measured: float, limit: float, unit: str) -> Expectation:
    return Expectation(promise, f"at most {limit:g} {unit}", f"{measured:.4g} {unit}", measured <= limit)


def at_least(promise: str, measured: float, limit: float, unit: str = "") -> Expectation:
    return Expectation(
        promise, f"at least {limit:g} {unit}".strip(), f"{measured:.4g} {unit}".strip(), measured >= limit
    )


def not_judged(promise: str, measured: str) -> Expectation:
    """A measured value without a limit."""
    return Expectation(promise, "measured, without a limit", measured, ok=True)


def exactly(promise: str, measured: object, limit: object) -> Expectation:
    return Expectation(promise, str(limit), str(measured), measured == limit)


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

    def __init__(
        self, notify: Callable[[str], None] = ignore, on_tick: Callable[[Tick], None] = ignore
    ) -> None:
        self._notify = notify
        self._on_tick = on_tick
        self._ticks: dict[str, Tick] = {}

    def __call__(self, line: str) -> None:
        self._notify(line)

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
    by_name = {promise: Tick(promise, "", "", State.OPEN) for promise in promises}
    for tick in ticks:
        # Some texts get more precise once they are measured.
        name = next((promise for promise in by_name if tick.what.startswith(promise)), tick.what)
        by_name[name] = tick
    return list(by_name.values())


ALWAYS = (
    "no work is lost or done twice",
    "the parameters equal those of an undisturbed run",
    "no process is left behind",
)

_ON_HOSTS = (
    "training steps continue while hosts fail, longest delay",
    "the run stays in one generation",
)

_WITH_WORKERS = (
    "the other hosts commit steps, longest pause",
    "all workers train together again, maximum",
)

PROMISES: dict[str, tuple[str, ...]] = {
    "kill-worker": (
        "survivors commit their next step after a kill, p95",
        "no survivor is restarted",
        "a survivor repeats at most one step after a kill",
        "all workers enter a generation with equal parameters",
    ),
    "kill-two": ("survivors commit their next step after two kills at once, maximum",),
    "freeze-worker": (
        "a frozen worker is excluded, maximum",
        "it is back after it resumes, maximum",
        "it commits no step while excluded",
    ),
    "kill-leader": (
        "training steps continue after the loss of the leader, longest delay",
        "the run stays in one generation",
    ),
    "kill-server": ("updates continue after a kill of the primary, p95", "every kill leads to one promotion"),
    "quorum-lost": (
        "steps are committed without a quorum, longest pause",
        "loss and return of the quorum are reported",
        "the run stays in one generation",
    ),
    "resize": (
        "a change of size (2 → 4 → 3) completes, maximum",
        "no worker is restarted without being lost",
    ),
    "slow-worker": (
        "the slow worker is detected",
        "throughput recovers, share of the throughput before",
        "no other worker is reported as slow",
    ),
    "partition-workers": (
        "an isolated worker is excluded, maximum",
        "it is back after the partition heals, maximum",
        "it commits no step while excluded",
    ),
    "partition-coordinators": (
        "the minority answers no request",
        "the minority commits no entry",
        "the minority's worker is excluded, maximum",
        "all nodes follow one leader in the end",
    ),
    "drop-packets": ("training steps continue over a bad network, longest delay",),
    "delay-packets": ("training steps continue over a bad network, longest delay",),
    "full-disk": ("the node reports the reason", "training steps continue with a full disk, longest delay"),
    "nan-gradient": (
        "with --on-nan stop the error names step and shard",
        "exactly the steps with a NaN are skipped, with their shard",
    ),
    "corrupt-checkpoint": (
        "every resume warns of the damaged checkpoint",
        "the previous checkpoint is used",
        "the run finishes",
    ),
    "lose-node-and-rejoin": (
        "survivors commit their next step after the loss, maximum",
        "all workers train together again, maximum",
        "the node returns from a snapshot",
    ),
    "lose-host": ("another node leads after the fault, maximum", *_ON_HOSTS),
    "cut-host": (
        "another node leads after the fault, maximum",
        "a minority answers no request",
        "a minority commits no entry",
        *_ON_HOSTS,
    ),
    "one-way-cut": ("another node leads after the fault, maximum", *_ON_HOSTS),
    "bad-links": _ON_HOSTS,
    "flapping-link": _ON_HOSTS,
    "lose-worker-host": _WITH_WORKERS,
    "cut-worker-host": _WITH_WORKERS,
}
