"""Profile of a recorded run: step times and link costs from its event log.

A step's time is data, forward, backward and delay, as recorded (stragglers and
pace are included). The cost of an exchange is the typical time between the last
worker's arrival, or a gradient's, and the next step's compute. Only the channel
that the run used was measured; the others are assumed to cost the same.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import NothingRecordedError, NotRecordedError
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Plan
from paceline.simulate.profile import Costs, Link, Profile, Recorded

_COMPUTE = ("data_ns", "forward_ns", "backward_ns", "delay_ns")
_AGREE = ("wait_ns", "codec_ns", "comm_ns", "apply_ns")


class ServerRow(Protocol):
    """One operation of a server: events.schema.ServerRow."""

    @property
    def op(self) -> str: ...
    @property
    def at_ns(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...


class Log(Protocol):
    """The part of events.read.History that is read here. Step rows are read by the names of their fields."""

    @property
    def steps(self) -> Mapping[int, Sequence[object]]: ...
    @property
    def server(self) -> Sequence[ServerRow]: ...
    @property
    def sessions(self) -> Sequence[Mapping[int, int]]: ...


def profile_of(history: Log, plan: Plan) -> Profile:
    """A profile that predicts the recorded run, and others like it."""
    _refuse_unreadable(history, plan)
    workers = [_Worker(history.steps[rank]) for rank in range(plan.num_workers)]
    channel = MODES[plan.mode].channel
    if channel is Channel.STORE:
        costs = _store_costs(workers, history.server)
        steps_ns = [worker.compute for worker in workers]
        begins = [int(worker.start[0] + worker.wait[0]) for worker in workers]
    else:
        costs = _collective_costs(workers, plan)
        steps_ns = [
            worker.compute_as_planned(plan.batch_sizes[rank])
            + worker.between([session.get(rank, 0) for session in history.sessions])
            for rank, worker in enumerate(workers)
        ]
        begins = [int(worker.start[0]) for worker in workers]
    return Profile(
        num_workers=plan.num_workers,
        step_times=tuple(Recorded(tuple((own / 1e9).tolist())) for own in steps_ns),
        batch_sizes=plan.batch_sizes,
        parameter_bytes=_parameter_bytes(workers[0], channel, plan.num_workers),
        starts_at_s=tuple((begin - min(begins)) / 1e9 for begin in begins),
        costs=costs,
        source=f"run {plan.run} ({plan.mode})",
    )


class _Worker:
    """The rows of one worker as columns."""

    def __init__(self, rows: Sequence[object]) -> None:
        self.start, self.wait, self.comm, self.apply = (
            _column(rows, name) for name in ("start_ns", "wait_ns", "comm_ns", "apply_ns")
        )
        self.compute = sum((_column(rows, name) for name in _COMPUTE), np.zeros(len(rows)))
        self.end = self.start + self.compute + sum(_column(rows, name) for name in _AGREE)
        self.samples = _column(rows, "samples")
        self.synced = _column(rows, "synced") > 0
        self.bytes_out = _column(rows, "bytes_out")

    def compute_as_planned(self, size: int) -> NDArray[np.float64]:
        """Compute times scaled to the planned samples; only mode adaptive uses others."""
        return self.compute * (size / self.samples)

    def between(self, resumed_at: Sequence[int]) -> NDArray[np.float64]:
        """The loop's own time after each step; the pause before a resume is excluded."""
        gaps = np.append(self.start[1:] - self.end[:-1], 0.0)
        for place in resumed_at:
            if 0 < place <= len(gaps):
                gaps[place - 1] = 0.0
        return gaps.clip(min=0.0)


def _column(rows: Sequence[object], name: str) -> NDArray[np.float64]:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def _collective_costs(workers: Sequence[_Worker], plan: Plan) -> Costs:
    steps = min(len(worker.start) for worker in workers)
    applies_first = plan.mode in ("localsgd", "diloco")
    arrived = np.stack([(w.start + w.compute + applies_first * w.apply)[:steps] for w in workers]).max(axis=0)
    left = np.stack([(w.end - (not applies_first) * w.apply)[:steps] for w in workers]).mean(axis=0)
    exchanged = workers[0].bytes_out[:steps] > 0  # a streaming fragment is sent without syncing all
    apply_s = _mean_s(np.concatenate([w.apply for w in workers]))
    if plan.num_workers == 1 or not exchanged.any():
        return Costs(apply_s=apply_s)
    exchange_s = _mean_s((left - arrived)[exchanged])
    whole = Link(latency_s=exchange_s)
    half = Link(latency_s=exchange_s / 2)
    return Costs(collective=whole, torch=whole, push=half, pull=half, apply_s=apply_s)


