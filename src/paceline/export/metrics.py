"""Metrics per step of a run, computed from its event log line by line. Pure.

A step of the run is the shares [s·N, (s+1)·N): in synchronous modes exactly what its N workers
computed at their step s. Long runs are exported in stretches of several steps, so that there are
at most POINTS of them. A stretch is exported when all its shares are done, when no remaining
worker can add to it, or when many later ones are complete. All of that depends on the log alone,
never on when it was read, so a followed run gives the same numbers as a finished one.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paceline.events.read import History, PlainEvent
from paceline.events.schema import PHASES, ServerRow, StepRow
from paceline.events.summary import end_ns
from paceline.export.writer import Outcome, Parameter, Point, Rewind
from paceline.plan.codec import Json, plan_hash, to_json
from paceline.plan.plan import Plan

POINTS = 1000
PATIENCE = 50  # complete stretches that may wait for an earlier one, at least
MAX_ROWS = 50_000  # kept after their export
MAX_SLOWDOWN = 8  # a worker may be this many times slower than the others and is still awaited


def steps_per_point(plan: Plan) -> int:
    """Steps that make one point."""
    return max(1, math.ceil(plan.steps / POINTS))


class _DoneShare(NamedTuple):
    """A share of the work that a worker has done."""

    rank: int
    row: StepRow


class Series:
    def __init__(self, plan: Plan, *, every: int | None = None) -> None:
        self.outcome = Outcome.FAILED  # until the log records another outcome
        self._is_done = False
        self._shares = plan.num_workers
        self._every = steps_per_point(plan) if every is None else every
        self._patience = max(PATIENCE, MAX_SLOWDOWN * plan.strategy.sync_every // self._every)
        self._waiting: dict[int, dict[int, _DoneShare]] = {}  # stretch -> position -> share
        self._exported: dict[int, dict[int, _DoneShare]] = {}  # as far back as a resume usually goes
        reach = math.ceil(plan.checkpoint_every / self._every) + 1 if plan.checkpoint_every else 0
        self._max_exported = min(reach, MAX_ROWS // (self._shares * self._every))
        self._next = 0  # the next stretch to export
        self._reached: dict[int, int] = {}  # rank -> its newest step of the run; only live workers
        self._processes = plan.processes
        self._started = set[int]()  # ranks that have started at least once
        self._exported_until_ns: int | None = None
        self._samples = 0  # done since then
        self._bytes_out = self._bytes_in = 0
        self._applied: list[ServerRow] = []
        self._may_repeat = plan.elastic is not None  # servers that take over repeat rows of others
        self._seen = set[ServerRow]()
        self._t0_ns = 0
        self._t0_unix_s = 0.0

    def begin(self, header: History) -> None:
        self._t0_ns = header.t0_ns
        self._t0_unix_s = header.started_unix_s

    def take(self, line: History) -> Iterator[Point | Rewind]:
        """Take one line of the log; yield the points that it completes."""
        for rank, rows in line.steps.items():
            for row in rows:
                self._add(rank, row)
        self._bytes_in += sum(row.bytes_in for rows in line.abandoned.values() for row in rows)
        for event in line.plain:
            yield from self._take_event(event)
        yield from self._due()
        yield from self._staleness(line.server)

    def finish(self) -> Iterator[Point]:
        """The log is over: export the incomplete stretches."""
        for stretch in sorted(self._waiting):
            yield self._export(stretch)
        if self._applied:
            yield self._export_staleness()

    def unix_s(self, at_ns: int) -> float:
        return self._t0_unix_s + (at_ns - self._t0_ns) / 1e9

    def _add(self, rank: int, row: StepRow) -> None:
        self._bytes_out += row.bytes_out
        self._bytes_in += row.bytes_in
        step = row.position // self._shares
        self._reached[rank] = step
        if step // self._every >= self._next:
            # A share that is repeated, because it was abandoned or discarded, counts once.
            self._waiting.setdefault(step // self._every, {})[row.position] = _DoneShare(rank, row)

    def _due(self) -> Iterator[Point]:
        while self._waiting and self._is_due(self._next):
            if self._next in self._waiting:
                yield self._export(self._next)
            else:
                self._next += 1  # no share of it was done

    def _is_due(self, stretch: int) -> bool:
        if self._is_complete(stretch):
            return True
        if len(self._waiting) < self._patience:
            return False
        return sum(map(self._is_complete, self._waiting)) >= self._patience

    def _is_complete(self, stretch: int) -> bool:
        if len(self._waiting.get(stretch, ())) >= self._shares * self._every:
            return True
        if not self._reached or len(self._started) < self._processes:
            return False
        return min(self._reached.values()) >= (stretch + 1) * self._every

    def _export(self, stretch: int) -> Point:
        shares = self._waiting.pop(stretch)
        rows = [done.row for done in shares.values()]
        self._next = stretch + 1
        if self._max_exported:
            self._exported[stretch] = shares
            self._exported.pop(stretch - self._max_exported, None)
        until_ns = max(map(end_ns, rows))
        since_ns = (
            min(r.start_ns for r in rows) if self._exported_until_ns is None else self._exported_until_ns
        )
        values = {
            "train/loss": math.fsum(r.loss for r in rows) / len(rows),
            **_phase_shares(rows),
            "bytes/out": float(self._bytes_out),
            "bytes/in": float(self._bytes_in),
        }
        self._samples += sum(r.samples for r in rows)
        if until_ns > since_ns:  # else finished before the previous stretch: counted with the next
            values["train/samples_per_s"] = self._samples / ((until_ns - since_ns) / 1e9)
            self._exported_until_ns = until_ns
            self._samples = 0
        step = max(r.position for r in rows) // self._shares
        return Point(step, self.unix_s(until_ns), values)

    def _staleness(self, rows: list[ServerRow]) -> Iterator[Point]:
        for row in rows:
            if row.op != "apply" or (self._may_repeat and row in self._seen):
                continue
            if self._may_repeat:
                self._seen.add(row)
            self._applied.append(row)
            if len(self._applied) >= self._shares * self._every:
                yield self._export_staleness()

    def _export_staleness(self) -> Point:
        rows = self._applied
        self._applied = []
        step = max(row.position for row in rows) // self._shares
        stale = [row.staleness for row in rows]
        values = {"staleness/mean": sum(stale) / len(stale), "staleness/max": float(max(stale))}
        return Point(step, self.unix_s(max(row.at_ns for row in rows)), values)

    def _take_event(self, event: PlainEvent) -> Iterator[Point | Rewind]:
        match event.kind:
            case "worker_started" if event.who.startswith("worker-"):
                self._started.add(_rank(event.who))
                self._reached[_rank(event.who)] = -1
            case "worker_finished" if event.who.startswith("worker-"):
                self._reached.pop(_rank(event.who), None)
            case "generation_entered":
                members = {_rank(worker) for worker in str(event.fields["workers"]).split(",")}
                self._reached = {rank: self._reached.get(rank, -1) for rank in members}
            case "run_started":
                self._reached = {}
                self._started = set()
                self._exported_until_ns = None
                self._samples = 0
            case "run_resumed":
                yield self._rewind(event)
            case "evaluated":
                yield self._evaluated(event)
            case "early_stop":
                self._is_done = True
            case "run_finished":
                outcome = Outcome(str(event.fields["outcome"]))
                # An early stop counts as finished.
                self.outcome = Outcome.FINISHED if self._is_done and outcome is Outcome.STOPPED else outcome

    def _rewind(self, event: PlainEvent) -> Rewind:
        """Like History.resume: keep what the checkpoint holds, drop the rest."""
        clocks = [int(clock) for clock in str(event.fields["clocks"]).split(",") if clock]
        version = int(str(event.fields["version"]))
        step = (sum(clocks) if clocks else version) // self._shares

        def is_kept(done: _DoneShare) -> bool:
            return done.row.step < clocks[done.rank] if clocks else done.row.version < version

        first = step // self._every
        candidates = {s: shares for s, shares in (self._exported | self._waiting).items() if s >= first}
        kept = {
            s: {p: done for p, done in shares.items() if is_kept(done)} for s, shares in candidates.items()
        }
        self._waiting = {s: shares for s, shares in kept.items() if shares}
        self._exported = {s: shares for s, shares in self._exported.items() if s < first}
        self._next = min(self._next, first)
        self._applied = []
        return Rewind(step)

    def _evaluated(self, event: PlainEvent) -> Point:
        metrics = json.loads(str(event.fields["metrics"]))
        values = {
            f"eval/{name}": float(v) for name, v in metrics.items() if v is not None
        }  # null: not finite
        return Point(int(str(event.fields["step"])), self.unix_s(event.at_ns), values)


def _rank(worker: str) -> int:
    return int(worker.rpartition("-")[2])


def _phase_shares(rows: list[StepRow]) -> dict[str, float]:
    """The share of each phase in the workers' time."""
    spent = {phase: sum(getattr(row, f"{phase}_ns") for row in rows) for phase in PHASES}
    total = sum(spent.values())
    return {f"phases/{phase}": ns / total for phase, ns in spent.items()} if total else {}


def parameters_of(plan: Plan) -> dict[str, Parameter]:
    """The plan by dotted names, without what is not set: `strategy.sync_every`, `task_options.hidden`."""
    return {**dict(_flatten("", to_json(plan), skip=("exports",))), "plan_hash": plan_hash(plan)}


_FINAL = (
    "metrics",
    "loss",
    "steps",
    "gradients",
    "samples",
    "samples_per_s",
    "wall_s",
    "steps_s",
    "training_s",
    "phases_s",
    "bytes",
)


def final_values(result: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of result.json, under the names that they have there."""
    kept = {name: result[name] for name in _FINAL if name in result}
    staleness = result.get("staleness")
    if isinstance(staleness, dict):
        kept["staleness"] = {name: staleness[name] for name in ("mean", "max", "max_gap")}
    return {
        f"final/{name.removeprefix('metrics.')}": float(value)
        for name, value in _flatten("", kept)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _flatten(prefix: str, value: Json, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Parameter]]:
    match value:
        case None:
            return
        case dict():
            for name, inner in value.items():
                if name not in skip:
                    yield from _flatten(f"{prefix}.{name}" if prefix else name, inner)
        case list():
            if value:
                yield prefix, json.dumps(value)
        case _:
            yield prefix, value
