"""Summary of a run: rows in, the numbers of result.json out. Pure.

`Totals` takes rows as columns, in any number of pieces, and keeps sums: its memory grows with workers,
resumes and evaluations, not with steps. It is given only rows that count; events/log_summary.py finds
them in a log without holding it, and a `History` holds nothing else.

Where servers are elastic, a step counts if a server applied it. Its two rows come from two processes, so
the first one waits for the other. Rows that wait for ever are those that a lost process left behind.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from paceline.events.read import Columns, History, PlainEvent
from paceline.events.schema import PHASES, ServerRow, StepRow

LAST_LOSSES = 20  # steps per worker over which the final training loss is averaged
WARM_STEPS = 5  # first steps of each worker, excluded from the steady speed: they compile and warm up
_TAIL_KEPT = (
    1024  # gradients that a tail keeps at least: batches of several workers arrive one after the other
)


class Tail:
    """Mean of a value over the last LAST_LOSSES steps per worker of a session.

    A gradient's position is its place in the run's work, so the last ones are those with the
    largest positions, whichever worker computed them: a worker that left early is not averaged in.
    """

    def __init__(self, workers: int = 0) -> None:
        """`workers`: how many there will be at most, where that is known before."""
        self._workers = workers
        self._ranks: set[int] = set()
        self._largest: list[tuple[int, float]] = []  # (position, value), the largest and some others

    def take(self, rank: int, position: int, value: float) -> None:
        self.take_all(rank, ((position, value),))

    def take_all(self, rank: int, values: Iterable[tuple[int, float]]) -> None:
        """(position, value) of each step."""
        self._ranks.add(rank)
        self._largest.extend(values)
        kept = max(_TAIL_KEPT, LAST_LOSSES * max(self._workers, len(self._ranks)))
        if len(self._largest) >= 2 * kept:
            self._largest.sort()
            del self._largest[:-kept]

    def mean(self) -> float | None:
        """None: no step was made."""
        if not self._largest:
            return None
        last = heapq.nlargest(LAST_LOSSES * len(self._ranks), self._largest)
        return math.fsum(value for _, value in last) / len(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Staleness of applied gradients: versions between read and apply, and steps ahead of the slowest."""

    mean: float
    max: int
    histogram: dict[str, int]
    max_gap: int
    mean_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Steps that the others did not wait for; their samples were assigned again."""

    steps: int
    lost_s: float  # between reading the parameters and being cancelled, summed over workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptations:
    """The number of changes by mode adaptive, and the final setting."""

    count: int
    way: str
    shares: str  # by worker, with commas between


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The cost of checkpoints, summed over participants and over all sessions of the run."""

    written: int  # snapshots, one for each participant of a checkpoint
    failed: int
    skipped: int
    bytes: int
    pause_s: float  # that steps waited for copies
    longest_pause_s: float
    write_s: float  # hashing and writing, concurrent with training


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    steps: int  # per worker, on average
    gradients: int
    samples: int
    loss: float | None
    # From the first step's start to the last one's end; without evaluations and pauses before a resume.
    training_s: float
    samples_per_s: float
    phases_s: dict[str, float]  # summed over workers
    bytes_out: int
    bytes_in: int
    bytes_saved: int  # that would have been sent in addition without compression
    grad_norm: float | None  # of the last steps, before clipping; None: no clipping, or by a server
    first_step_s: float | None  # from the launcher's start to the end of the first step
    staleness: Staleness | None
    discarded: int  # gradients that were too stale to be applied
    abandoned: Abandoned | None  # None: no step was
    adapted: Adaptations | None  # None: nothing changed
    checkpoints: Checkpoints | None  # None: nothing was to be saved


