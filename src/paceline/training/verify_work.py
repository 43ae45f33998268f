"""Proof from a run's record that all of its work was done, each share exactly once.

The work of a run is the positions 0 ... T*N-1 (sync/assignment.py), and every row of the log names its
position. So the rows themselves are counted: none may be there twice, none may be missing, and each has
the samples that the plan gives to its position. What a run must have done is known from the plan (a run
that ended by itself did all of it), and the totals in result.json must be what its rows add
up to. Nothing is inferred from the progress that workers report.

One gap is no fault: rows that a worker had not written yet when it was killed. They are at the end of
what it did in a generation, and its peers, which hold the same parameters, have theirs. Pure.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.events.lineage import Stretch, lineage_of
from paceline.events.read import History, PlainEvent
from paceline.events.schema import ServerRow, StepRow
from paceline.events.summary import Summary, summarise
from paceline.plan.catalog import MODES, Channel, is_split
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.plan.schedule import longest_commit


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    seen: str


Result = Mapping[str, Json]
_MAX_LISTED = 3  # positions that a finding lists
_ENDED = ("finished", "stopped", "failed")


def verify_record(planned: str, history: History, result: Result) -> Finding:
    """Plan, log and result belong to each other, and the log reaches the end that the result records.

    `planned` is the hash of the plan file.
    """
    problems = []
    starts = [event for event in history.plain if event.kind == "run_started"]
    if not starts:
        problems.append("the log has no run_started event")
    elif str(starts[-1].fields.get("plan")) != planned:
        problems.append(
            f"the log belongs to plan {starts[-1].fields.get('plan')}, but plan.json is {planned}"
        )
    outcome = outcome_of(history)
    is_resumed = len(starts) > 1
    if result:
        if outcome in _ENDED and result.get("plan") != planned:
            problems.append(f"result.json belongs to plan {result.get('plan')}, but plan.json is {planned}")
        if outcome is None and not is_resumed:
            problems.append(
                "result.json records the end of the run, but the log does not: its end is missing"
            )
        if outcome == "finished" and result.get("stopped_early"):
            problems.append("result.json records that the run was stopped, the log that it finished")
    seen = "the run has not ended: checked up to its newest event"
    if outcome is not None:
        seen = f"{outcome}, in {len(starts)} session{'s' if is_resumed else ''}"
    if problems:
        seen = "; ".join(problems)
    return Finding("plan, log and result match, and the log is complete", not problems, seen)


def verify_shares(plan: Plan, history: History) -> list[Finding]:
    """Each share was done exactly once, with the samples that the plan gives to it."""
    if plan.elastic is not None and _has_whole_batches(plan):
        return [_whole_steps(plan, history)]
    if is_split(plan.mode):  # there the number of workers may change, and with it what a position means
        return []
    if _is_applied_by_server(plan, history):
        applied = [row for row in history.server if row.op == "apply"]
        counts = _count(plan, (row.position for row in applied))
        witnessed = [] if plan.elastic is not None else [_verify_witnessed(history, applied)]
        computed = [(rank, row) for rank, rows in history.steps.items() for row in rows]
        samples = _samples(plan, computed, set())
        return [_exactly_once(plan, history, counts, excused=set()), *witnessed, samples]
    rows = list(_counted(plan, history))
    counts = _count(plan, (row.position for _, row in rows))
    excused = _killed_before_writing(plan, history, counts) if plan.elastic is not None else set()
    return [_exactly_once(plan, history, counts, excused=excused), _samples(plan, rows, excused)]


def _has_whole_batches(plan: Plan) -> bool:
    """Whether a worker computes its shards of a step as one batch, in one row (torch's own modes)."""
    mode = MODES.get(plan.mode)
    return mode is not None and mode.channel is Channel.TORCH


def _whole_steps(plan: Plan, history: History) -> Finding:
    """Each step has all its samples and no more; fewer only if a worker was killed before it wrote."""
    samples: Counter[int] = Counter()
    rows: Counter[tuple[int, int]] = Counter()
    for rank, row in _counted(plan, history):
        step = row.position // plan.num_workers
        samples[step] += row.samples
        rows[rank, step] += 1
    end = plan.steps if outcome_of(history) == "finished" else max(samples, default=-1) + 1
    double = sorted({step for (_, step), times in rows.items() if times > 1})
    over = [step for step in range(end) if samples[step] > plan.global_batch]
    short = [step for step in range(end) if samples[step] < plan.global_batch]
    unwritten = [steps for steps, _ in _unwritten(plan, history)]
    lacking = [step for step in short if not any(step in steps for steps in unwritten)]
    seen = f"{end} steps of {plan.global_batch} samples, {len(double) + len(over)} with duplicate samples"
    seen += f", {len(lacking)} incomplete{_listed('steps', [*double, *over, *lacking])}"
    if len(short) > len(lacking):
        seen += f"; {len(short) - len(lacking)} not completely recorded by workers that were killed"
        seen += " or lost their generation"
    ok = not double and not over and not lacking
    return Finding("each sample of each step was used exactly once", ok, seen)


def _is_applied_by_server(plan: Plan, history: History) -> bool:
    """Whether gradients are applied by a server, whose rows then count; easgd's handles exchanges only."""
    if plan.mode == "easgd":
        return False
    mode = MODES.get(plan.mode)
    return bool(history.server) if mode is None else mode.channel is Channel.STORE


def _verify_witnessed(history: History, applied: Sequence[ServerRow]) -> Finding:
    """The workers' own rows contain each gradient that the server recorded as applied."""
    computed = {(rank, row.position, row.version) for rank, rows in history.steps.items() for row in rows}
    unknown = [row.position for row in applied if (row.rank, row.position, row.read_version) not in computed]
    seen = f"{len(applied)} gradients applied, {len(unknown)} of them missing in the workers' logs"
    claim = "each applied gradient was computed by the worker that sent it"
    return Finding(claim, not unknown, seen + _listed("unknown", unknown))


def verify_result(plan: Plan, history: History, result: Result) -> list[Finding]:
    """The numbers of result.json are those that the rows add up to."""
    if not result or "gradients" not in result or outcome_of(history) not in _ENDED:
        return []
    summary = summarise(history)
    differing = [
        f"{name} is {result.get(name)} in result.json and {value} in the log"
        for name, value in _numbers(summary).items()
        if not _is_same(result.get(name), value)
    ]
    expected = plan.total_samples if outcome_of(history) == "finished" else None
    if expected is not None and summary.samples != expected and plan.elastic is None:
        differing.append(f"the plan has {expected} samples, the log {summary.samples}")
    seen = f"{summary.gradients} gradients, {summary.samples} samples"
    return [Finding("result.json matches the totals of the log", not differing, "; ".join(differing) or seen)]


def outcome_of(history: History) -> str | None:
    """How the newest session ended; None: it has not, or its end is not recorded."""
    ends = [event for event in history.plain if event.kind in ("run_started", "run_finished")]
    if not ends or ends[-1].kind != "run_finished":
        return None
    return str(ends[-1].fields["outcome"])


@dataclass(slots=True)
class _Counts:
    """How often each position was done."""

    times: Counter[int] = field(default_factory=Counter)
    outside: list[int] = field(default_factory=list)  # positions that the plan does not have

    @property
    def whole(self) -> int:
        return max(self.times, default=-1) + 1


def _count(plan: Plan, positions: Iterable[int]) -> _Counts:
    counts = _Counts()
    for position in positions:
        if 0 <= position < plan.total_gradients:
            counts.times[position] += 1
        else:
            counts.outside.append(position)
    return counts


def _exactly_once(plan: Plan, history: History, counts: _Counts, *, excused: set[int]) -> Finding:
    is_done = outcome_of(history) == "finished"
    expected = plan.total_gradients if is_done else counts.whole
    double = sorted(position for position, times in counts.times.items() if times > 1)
    missing = [p for p in range(expected) if p not in counts.times and p not in excused]
    seen = f"{counts.times.total()} of {expected} gradients, {len(double)} duplicated, {len(missing)} missing"
    seen += _listed("duplicated", double) + _listed("missing", missing)
    if counts.outside:
        seen += f", {len(counts.outside)} outside of the plan{_listed('unknown', counts.outside)}"
    if excused:
        seen += f"; {len(excused)} not recorded by workers that were killed or lost their generation"
    ok = not double and not missing and not counts.outside
    return Finding("each work unit was done exactly once", ok, seen)


def _listed(name: str, positions: Sequence[int]) -> str:
    if not positions:
        return ""
    more = ", ..." if len(positions) > _MAX_LISTED else ""
    return f" ({name}: {', '.join(map(str, positions[:_MAX_LISTED]))}{more})"


def _samples(plan: Plan, rows: Sequence[tuple[int, StepRow]], excused: set[int]) -> Finding:
    """Each position has the samples of the plan; with work divided by speed, each whole step has."""
    wrong: list[str] = []
    by_step: Counter[int] = Counter()
    for rank, row in rows:
        by_step[row.position // plan.num_workers] += row.samples
        planned = plan.batch_sizes[row.position % plan.num_workers]
        if row.samples != planned and plan.mode != "adaptive":
            wrong.append(
                f"worker-{rank} used {row.samples} samples for work unit {row.position}, but the plan has "
                f"{planned}"
            )
    gaps = {position // plan.num_workers for position in excused}
    if plan.mode == "adaptive":
        last = max(by_step, default=-1)
        wrong += [
            f"step {step} used {count} samples, but the plan has {plan.global_batch}"
            for step, count in sorted(by_step.items())
            if count != plan.global_batch and step not in gaps and step != last
        ]
    seen = f"{sum(by_step.values())} samples" + (f"; {len(wrong)} wrong: {wrong[0]}" if wrong else "")
    return Finding("each work unit used the samples that the plan assigns to it", not wrong, seen)


def _counted(plan: Plan, history: History) -> Iterator[tuple[int, StepRow]]:
    """The rows that count: of an elastic run those of steps that its generations committed."""
    if plan.elastic is None:
        yield from ((rank, row) for rank, rows in history.steps.items() for row in rows)
        return
    by_worker = _memberships(plan, history)
    for rank, rows in history.steps.items():
        memberships = by_worker.get(f"worker-{rank}", [])
        begins = [membership.from_ns for membership in memberships]
        for row in rows:
            at = bisect_right(begins, row.start_ns) - 1
            if at >= 0 and _unit(plan, row) in memberships[at].steps:
                yield rank, row


@dataclass(frozen=True, slots=True)
class _Membership:
    """From this moment on, work of a worker counts if it is in this range."""

    from_ns: int
    steps: range
    process: int  # which process of this name it was, in the order of their starts
    is_killed: bool  # that process ended without a report
    lost_at: int | None = None  # the first step that it had not committed when it lost the generation


def _unit(plan: Plan, row: StepRow) -> int:
    """Unit that generations count: rounds under fedavg, else steps of the run."""
    return row.version if plan.mode == "fedavg" else row.position // plan.num_workers


def _memberships(plan: Plan, history: History) -> dict[str, list[_Membership]]:
    by_worker: dict[str, list[_Membership]] = {}
    processes: Counter[str] = Counter()
    for session, stretches in _sessions(plan, history):
        counts = {stretch.generation: range(stretch.first, stretch.end) for stretch in stretches}
        for index, event in enumerate(session):
            if event.kind == "worker_started":
                processes[event.who] += 1
            if event.kind == "generation_entered":
                steps = counts.get(int(str(event.fields["number"])), range(0))
                later = session[index + 1 :]
                membership = _Membership(
                    event.at_ns,
                    steps,
                    processes[event.who],
                    _is_killed(later, event.who),
                    _lost_at(later, event),
                )
                by_worker.setdefault(event.who, []).append(membership)
    for memberships in by_worker.values():
        memberships.sort(key=lambda membership: membership.from_ns)
    return by_worker


def _is_killed(later: Sequence[PlainEvent], worker: str) -> bool:
    """Whether this process ended without saying so, before another took its name or the session ended."""
    for event in later:
        if event.who == worker and event.kind in ("worker_started", "worker_finished"):
            return event.kind == "worker_started"
    return True


def _lost_at(later: Sequence[PlainEvent], entered: PlainEvent) -> int | None:
    for event in later:
        if event.who == entered.who and event.kind == "generation_lost":
            is_same = event.fields["number"] == entered.fields["number"]
            return int(str(event.fields["committed"])) if is_same else None
    return None


def _unwritten(plan: Plan, history: History) -> list[tuple[range, int]]:
    """(steps, rows of each) that workers may have made and not written when they were killed.

    A process writes its rows in order, so unwritten rows would follow its last row. In rounds it makes
    all steps of one shard before those of the next, so any step of that round may be missing. A worker that
    lost its generation while it waited for the others writes no row of that step; another worker may have
    received all gradients and committed the step, and then it counts.
    """
    unwritten: list[tuple[range, int]] = []
    for worker, memberships in _memberships(plan, history).items():
        begins = [membership.from_ns for membership in memberships]
        last: dict[int, tuple[int, int]] = {}  # stint and unit of the last row, by process
        counts: Counter[tuple[int, int]] = Counter()  # rows by stint and step
        for row in history.steps.get(int(worker.rpartition("-")[2]), []):
            at = bisect_right(begins, row.start_ns) - 1
            if at >= 0:
                process = memberships[at].process
                last[process] = max(last.get(process, (-1, -1)), (at, _unit(plan, row)))
                counts[at, row.position // plan.num_workers] += 1
        for at, membership in enumerate(memberships):
            per_step = max((count for (where, _), count in counts.items() if where == at), default=None)
            rows = per_step or plan.num_workers
            end = membership.steps.stop
            if membership.lost_at is not None:
                end = max(membership.steps.start, membership.lost_at)
                unwritten.append((range(end, membership.steps.stop), rows))
            if not membership.is_killed:
                continue
            behind, unit = last.get(membership.process, (-1, -1))
            if at < behind:
                continue
            first = membership.steps.start
            if at == behind:
                first = max(first, unit + 1 - longest_commit(plan))
            unwritten.append((range(first, end), rows))
    return unwritten


def _sessions(plan: Plan, history: History) -> Iterator[tuple[Sequence[PlainEvent], tuple[Stretch, ...]]]:
    """The events between two resumes, and which steps count of each generation in them."""
    events = history.plain
    resumed = [
        (index, int(str(e.fields["version"]))) for index, e in enumerate(events) if e.kind == "run_resumed"
    ]
    begins = [(0, 0), *resumed]
    ends = [*resumed, (len(events), _last_unit(plan, history) + 1)]
    for (begin, first), (stop, end) in zip(begins, ends, strict=True):
        session = events[begin:stop]
        yield session, lineage_of(session, steps=end, first=first).stretches


def _last_unit(plan: Plan, history: History) -> int:
    return max((_unit(plan, row) for rows in history.steps.values() for row in rows), default=-1)


def _killed_before_writing(plan: Plan, history: History, counts: _Counts) -> set[int]:
    """Positions without a row that a killed worker may have done; at most as many of a step as it does."""
    end = plan.total_gradients if outcome_of(history) == "finished" else counts.whole
    allowed: Counter[int] = Counter()  # rows that may be missing, by step
    gaps = [position for position in range(end) if position not in counts.times]
    steps = {position // plan.num_workers for position in gaps}
    for unwritten, rows in _unwritten(plan, history):
        for step in steps:
            # Rounds of fedavg are no steps of the run: there a killed worker excuses any of them.
            if plan.mode == "fedavg" or step in unwritten:
                allowed[step] += rows
    excused = set()
    for position in gaps:
        step = position // plan.num_workers
        if allowed[step] > 0:
            allowed[step] -= 1
            excused.add(position)
    return excused


def _numbers(summary: Summary) -> dict[str, float | int | None]:
    return {
        "gradients": summary.gradients,
        "samples": summary.samples,
        "loss": summary.loss,
        "discarded": summary.discarded,
    }


def _is_same(recorded: Json, computed: float | int | None) -> bool:
    if not isinstance(recorded, int | float) or isinstance(computed, int) or computed is None:
        return recorded == computed or (
            computed is not None and not math.isfinite(computed) and not isinstance(recorded, int | float)
        )
    if not math.isfinite(recorded) or not math.isfinite(computed):
        return math.isfinite(recorded) == math.isfinite(computed)
    return math.isclose(recorded, computed, rel_tol=1e-6, abs_tol=1e-12)
