"""Summary of a run's history: rows in, the numbers of result.json out. Pure."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.events.read import History, PlainEvent
from paceline.events.schema import PHASES, ServerRow, StepRow

LAST_LOSSES = 20  # steps per worker over which the final training loss is averaged
_TAIL_KEPT = (
    1024  # gradients that a tail keeps at least: batches of several workers arrive one after the other
)


class Tail:
    """Mean of a value over the last LAST_LOSSES steps per worker of a session.

    A gradient's position is its place in the run's work, so the last ones are those with the
    largest positions, whichever worker computed them: a worker that left early is not averaged in.
    """

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._largest: list[tuple[int, float]] = []  # heap of (position, value)

    def take(self, rank: int, position: int, value: float) -> None:
        self._ranks.add(rank)
        heapq.heappush(self._largest, (position, value))
        if len(self._largest) > max(_TAIL_KEPT, LAST_LOSSES * len(self._ranks)):
            heapq.heappop(self._largest)

    def mean(self) -> float | None:
        """None: no step was made."""
        if not self._largest:
            return None
        last = heapq.nlargest(LAST_LOSSES * len(self._ranks), self._largest)
        return math.fsum(value for _, value in last) / len(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Of applied gradients: versions between reading and applying, and steps ahead of the slowest."""

    mean: float
    max: int
    histogram: dict[str, int]
    max_gap: int
    mean_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Steps that the others did not wait for; their samples were handed out again."""

    steps: int
    lost_s: float  # between reading the parameters and being told to stop, summed over workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptations:
    """How often mode adaptive changed something, and what it ended with."""

    count: int
    way: str
    shares: str  # by worker, with commas between


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What saving cost: summed over participants and over all sessions of the run."""

    written: int  # snapshots, one for each participant of a checkpoint
    failed: int
    skipped: int
    bytes: int
    pause_s: float  # that steps waited for copies
    longest_pause_s: float
    write_s: float  # hashing and writing, beside the training


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    steps: int  # per worker, on average
    gradients: int
    samples: int
    loss: float | None
    # From the first step's start to the last one's end; evaluations, and pauses before a resume, left out.
    training_s: float
    samples_per_s: float
    phases_s: dict[str, float]  # summed over workers
    bytes_out: int
    bytes_in: int
    bytes_saved: int  # that would have been sent in addition without compression
    grad_norm: float | None  # of the last steps, before clipping; None: nobody clips, or a server does
    first_step_s: float | None  # from the launcher's start to the end of the first step
    staleness: Staleness | None
    discarded: int  # gradients that were too stale to be applied
    abandoned: Abandoned | None  # None: no step was
    adapted: Adaptations | None  # None: nothing changed
    checkpoints: Checkpoints | None  # None: nothing was to be saved


def summarise(history: History) -> Summary:
    made = [row for mine in history.steps.values() for row in mine]
    thrown_away = {(r.rank, r.step) for r in history.server if r.op == "discard"}
    # A gradient that was discarded is none of the run's work, but it took time and travelled.
    rows = [r for rank, mine in history.steps.items() for r in mine if (rank, r.step) not in thrown_away]
    if history.has_elastic_servers:  # what a lost worker made counts only if it was applied
        counted = {(r.rank, r.position, r.read_version) for r in history.server if r.op == "apply"}
        rows = [r for k, mine in history.steps.items() for r in mine if (k, r.position, r.version) in counted]
    given_up = [row for mine in history.abandoned.values() for row in mine]
    first = min((end_ns(r) for r in rows), default=None)
    training_s = sum(_span_s(session) - evaluating_s(session, history) for session in _sessions(history))
    samples = sum(r.samples for r in rows)
    losses, norms = Tail(), Tail()
    for rank, row in _last_session(history):
        losses.take(rank, row.position, row.loss)
        if row.grad_norm is not None:
            norms.take(rank, row.position, row.grad_norm)
    return Summary(
        steps=len(rows) // max(1, len(history.steps.keys() | history.abandoned.keys())),
        gradients=len(rows),
        samples=samples,
        loss=losses.mean(),
        training_s=training_s,
        samples_per_s=samples / training_s if training_s > 0 else 0.0,
        bytes_saved=sum(r.bytes_saved for r in rows),
        phases_s={p: sum(getattr(r, f"{p}_ns") for r in made) / 1e9 for p in PHASES},
        bytes_out=sum(r.bytes_out for r in made),
        bytes_in=sum(r.bytes_in for r in made) + sum(r.bytes_in for r in given_up),
        grad_norm=norms.mean(),
        first_step_s=None if first is None else (first - history.t0_ns) / 1e9,
        staleness=staleness(history.server),
        discarded=len(thrown_away),
        abandoned=abandoned(history.server),
        adapted=adaptations(history.plain),
        checkpoints=checkpoints(history.plain),
    )