class StepSet:
    """A set of (rank, step), a bit for each step."""

    _BITS = 1024

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._blocks: dict[tuple[int, int], int] = {}
        for rank, step in pairs:
            self.add(rank, step)

    def add(self, rank: int, step: int) -> None:
        block = (rank, step // self._BITS)
        self._blocks[block] = self._blocks.get(block, 0) | 1 << step % self._BITS

    def has(self, rank: int, step: int) -> bool:
        return bool(self._blocks.get((rank, step // self._BITS), 0) >> step % self._BITS & 1)

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._blocks.values())


class _Gradient(NamedTuple):
    """The contribution of one step to the run's work."""

    samples: int
    bytes_saved: int
    end_ns: int


@dataclass(slots=True)
class _Span:
    """From the first start to the last end of some steps, and their samples."""

    began_ns: int | None = None
    ended_ns: int = 0
    samples: int = 0

    def take(self, starts_ns: Sequence[int], ends_ns: Sequence[int], samples: Sequence[int]) -> None:
        if not starts_ns:
            return
        began_ns = min(starts_ns)
        ended_ns = max(ends_ns)
        if self.began_ns is None:
            self.began_ns = began_ns
            self.ended_ns = ended_ns
        self.began_ns = min(self.began_ns, began_ns)
        self.ended_ns = max(self.ended_ns, ended_ns)
        self.samples += sum(samples)

    def training_s(self, evaluations: Sequence[tuple[int, float]]) -> float:
        """Training time without the evaluations (when, how long): no worker trains meanwhile."""
        if self.began_ns is None:
            return 0.0
        paused_s = sum(took_s for at_ns, took_s in evaluations if self.began_ns <= at_ns <= self.ended_ns)
        return (self.ended_ns - self.began_ns) / 1e9 - paused_s


@dataclass(slots=True)
class _Acts:
    """Sums over the rows of a parameter server."""

    staleness: Counter[int] = field(default_factory=Counter)
    max_gap: int = 0
    age_ns: int = 0
    abandoned: int = 0
    abandoned_ns: int = 0

    def take(self, rows: Columns) -> None:
        ops = rows["op"]
        is_applied = [op == "apply" for op in ops]
        self.staleness.update(compress(rows["staleness"], is_applied))
        self.max_gap = max(self.max_gap, max(compress(rows["gap"], is_applied), default=0))
        self.age_ns += sum(compress(rows["age_ns"], is_applied))
        given_up = [age for op, age in zip(ops, rows["age_ns"], strict=True) if op == "abandon"]
        self.abandoned += len(given_up)
        self.abandoned_ns += sum(given_up)

    def to_staleness(self) -> Staleness | None:
        counts = self.staleness
        applied = counts.total()
        if not applied:
            return None
        return Staleness(
            mean=sum(value * times for value, times in counts.items()) / applied,
            max=max(counts),
            histogram={str(value): counts[value] for value in sorted(counts)},
            max_gap=self.max_gap,
            mean_age_s=self.age_ns / applied / 1e9,
        )

    def to_abandoned(self) -> Abandoned | None:
        if not self.abandoned:
            return None
        return Abandoned(steps=self.abandoned, lost_s=self.abandoned_ns / 1e9)


@dataclass(slots=True)
class _Saves:
    """Sums over the events of checkpoints."""

    kinds: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    pause_s: float = 0.0
    longest_pause_s: float = 0.0
    write_s: float = 0.0

    def take(self, event: PlainEvent) -> None:
        self.kinds[event.kind] += 1
        if event.kind == "checkpoint":
            # Logs of older versions do not record the cost of a checkpoint.
            pause_s = float(str(event.fields.get("snapshot_ns", 0))) / 1e9
            self.bytes += int(str(event.fields.get("bytes", 0)))
            self.pause_s += pause_s
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
            self.write_s += float(str(event.fields.get("write_s", 0.0)))

    def to_checkpoints(self) -> Checkpoints | None:
        if not self.kinds:
            return None
        return Checkpoints(
            written=self.kinds["checkpoint"],
            failed=self.kinds["checkpoint_failed"],
            skipped=self.kinds["checkpoint_skipped"],
            bytes=self.bytes,
            pause_s=self.pause_s,
            longest_pause_s=self.longest_pause_s,
            write_s=self.write_s,
        )


class Totals:
    """Sums over the rows and events of a run. Each row is given once, in the order of sessions."""

    def __init__(self, *, t0_ns: int, workers: int, has_elastic_servers: bool, discarded: StepSet) -> None:
        """`workers`: maximum number of ranks with steps. `discarded`: by a server, as too stale."""
        self._t0_ns = t0_ns
        self._workers = workers
        self._discarded = discarded
        self._ranks: set[int] = set()
        self._abandoning: set[int] = set()  # ranks
        self._phases_ns = [0] * len(PHASES)
        self._bytes_out = 0
        self._bytes_in = 0
        self._gradients = 0
        self._samples = 0
        self._bytes_saved = 0
        self._first_ns: int | None = None
        self._is_joined = has_elastic_servers
        # (rank, position, version) without a step yet.
        self._applied: Counter[tuple[int, int, int]] = Counter()
        self._refused: Counter[tuple[int, int, int]] = Counter()  # discarded, without a step yet
        self._made: dict[tuple[int, int, int], list[_Gradient]] = {}  # not applied yet
        self._sessions: list[_Span] = [_Span()]
        self._counts: Counter[int] = Counter()  # steps of this session, by rank
        self._steady = _Span()
        self._is_new_session = True
        self._losses = Tail(workers)
        self._norms = Tail(workers)
        self._last_loss: dict[int, float] = {}  # by rank
        self._evaluations: dict[int, tuple[int, float]] = {}  # by step: when, how long
        self._server_acts = _Acts()
        self._saves = _Saves()
        self._adapted: Adaptations | None = None

    def add_ranks(self, ranks: Iterable[int]) -> None:
        """Workers of the run, which need not have made a step that counts."""
        self._ranks.update(ranks)

    def begin_session(self) -> None:
        """The run was resumed."""
        self._sessions.append(_Span())
        self._counts.clear()
        self._steady = _Span()
        self._is_new_session = True

    def take_steps(self, rank: int, rows: Columns) -> None:
        """Columns of StepRow."""
        self._ranks.add(rank)
        starts_ns: Sequence[int] = rows["start_ns"]
        if not starts_ns:
            return
        phases = [rows[f"{phase}_ns"] for phase in PHASES]
        ends_ns = list(map(sum, zip(starts_ns, *phases, strict=True)))
        for number, durations_ns in enumerate(phases):
            self._phases_ns[number] += sum(durations_ns)
        self._bytes_out += sum(rows["bytes_out"])
        self._bytes_in += sum(rows["bytes_in"])
        self._last_loss[rank] = rows["loss"][-1]
        self._take_tails(rank, rows)
        samples: Sequence[int] = rows["samples"]
        self._sessions[-1].take(starts_ns, ends_ns, samples)
        warm = max(0, WARM_STEPS - self._counts[rank])
        self._steady.take(starts_ns[warm:], ends_ns[warm:], samples[warm:])
        self._counts[rank] += len(starts_ns)
        self._take_work(rank, rows, ends_ns)

    def take_abandoned(self, rank: int, rows: Columns) -> None:
        """Columns of AbandonedRow."""
        self._abandoning.add(rank)
        self._bytes_in += sum(rows["bytes_in"])

    def take_server(self, rows: Columns) -> None:
        """Columns of ServerRow."""
        self._server_acts.take(rows)
        if self._is_joined:
            keys = zip(rows["rank"], rows["position"], rows["read_version"], strict=True)
            for op, key in zip(rows["op"], keys, strict=True):
                if op in ("apply", "discard"):
                    self._decide(key, counts=op == "apply")

    def take_plain(self, event: PlainEvent) -> None:
        if event.kind == "evaluated":
            took_s = float(str(event.fields["took_s"]))
            self._evaluations[int(str(event.fields["step"]))] = (event.at_ns, took_s)
        elif event.kind in ("checkpoint", "checkpoint_failed", "checkpoint_skipped"):
            self._saves.take(event)
        elif event.kind == "adapted":
            before = 0 if self._adapted is None else self._adapted.count
            to = str(event.fields["to"])
            shares = str(event.fields["shares"])
            self._adapted = Adaptations(count=before + 1, way=to, shares=shares)

    def summary(self) -> Summary:
        evaluations = list(self._evaluations.values())
        training_s = sum(session.training_s(evaluations) for session in self._sessions)
        first_ns = self._first_ns
        return Summary(
            steps=self._gradients // max(1, len(self._ranks | self._abandoning)),
            gradients=self._gradients,
            samples=self._samples,
            loss=self._losses.mean(),
            training_s=training_s,
            samples_per_s=self._samples / training_s if training_s > 0 else 0.0,
            bytes_saved=self._bytes_saved,
            phases_s={phase: ns / 1e9 for phase, ns in zip(PHASES, self._phases_ns, strict=True)},
            bytes_out=self._bytes_out,
            bytes_in=self._bytes_in,
            grad_norm=self._norms.mean(),
            first_step_s=None if first_ns is None else (first_ns - self._t0_ns) / 1e9,
            staleness=self._server_acts.to_staleness(),
            discarded=len(self._discarded),
            abandoned=self._server_acts.to_abandoned(),
            adapted=self._adapted,
            checkpoints=self._saves.to_checkpoints(),
        )

    def steady_samples_per_s(self) -> float:
        """Rate of the last session without the first steps of each worker, unless there are no others."""
        is_steady = all(self._counts[rank] > WARM_STEPS for rank in self._ranks)
        span = self._steady if is_steady else self._sessions[-1]
        lasted_s = span.training_s(list(self._evaluations.values()))
        return span.samples / lasted_s if lasted_s > 0 else 0.0

    def has_diverged(self) -> bool:
        """Whether the last loss of every worker was NaN or infinite; one bad shard alone is not enough."""
        return bool(self._last_loss) and not any(map(math.isfinite, self._last_loss.values()))

    def _take_tails(self, rank: int, rows: Columns) -> None:
        if self._is_new_session:
            # Only the newest session with a step counts.
            self._losses = Tail(self._workers)
            self._norms = Tail(self._workers)
            self._is_new_session = False
        self._losses.take_all(rank, zip(rows["position"], rows["loss"], strict=True))
        norms = zip(rows["position"], rows["grad_norm"], strict=True)
        known = [(position, norm) for position, norm in norms if norm is not None]
        if known:
            self._norms.take_all(rank, known)

    def _take_work(self, rank: int, rows: Columns, ends_ns: Sequence[int]) -> None:
        """A discarded gradient does not count as work, though its time and traffic do."""
        if self._is_joined:
            gradients = map(_Gradient, rows["samples"], rows["bytes_saved"], ends_ns)
            for gradient, position, version in zip(gradients, rows["position"], rows["version"], strict=True):
                key = (rank, position, version)
                if _take_one(self._applied, key):
                    self._count([gradient])
                elif not _take_one(self._refused, key):
                    self._made.setdefault(key, []).append(gradient)
        elif self._discarded:
            steps = zip(rows["step"], rows["samples"], rows["bytes_saved"], ends_ns, strict=True)
            self._count([_Gradient(*work) for step, *work in steps if not self._discarded.has(rank, step)])
        else:
            self._add(len(ends_ns), sum(rows["samples"]), sum(rows["bytes_saved"]), min(ends_ns))

    def _decide(self, key: tuple[int, int, int], *, counts: bool) -> None:
        """A server applied this gradient, or discarded it."""
        waiting = self._made.get(key)
        if waiting is None:
            (self._applied if counts else self._refused)[key] += 1
            return
        gradient = waiting.pop()
        if not waiting:
            del self._made[key]
        if counts:
            self._count([gradient])

    def _count(self, gradients: Sequence[_Gradient]) -> None:
        if gradients:
            samples = sum(gradient.samples for gradient in gradients)
            saved = sum(gradient.bytes_saved for gradient in gradients)
            self._add(len(gradients), samples, saved, min(gradient.end_ns for gradient in gradients))

    def _add(self, gradients: int, samples: int, bytes_saved: int, first_ns: int) -> None:
        self._gradients += gradients
        self._samples += samples
        self._bytes_saved += bytes_saved
        self._first_ns = first_ns if self._first_ns is None else min(self._first_ns, first_ns)


def _take_one(keys: Counter[tuple[int, int, int]], key: tuple[int, int, int]) -> bool:
    """Remove one occurrence; return whether there was one."""
    if key not in keys:
        return False
    keys[key] -= 1
    if not keys[key]:
        del keys[key]
    return True


def totals_of(history: History) -> Totals:
    """The same from rows in memory."""
    totals = Totals(
        t0_ns=history.t0_ns,
        workers=len(history.steps),
        has_elastic_servers=history.has_elastic_servers,
        discarded=StepSet((row.rank, row.step) for row in history.server if row.op == "discard"),
    )
    totals.add_ranks(history.steps)
    totals.take_server(_columns(ServerRow._fields, history.server))
    for number, session in enumerate(_sessions(history)):
        if number:
            totals.begin_session()
        for rank, rows in session.items():
            totals.take_steps(rank, _columns(StepRow._fields, rows))
    for rank, given_up in history.abandoned.items():
        totals.take_abandoned(rank, {"bytes_in": [row.bytes_in for row in given_up]})
    for event in history.plain:
        totals.take_plain(event)
    return totals


def summarise(history: History) -> Summary:
    return totals_of(history).summary()


def _columns(names: Sequence[str], rows: Sequence[StepRow] | Sequence[ServerRow]) -> Columns:
    if not rows:
        return dict.fromkeys(names, ())
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _sessions(history: History) -> Iterator[dict[int, list[StepRow]]]:
    """The rows, by rank, of each stretch between two resumes."""
    begins: dict[int, int] = {}
    for ends in [*history.sessions, {rank: len(rows) for rank, rows in history.steps.items()}]:
        yield {rank: rows[begins.get(rank, 0) : ends.get(rank, 0)] for rank, rows in history.steps.items()}
        begins = ends


def end_ns(row: StepRow) -> int:
    durations: list[int] = [getattr(row, f"{phase}_ns") for phase in PHASES]
    return row.start_ns + sum(durations)


def staleness(rows: Sequence[ServerRow]) -> Staleness | None:
    acts = _Acts()
    acts.take(_columns(ServerRow._fields, rows))
    return acts.to_staleness()