def _store_costs(workers: Sequence[_Worker], rows: Sequence[ServerRow]) -> Costs:
    sent = {
        (rank, step): ns
        for rank, worker in enumerate(workers)
        for step, ns in enumerate(worker.start + worker.wait + worker.compute)
    }
    began = {
        (rank, step): ns
        for rank, worker in enumerate(workers)
        for step, ns in enumerate(worker.start + worker.wait)
    }
    push = [r.at_ns - sent[r.rank, r.step] for r in rows if r.op == "push" and (r.rank, r.step) in sent]
    pull = [began[r.rank, r.step] - r.at_ns for r in rows if r.op == "read" and (r.rank, r.step) in began]
    pairs = list(pairwise(rows))
    apply = [b.at_ns - a.at_ns for a, b in pairs if (a.op, b.op) == ("push", "apply")]
    answer = [b.at_ns - a.at_ns for a, b in pairs if b.op == "read" and a.op != "push"]
    # Medians: a worker released with all others woke late, but seldom delayed another one.
    outbound = Link(latency_s=_median_s(push))
    back = Link(latency_s=_median_s(pull))
    both = Link(latency_s=outbound.latency_s + back.latency_s)
    return Costs(
        collective=both,
        torch=both,
        push=outbound,
        pull=back,
        apply_s=_median_s(apply),
        answer_s=_median_s(answer),
    )


def _mean_s(durations_ns: Sequence[float] | NDArray[np.float64]) -> float:
    return max(0.0, float(np.mean(durations_ns)) / 1e9) if len(durations_ns) else 0.0


def _median_s(durations_ns: Sequence[float]) -> float:
    return max(0.0, float(np.median(durations_ns)) / 1e9) if len(durations_ns) else 0.0


def _parameter_bytes(worker: _Worker, channel: Channel, num_workers: int) -> int:
    sent = float(worker.bytes_out.max(initial=0.0))
    if channel is Channel.STORE or num_workers == 1:
        return round(sent)
    return round(sent * num_workers / (2 * (num_workers - 1)))


def _refuse_unreadable(history: Log, plan: Plan) -> None:
    if any(row.op == "abandon" for row in history.server):
        raise NotRecordedError(
            f"run {plan.run} abandoned its late steps, so the speed of its slow workers is unknown",
            "record the same work under another mode:  paceline train --mode ssgd",
        )
    if any(not history.steps.get(rank) for rank in range(plan.num_workers)):
        raise NothingRecordedError(
            f"run {plan.run} has recorded no steps of some workers, so their speed is unknown",
            "record a run of at least a few steps, with --events full",
        )
    if plan.mode not in MODES:
        raise NotRecordedError(
            f"mode {plan.mode} of run {plan.run} is a custom class, so its waiting time cannot be separated",
            "record the same work under a built-in mode:  paceline train --mode ssgd",
        )
    if plan.mode in ("easgd", "fedavg"):
        raise NotRecordedError(
            f"run {plan.run} used {plan.mode}, whose workers do not all exchange after the same steps",
            "record the same work under another mode:  paceline train --mode ssgd",
        )
    if plan.mode in ("gossip", "adpsgd"):
        raise NotRecordedError(
            f"run {plan.run} used {plan.mode}, whose workers exchange with a few others at a time, so the "
            "log does not contain the cost of an all-reduce",
            "record the same work under another mode:  paceline train --mode ssgd",
        )
    if plan.mode == "adaptive" and len({len(rows) for rows in history.steps.values()}) > 1:
        raise NotRecordedError(
            f"workers of run {plan.run} made different numbers of steps, so their exchanges do not match",
            "record the same work under another mode:  paceline train --mode ssgd",
        )
    if MODES[plan.mode].channel is Channel.TORCH:
        raise NotRecordedError(
            f"run {plan.run} used {plan.mode}, which hides waiting for others in backward",
            "record the same work under another mode:  paceline train --mode ssgd",
        )
