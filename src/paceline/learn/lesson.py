"""Data model of a lesson: facts about runs, predictions, findings and questions. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.comparison.schema import Comparison


class NotSeenError(Exception):
    """Evidence is missing. `hint` is the command to type."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A finished run: facts from its plan, log and result."""

    folder: str
    began_unix_s: float
    mode: str
    workers: int  # processes that it began with
    steps: int  # that were planned for each worker
    pace_s: float
    slow: Mapping[int, float] = field(default_factory=dict)  # by worker: how many times as long
    bound: int | None = None  # of ssp
    is_elastic: bool = False
    outcome: str = "finished"
    # What it adds up to
    samples: int = 0
    samples_per_s: float = 0.0
    updates: int = 0  # how often the parameters changed
    phases_s: Mapping[str, float] = field(default_factory=dict)  # summed over workers
    own_s: Mapping[int, float] = field(default_factory=dict)  # by worker: a gradient takes it so long
    wait_s: Mapping[int, float] = field(default_factory=dict)  # by worker: it waited for others
    speeds: Mapping[int, float] = field(default_factory=dict)  # by worker: as `paceline status` shows it
    stale_mean: float | None = None
    gap_max: int | None = None
    # Of elastic runs
    generations: Mapping[int, float] = field(default_factory=dict)  # by number: when it began
    lost: tuple[str, ...] = ()
    healed_from: tuple[str, ...] = ()  # workers from which later joiners copied their state
    steps_unix_s: tuple[float, ...] = ()  # when each step of each worker ended
    proofs: tuple[tuple[bool, str], ...] = ()  # what `paceline verify` says

    def steps_after(self, at_unix_s: float) -> int:
        """Steps of all workers until the next generation began."""
        later = [began for began in self.generations.values() if began > at_unix_s]
        return sum(at_unix_s < ended <= min(later, default=ended) for ended in self.steps_unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFacts:
    """A node of the coordinator that was killed on purpose."""

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
    fired: Mapping[str, tuple[str, ...]]  # by run: which workers it fired for, once for each time


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFacts:
    comparison: Comparison
    written_unix_s: float
    has_page: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    runs: Mapping[str, RunFacts] = field(default_factory=dict)  # by name, the newest of each that is over
    kills: tuple[KillFacts, ...] = ()
    nodes: int = 0  # of the coordinator
    rules: tuple[RuleFacts, ...] = ()
    rules_problem: str = ""  # why there are none
    compared: ComparedFacts | None = None

    def run(self, name: str) -> RunFacts:
        facts = self.runs.get(name)
        if facts is None:
            raise NotSeenError(
                f"there is no run called {name} that is over",
                f"type the command of the page that ends with --name {name}",
            )
        return facts

    def comparison(self) -> Comparison:
        if self.compared is None:
            raise NotSeenError("there is no comparison yet", "type the `paceline compare` of the page")
        return self.compared.comparison


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must have been done or seen; if not, `hint` says what to do."""

    ok: bool
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberAnswer:
    """The right answer is this number, within `give`, the rounding of what the learner saw."""

    value: float
    give: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    """The right answer is this option."""

    key: str


Answer = NumberAnswer | ChoiceAnswer
Options = tuple[tuple[str, str], ...]  # key, text; none: a number is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Asked before anything is run. It is never wrong, only compared with what was seen."""

    text: str
    seen: Callable[[Facts], str]  # raises NotSeenError
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Asked after; the right answer is read from the learner's own runs."""

    text: str
    right: Callable[[Facts], Answer]  # raises NotSeenError
    hint: str  # where to look, not what is there
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    title: str
    minutes: int
    page: str  # of docs/learn
    see: str  # what there will be to see
    prediction: Prediction
    runs: tuple[str, ...]  # names of the runs that it looks at
    new_runs: tuple[str, ...]  # those that are made here, after the prediction
    check: Callable[[Facts], list[Finding]]  # raises NotSeenError
    questions: tuple[Question, ...]
    moral: str  # one sentence to take home
    has_rules: bool = False  # the learner writes rules here, which are tried on the runs
    is_compared: bool = False  # a comparison is made here, after the prediction


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
        wrong.append(f"its slow workers are {_slow(run.slow)}, not {_slow(slow or {})}")
    if run.is_elastic != is_elastic:
        wrong.append("it is elastic" if run.is_elastic else "it is not elastic")
    if like is not None and run.pace_s != like.pace_s:
        wrong.append(f"its pace is {run.pace_s:g} s, and that of {like.folder} is {like.pace_s:g} s")
    if like is not None and run.samples != like.samples:
        wrong.append(f"it saw {run.samples} samples, and {like.folder} saw {like.samples}")
    if wrong:
        hint = f"type the command with --name {name} as it stands on the page"
        return Finding(False, f"{run.folder} is another run: {'; '.join(wrong)}", hint)
    return Finding(True, f"{run.folder}: {mode}, {run.workers} worker{'s' if run.workers > 1 else ''}")


def is_finished(run: RunFacts) -> Finding:
    if run.outcome == "finished":
        return Finding(True, f"{run.folder} finished its {run.steps} steps")
    return Finding(False, f"{run.folder} was {run.outcome}", "type its command again, and let it end")


def _slow(slow: Mapping[int, float]) -> str:
    return ", ".join(f"worker {worker} by {factor:g}" for worker, factor in slow.items()) or "none"
