"""Data model of a lesson: facts about runs, predictions, findings and questions. Pure.

Facts come from the event logs of the learner's runs, not from what the learner wrote. `Trace`
identifies a recorded run by its measurements, so that a copied or renamed run, or one with another
start time in its header, is still the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.comparison.benchmark.schema import Benchmark
from paceline.comparison.schema import Comparison


class NotSeenError(Exception):
    """Evidence is missing. `hint` is the command to run."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Identity and time of a recorded run, from its event log."""

    folder: str
    began_unix_s: float  # wall clock, from the header
    first_step_ns: int | None = None  # monotonic clock of the host; None: no step was recorded
    fingerprint: str = ""  # SHA-256 of the measured durations of all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSample:
    """Reports of the coordinator's nodes to a run at one moment."""

    leader: int | None  # None: no node reported a leader
    term: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A finished run: facts from its plan, log and result."""

    folder: str
    began_unix_s: float
    mode: str
    workers: int  # number of processes at the start
    steps: int  # planned, per worker
    first_step_ns: int | None = None
    fingerprint: str = ""
    is_consistent: bool = True  # result.json has the numbers that follow from the event log
    leaders: tuple[LeaderSample, ...] = ()  # in order of time; elastic runs only
    pace_s: float
    launcher: str = "local"
    slow: Mapping[int, float] = field(default_factory=dict)  # slowdown factor by worker
    bound: int | None = None  # staleness bound of ssp
    is_elastic: bool = False
    outcome: str = "finished"
    # Totals
    samples: int = 0
    samples_per_s: float = 0.0
    updates: int = 0  # updates of the parameters
    phases_s: Mapping[str, float] = field(default_factory=dict)  # summed over workers
    own_s: Mapping[int, float] = field(default_factory=dict)  # by worker: mean time to compute a gradient
    wait_s: Mapping[int, float] = field(default_factory=dict)  # by worker: time spent waiting for others
    speeds: Mapping[int, float] = field(default_factory=dict)  # by worker: as in `paceline status`
    stale_mean: float | None = None
    gap_max: int | None = None
    # Elastic runs only
    generations: Mapping[int, float] = field(default_factory=dict)  # start time by number
    lost: tuple[str, ...] = ()
    healed_from: tuple[str, ...] = ()  # workers from which later joiners copied their state
    steps_unix_s: tuple[float, ...] = ()  # end of each step of each worker
    proofs: tuple[tuple[bool, str], ...] = ()  # findings of `paceline verify`

    @property
    def trace(self) -> Trace:
        return Trace(
            folder=self.folder,
            began_unix_s=self.began_unix_s,
            # A run on Ray may have been made in another machine, and copied: its monotonic clock is another.
            first_step_ns=None if self.launcher == "ray" else self.first_step_ns,
            fingerprint=self.fingerprint,
        )

    def steps_after(self, at_unix_s: float) -> int:
        """Steps of all workers until the next generation began."""
        later = [began for began in self.generations.values() if began > at_unix_s]
        return sum(at_unix_s < ended <= min(later, default=ended) for ended in self.steps_unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFacts:
    """A node of the coordinator that was killed by `paceline coordinator kill`."""

    node: int
    was_leader: bool
    term: int
    at_unix_s: float
    leader: int | None  # the new leader; None: no quorum
    new_term: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule of the learner, evaluated on recorded runs."""

    name: str
    conditions: int
    fired: Mapping[str, tuple[str, ...]]  # by run: the worker of each time it started firing


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFacts:
    comparison: Comparison
    has_page: bool
    traces: tuple[Trace, ...] = ()  # of its runs
    missing: tuple[str, ...] = ()  # run folders that it names and that do not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFacts:
    """A folder of `paceline benchmark keras`."""

    folder: str
    result: Benchmark | None  # None: it failed, or has not ended
    traces: tuple[Trace, ...] = ()  # of the sides that have finished
    dead_worker: str = ""  # the line of a log that reports a dead worker of Ray Train
    is_consistent: bool = True  # comparison.json has the times that were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    runs: Mapping[str, RunFacts] = field(default_factory=dict)  # by name: the newest finished one
    boot_id: str = ""  # of this host now: monotonic clocks of another boot cannot be compared
    kills: tuple[KillFacts, ...] = ()
    nodes: int = 0  # number of coordinator nodes
    rules: tuple[RuleFacts, ...] = ()
    rules_problem: str = ""  # why there are none
    compared: ComparedFacts | None = None
    benchmarks: Mapping[str, BenchmarkFacts] = field(default_factory=dict)  # by the name of their folder

    def benchmark(self, name: str) -> Benchmark:
        facts = self.benchmarks.get(name)
        if facts is None or facts.result is None:
            raise NotSeenError(
                f"there is no finished benchmark in {name}",
                f"run the command of the page that has --out {name}, to its end",
            )
        return facts.result

    def run(self, name: str) -> RunFacts:
        facts = self.runs.get(name)
        if facts is None:
            raise NotSeenError(
                f"no finished run is named {name}",
                f"run the command of the page that has --name {name}",
            )
        return facts

    def comparison(self) -> Comparison:
        if self.compared is None:
            raise NotSeenError("there is no comparison yet", "run `paceline compare` as on the page")
        return self.compared.comparison


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement of a part. `hint` is what to do if it is not met."""

    ok: bool
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberAnswer:
    """The right answer is this number, within the tolerance `give`: the rounding of the displayed value."""

    value: float
    give: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    """The right answer is this option."""

    key: str


Answer = NumberAnswer | ChoiceAnswer
Options = tuple[tuple[str, str], ...]  # key, text; empty: the answer is a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Requested before the run. It is not graded, only compared with the result."""

    text: str
    seen: Callable[[Facts], str]  # raises NotSeenError
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Asked after the run; the right answer is computed from the learner's own runs."""

    text: str
    right: Callable[[Facts], Answer]  # raises NotSeenError
    hint: str  # where the answer is shown, not the answer
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    title: str
    minutes: int
    page: str  # of docs/learn
    see: str  # subject of the part; must not give the prediction away
    prediction: Prediction
    runs: tuple[str, ...]  # names of the runs that its checks read
    new_runs: tuple[str, ...]  # those that must be started after the prediction
    check: Callable[[Facts], list[Finding]]  # raises NotSeenError
    questions: tuple[Question, ...]
    moral: str  # the conclusion, in one sentence
    has_rules: bool = False  # the learner writes alerting rules, which are evaluated on the runs
    is_compared: bool = False  # a comparison must be made after the prediction
    benchmarks: tuple[str, ...] = ()  # folders of the benchmarks that its checks read
    new_benchmarks: tuple[str, ...] = ()  # those that must be started after the prediction


