"""What does a check know? What the learner's own folders say; read by app/learn/look.py, judged here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.report.comparison import Comparison


class NotSeenError(Exception):
    """Something was not done yet, so nothing can be said about it. `hint` is what to type."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run that is over, by its plan, its log and its result."""

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
    healed_from: tuple[str, ...] = ()  # whose memory those took their state from who came later
    steps_unix_s: tuple[float, ...] = ()  # when each step of each worker ended
    proofs: tuple[tuple[bool, str], ...] = ()  # what `paceline verify` says

    def steps_after(self, at_unix_s: float) -> int:
        """Of all workers, until the next generation began."""
        later = [began for began in self.generations.values() if began > at_unix_s]
        return sum(at_unix_s < ended <= min(later, default=ended) for ended in self.steps_unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFacts:
    """A node of the coordinator that was killed on purpose."""

    node: int
    was_leader: bool
    term: int
    at_unix_s: float
    leader: int | None  # that took over; None: nobody could
    new_term: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule of the learner's own, tried on recorded runs."""

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
        found = self.runs.get(name)
        if found is None:
            raise NotSeenError(
                f"there is no run called {name} that is over",
                f"type the command of the page that ends with --name {name}",
            )
        return found

    def comparison(self) -> Comparison:
        if self.compared is None:
            raise NotSeenError("there is no comparison yet", "type the `paceline compare` of the page")
        return self.compared.comparison