def checkpoints(events: Sequence[PlainEvent]) -> Checkpoints | None:
    kinds = Counter(event.kind for event in events)
    written = [event.fields for event in events if event.kind == "checkpoint"]
    if not written and not kinds["checkpoint_failed"] and not kinds["checkpoint_skipped"]:
        return None
    # Logs of older versions do not say what a checkpoint cost.
    pauses_s = [float(str(fields.get("snapshot_ns", 0))) / 1e9 for fields in written]
    return Checkpoints(
        written=len(written),
        failed=kinds["checkpoint_failed"],
        skipped=kinds["checkpoint_skipped"],
        bytes=sum(int(str(fields.get("bytes", 0))) for fields in written),
        pause_s=sum(pauses_s),
        longest_pause_s=max(pauses_s, default=0.0),
        write_s=sum(float(str(fields.get("write_s", 0.0))) for fields in written),
    )


def adaptations(events: Sequence[PlainEvent]) -> Adaptations | None:
    adapted = [event.fields for event in events if event.kind == "adapted"]
    if not adapted:
        return None
    return Adaptations(count=len(adapted), way=str(adapted[-1]["to"]), shares=str(adapted[-1]["shares"]))


def _sessions(history: History) -> list[list[StepRow]]:
    """The rows of each stretch between two resumes."""
    return [[row for _, row in session] for session in _ranked_sessions(history)]


def _ranked_sessions(history: History) -> list[list[tuple[int, StepRow]]]:
    ends = [*history.sessions, {rank: len(rows) for rank, rows in history.steps.items()}]
    begins: dict[int, int] = {}
    found = []
    for end in ends:
        found.append(
            [(k, r) for k, rows in history.steps.items() for r in rows[begins.get(k, 0) : end.get(k, 0)]]
        )
        begins = end
    return found


def _last_session(history: History) -> list[tuple[int, StepRow]]:
    """The newest session in which a step was made: earlier workers, and their losses, are not of it."""
    return next((session for session in reversed(_ranked_sessions(history)) if session), [])


def _span_s(rows: Sequence[StepRow]) -> float:
    return (max(map(end_ns, rows)) - min(r.start_ns for r in rows)) / 1e9 if rows else 0.0


def evaluating_s(rows: Sequence[StepRow], history: History) -> float:
    """How long nobody trained between these steps, because the validation data was looked at."""
    if not rows:
        return 0.0
    began, ended = min(r.start_ns for r in rows), max(map(end_ns, rows))
    seen = (e for e in history.plain if e.kind == "evaluated" and began <= e.at_ns <= ended)
    return sum(float(str(event.fields["took_s"])) for event in seen)


def end_ns(row: StepRow) -> int:
    durations: list[int] = [getattr(row, f"{phase}_ns") for phase in PHASES]
    return row.start_ns + sum(durations)


def abandoned(rows: Sequence[ServerRow]) -> Abandoned | None:
    ages_ns = [r.age_ns for r in rows if r.op == "abandon"]
    return Abandoned(steps=len(ages_ns), lost_s=sum(ages_ns) / 1e9) if ages_ns else None


def staleness(rows: Sequence[ServerRow]) -> Staleness | None:
    applied = [r for r in rows if r.op == "apply"]
    if not applied:
        return None
    counts = Counter(r.staleness for r in applied)
    return Staleness(
        mean=sum(r.staleness for r in applied) / len(applied),
        max=max(counts),
        histogram={str(value): counts[value] for value in sorted(counts)},
        max_gap=max(r.gap for r in applied),
        mean_age_s=sum(r.age_ns for r in applied) / len(applied) / 1e9,
    )