# A number copied from the screen is rounded as displayed; a quotient of two such numbers is off by both
# roundings and by that of the answer itself. This is the whole tolerance.

DIGITS = 3  # significant digits of a displayed number (core/humanize.py)


def half_shown(value: float) -> float:
    """Largest rounding error of a displayed value."""
    size = abs(value)
    unit = 1.0
    if size == 0:
        return 0.0
    while size >= 10:
        size = size / 10
        unit = unit * 10
    while size < 1:
        size = size * 10
        unit = unit / 10
    return unit * 10.0 ** (1 - DIGITS) / 2


def quotient(upper: float, lower: float, *, asked: float) -> NumberAnswer:
    """Quotient of two displayed numbers; `asked` is the last digit that the question asks for."""
    value = upper / lower
    shown = half_shown(upper) / upper + half_shown(lower) / lower if upper else 0.0
    return NumberAnswer(value=value, give=value * shown + asked / 2)


def exactly(value: float) -> NumberAnswer:
    return NumberAnswer(value=value, give=0.0)


def rounded(value: float, unit: float) -> NumberAnswer:
    """A value displayed in whole multiples of `unit`."""
    return NumberAnswer(value=value, give=unit / 2)


def number(text: str) -> float | None:
    """3.5, 3,5, 51 %, 1.22k; None: not a number."""
    plain = text.strip().lower().removesuffix("x").removesuffix("%").strip()
    scale = {"k": 1e3, "m": 1e6}.get(plain[-1:], 1.0)
    try:
        value = float((plain if scale == 1.0 else plain[:-1]).replace(",", ".")) * scale
    except ValueError:
        return None
    return value if value - value == 0 else None  # neither infinite nor NaN


def readable(text: str, options: Options) -> bool:
    """Whether the text can be an answer."""
    return option(text, options) is not None if options else number(text) is not None


def option(text: str, options: Options) -> str | None:
    plain = text.strip().lower()
    return next((key for key, _ in options if key == plain), None)


def is_right(text: str, answer: Answer, options: Options) -> bool:
    match answer:
        case NumberAnswer(value=value, give=give):
            given = number(text)
            # The last bits of a float are not an error.
            return given is not None and abs(given - value) <= give + 1e-9 * max(1.0, abs(value))
        case ChoiceAnswer(key=key):
            return option(text, options) == key


def is_expected_run(
    name: str,
    run: RunFacts,
    *,
    mode: str,
    workers: int,
    slow: Mapping[int, float] | None = None,
    like: RunFacts | None = None,
    is_elastic: bool = False,
) -> Finding:
    """`like`: a run that must have the same pace and total samples."""
    wrong = []
    if run.mode != mode:
        wrong.append(f"its mode is {run.mode}, not {mode}")
    if run.workers != workers:
        wrong.append(f"it has {run.workers} workers, not {workers}")
    if dict(run.slow) != dict(slow or {}):
        wrong.append(f"its stragglers are {_slow(run.slow)}, not {_slow(slow or {})}")
    if run.is_elastic != is_elastic:
        wrong.append("it is elastic" if run.is_elastic else "it is not elastic")
    if like is not None and run.pace_s != like.pace_s:
        wrong.append(f"its pace is {run.pace_s:g} s, but that of {like.folder} is {like.pace_s:g} s")
    if like is not None and run.samples != like.samples:
        wrong.append(f"it used {run.samples} samples, but {like.folder} used {like.samples}")
    if wrong:
        hint = f"run the command with --name {name} exactly as on the page"
        return Finding(False, f"{run.folder} is a different run: {'; '.join(wrong)}", hint)
    return Finding(True, f"{run.folder}: {mode}, {run.workers} worker{'s' if run.workers > 1 else ''}")


def is_finished(run: RunFacts) -> Finding:
    if run.outcome == "finished":
        return Finding(True, f"{run.folder} finished its {run.steps} steps")
    return Finding(False, f"{run.folder} was {run.outcome}", "run its command again, and let it finish")


def _slow(slow: Mapping[int, float]) -> str:
    return ", ".join(f"worker {worker} by {factor:g}" for worker, factor in slow.items()) or "none"
