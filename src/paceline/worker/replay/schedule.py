"""Replay of a recorded run: the recorded schedule must lead to the recorded parameters, bit by bit.

A server's log records in which order workers read and updates were applied. The replay does the same in one
process: at every `read` it does what that worker did until it pushed, at every `apply` it applies that. Each
loss is compared with the recorded one, so the first difference is found where it arises; at the end the
parameters' SHA-256 must be the recorded one. Synchronous runs have no schedule to choose: they are run
again. Runs of workers that average in pairs are replayed by peers.py.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch

from paceline.compression.push import Pusher, pusher_of
from paceline.core.clock import SystemClock
from paceline.core.errors import NothingRecordedError, NotRepeatableError
from paceline.core.ids import Clock, Rank, Step, Version
from paceline.events.lineage import PolicyHistory, committed_at_end, policies_of
from paceline.events.log import MemoryLog
from paceline.events.read import History
from paceline.events.schema import ServerRow
from paceline.plan.catalog import Channel, is_split
from paceline.plan.plan import Device, Plan, Transport
from paceline.plan.schedule import draws_of
from paceline.strategies.adaptive import Adaptive
from paceline.strategies.port import Begun, Decides, Links, ServerSide, Strategy
from paceline.sync.adaptive_setting import AdaptiveTerms
from paceline.sync.admission import Held
from paceline.sync.assignment import WorkUnit
from paceline.transport.ports import NO_TRAFFIC, PullResult, Slots, StoreHandler, Traffic
from paceline.worker.byzantine import tamper
from paceline.worker.entry.virtual import VirtualRun, run_virtual
from paceline.worker.gradient import GradientSource
from paceline.worker.participant import state_hash
from paceline.worker.replay.peers import Verdict, replay_peers, same_bits
from paceline.worker.replica import Replica
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import build_task, channel_of, set_up_torch, strategy_class

# Elastic runs: the shards are run again by one worker each, and none is lost. Every
# recorded loss is compared, also of abandoned attempts: each computation of a
# shard must have had the same result. In mode adaptive the recorded policies are
# followed, and steps that a worker made under a policy that was never agreed on are
# left out. Clients of fedavg are at different steps, so rounds are counted there.


def replay_elastic(plan: Plan, history: History, recorded: str) -> Verdict:
    rows = [(rank, row) for rank, worker_rows in history.steps.items() for row in worker_rows]
    steps = committed_at_end(history, shards=plan.num_workers)
    ways = policies_of(history.plain, steps) if plan.mode == "adaptive" else None
    if plan.mode == "fedavg":
        again = _in_rounds(plan, committed_at_end(history, shards=plan.num_workers, in_rounds=True))
    elif ways is not None:
        again = _as_decided(plan, steps, ways)
    else:
        again = run_virtual(dataclasses.replace(plan, steps=steps, elastic=None))
    for error in again.errors:
        if error is not None:
            raise error
    final = state_hash(again.final_state())
    parted = None
    for rank, row in sorted(rows, key=lambda pair: pair[1].position):
        step, shard = divmod(row.position, plan.num_workers)
        replayed = again.history.steps.get(shard, [])
        loss = replayed[step].loss if step < len(replayed) else row.loss
        is_counted = ways is None or ways.counts(f"worker-{rank}", row.start_ns, step)
        if is_counted and not same_bits(loss, row.loss):
            place = f"worker-{rank}, shard {shard} of step {step}"
            parted = f"{place}: the loss is {loss!r} where {row.loss!r} was recorded"
            break
    if parted is None and final != recorded:
        parted = f"every loss agrees, but the final parameters hash to {final[:16]}…, not {recorded[:16]}…"
    gradients = sum(map(len, again.history.steps.values()))
    return Verdict(parted is None, steps, gradients, final, parted)


def _in_rounds(plan: Plan, rounds: int) -> VirtualRun:
    """Run the plan and stop it after `rounds` rounds, by a client of the last one."""
    draws = draws_of(plan)
    last = 0
    while draws.number < rounds:
        last = min(draws.current())
        draws.finish()
    plain = dataclasses.replace(plan, elastic=None)
    return run_virtual(plain, stops_after={last: draws.done[last]} if draws.current() else {})


def _as_decided(plan: Plan, steps: int, ways: PolicyHistory) -> VirtualRun:
    """A worker for each shard, and all as planned, but for the way."""
    options = plan.strategy
    terms = AdaptiveTerms(allowed=options.adaptive, batch_sizes=plan.batch_sizes, period=options.sync_every)
    settings = {step: terms.as_planned(way) for step, way in ways.switches}
    plain = dataclasses.replace(plan, steps=steps, elastic=None)
    return run_virtual(plain, kind=partial(Adaptive, recorded=settings))


# In modes that push gradients, the replay computes only the gradient of the
# recorded parameters, without the strategy, so that anything a strategy lost or
# changed shows as a difference. In modes that push parameters (easgd), a worker
# trains independently between two pushes: there the strategy itself runs, on a
# store that returns the recorded parameters and records each push.


class ScriptedStore:
    """A worker's end of a server that the replay drives."""

    def __init__(self, handler: StoreHandler, rank: Rank) -> None:
        self._handler = handler
        self._rank = rank
        self.next: PullResult | None = None  # result of the next pull
        self.has_pushed = False

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self.slots = Slots.new(numel, dtype, push_bytes)
        self._handler.attach(self._rank, self.slots)
        return self.slots

    def join(self, clock: Clock) -> None: ...

    def pull(self) -> PullResult:
        assert self.next is not None, "the log has a read for every pull"
        pulled = self.next
        self.next = None
        return pulled

    def push(self, *, wants_stop: bool) -> Traffic:
        self.has_pushed = True
        return NO_TRAFFIC

    def is_obsolete(self) -> bool:
        return False  # a gradient that the log shows as applied was not obsolete

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return False

    def again(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScriptedWorker:
    replica: Replica
    strategy: Strategy
    store: ScriptedStore
    source: GradientSource
    pusher: Pusher | None  # codes what is pushed, when the plan compresses

    def compute(self, step: Step, share: WorkUnit) -> Iterator[tuple[Step, float]]:
        """Compute the share's gradient into the push buffer; yields the step and its loss."""
        yield step, self.source.compute(self.replica, share)
        arena = self.replica.arena
        arena.buffers_to_gradients()
        if self.pusher is not None:
            self.pusher.fill(self.store.slots.gradients, arena.gradients)

    def work_until_push(self, first: Step, version: int, position: int) -> Iterator[tuple[Step, float]]:
        """Do the assigned shares from this step on; yields each step and its loss."""
        self.store.next = PullResult(Version(version), position, NO_TRAFFIC)
        self.store.has_pushed = False
        step = first
        while not self.store.has_pushed:
            start = self.strategy.begin_step(step)
            assert isinstance(start, Begun), "a read was for a share of the work"
            yield step, self.source.compute(self.replica, start.share)
            self.strategy.finish_step(step, wants_stop=False)
            step = Step(step + 1)


def replay(
    plan: Plan,
    history: History,
    recorded_sha256: str,
    *,
    on_update: Callable[[int], None] = lambda _: None,
) -> Verdict:
    """Raises NotRepeatableError, NothingRecordedError."""
    channel = channel_of(plan.mode)
    _require_repeatable(plan, channel, history)
    if not history.steps:
        raise NothingRecordedError(
            "this run recorded no steps, so there is nothing to replay",
            "train again with --events full (the default)",
        )
    plan = dataclasses.replace(plan, evaluation=None)  # it changed nothing, and a stop is in the log
    if channel is Channel.TORCH:  # two numbers have one sum: ddp computes the same as ssgd
        plan = dataclasses.replace(plan, mode="ssgd")
    if plan.elastic is not None and channel is not Channel.STORE:
        return replay_elastic(plan, history, recorded_sha256)
    if channel is Channel.PEERS:
        return replay_peers(plan, history, recorded_sha256, on_update)
    if channel is Channel.STORE:
        return _Replay(plan, history, recorded_sha256, on_update).run()
    return _run_again(plan, history, recorded_sha256)


def _require_repeatable(plan: Plan, channel: Channel, history: History) -> None:
    if plan.device is not Device.CPU:
        raise NotRepeatableError(
            "this run computed on a GPU, whose kernels are not deterministic",
            "for a replay, train with --device cpu",
        )
    if plan.vmap:
        raise NotRepeatableError(
            "this run computed all workers' gradients in one vmapped pass, which rounds differently",
            "for a replay, train with --no-vmap",
        )
    if plan.elastic is not None and channel is Channel.TORCH:
        raise NotRepeatableError(
            f"in an elastic {plan.mode} run the order of reduction depends on when workers joined and left",
            "for a bitwise replay of an elastic run, train with --mode ssgd",
        )
    if is_split(plan.mode):
        raise NotRepeatableError(
            f"{plan.mode} gathers parameters within torch, at points that only torch can repeat",
            "for a bitwise replay of a synchronous run, train with --mode ssgd",
        )
    is_summed_by_others = channel is not Channel.STORE and plan.transport in (Transport.GLOO, Transport.NCCL)
    if is_summed_by_others and plan.num_workers > 2 and plan.strategy.aggregate == "mean":
        mode = "ssgd" if channel is Channel.TORCH else plan.mode
        raise NotRepeatableError(
            f"gloo and NCCL choose the order in which {plan.num_workers} workers' gradients are summed, and "
            "it is not recorded",
            f"for a bitwise replay of a synchronous run, train with --mode {mode} --transport shm",
        )
    if plan.elastic is not None and plan.compress is not None:
        _require_whole_memories(history)
    if channel is Channel.TORCH and plan.compress is not None:
        raise NotRepeatableError(
            f"ddp compressed to {plan.compress.codec} by torch's own code, which only torch can repeat",
            "for a bitwise replay of a compressed run, train with --mode ssgd",
        )


def _require_whole_memories(history: History) -> None:
    """Behind a server, and without shared memory, the error memory of a worker is lost with it."""
    resets = sum(event.kind == "error_memory_reset" for event in history.plain)
    if resets or history.rolled_back:
        raise NotRepeatableError(
            f"{resets} error memories were reset, and updates rolled back {len(history.rolled_back)} times, "
            "so what the workers owed is not in the log",
            "for a bitwise replay of a compressed run with losses, train with --mode ssgd --transport shm",
        )


class _Replay:
    def __init__(self, plan: Plan, history: History, recorded: str, on_update: Callable[[int], None]) -> None:
        set_up_torch(plan)
        self._plan = plan
        self._recorded = recorded
        self._on_update = on_update
        # A gradient that arrives, is discarded or is abandoned changes nothing.
        self._rows = [row for row in history.server if row.op in ("read", "apply")]
        # With error feedback, discarded pushes also change the error memory.
        decisive = ("apply",) if plan.compress is None else ("apply", "discard")
        # The key includes the version: an abandoned step is read again under the same number.
        self._counted = {(r.rank, r.step, r.read_version) for r in history.server if r.op in decisive}
        # The last rows of a killed worker may be missing; its pushes are still in the server's rows.
        self._losses = {(rank, r.step): r.loss for rank, rows in history.steps.items() for r in rows}
        # In elastic runs a clock is not the number of steps that its worker has made.
        self._by_share = {
            (rank, r.position, r.version): r.loss for rank, rows in history.steps.items() for r in rows
        }
        task = build_task(plan)
        cpu = torch.device("cpu")
        clock = SystemClock()
        self._server = ParameterServer(
            plan, Replica(plan, task, cpu, clock), strategy_class(plan.mode), log=MemoryLog(), clock=clock
        )
        self._task = task
        self._clock = clock
        self._source = GradientSource(plan, task, cpu, clock)
        self._workers = {rank: self._new_worker(Rank(rank)) for rank in range(plan.num_workers)}
        side: type[ServerSide] = strategy_class(plan.mode)
        self._pushes_gradients = side.exchange(plan) is None
        self._restarts = _restarts(history)
        self._gradients = 0

    def _new_worker(self, rank: Rank) -> ScriptedWorker:
        replica = Replica(self._plan, self._task, torch.device("cpu"), self._clock)
        store = ScriptedStore(self._server, rank)
        links = Links(rank=rank, world_size=self._plan.num_workers, clock=self._clock, store=store)
        strategy: Strategy = strategy_class(self._plan.mode)(self._plan, links)
        strategy.prepare(replica, Clock(0))
        return ScriptedWorker(
            replica, strategy, store, self._source, pusher_of(self._plan, replica.arena, rank, self._clock)
        )

    def run(self) -> Verdict:
        for (op, version), group in groupby(self._rows, key=lambda r: (r.op, r.version)):
            rows = list(group)
            parted = self._reads(rows) if op == "read" else self._apply(rows, version)
            if parted is not None:
                return self._verdict(parted)
        final = state_hash(self._server.replica.arena.named_state())
        if final != self._recorded:
            return self._verdict(
                f"every loss agrees, but the final parameters hash to {final[:16]}… "
                f"where {self._recorded[:16]}… was recorded"
            )
        return self._verdict(None)

    def _reads(self, rows: Sequence[ServerRow]) -> str | None:
        for row in rows:
            if (row.rank, row.step) in self._restarts:
                self._workers[row.rank] = self._new_worker(Rank(row.rank))
            self._server.answer(Rank(row.rank), Step(row.step), row.position)
            if (row.rank, row.step, row.version) not in self._counted:
                continue  # the worker stopped or abandoned this step before it was finished
            parted = self._work(row)
            if parted is not None:
                return parted
        return None

    def _work(self, row: ServerRow) -> str | None:
        worker = self._workers[row.rank]
        first = Step(row.step)
        if self._pushes_gradients:
            steps = worker.compute(first, WorkUnit.at(row.position, self._plan.num_workers))
        else:
            steps = worker.work_until_push(first, row.version, row.position)
        for step, loss in steps:
            tamper(self._plan, worker.replica.arena, worker=row.rank, step=step)
            recorded = self._losses.get((row.rank, step))
            if self._plan.elastic is not None:
                recorded = self._by_share.get((row.rank, row.position, row.version))
            self._gradients += 1
            if recorded is not None and not same_bits(loss, recorded):
                return (
                    f"worker-{row.rank}, step {step}, on version {row.version}: "
                    f"the loss is {loss!r} where {recorded!r} was recorded"
                )
        return None

    def _apply(self, rows: Sequence[ServerRow], version: int) -> str | None:
        if self._server.version + 1 != version:
            return f"the log skips from version {self._server.version} to {version}"
        self._server.apply(tuple(Held(Rank(r.rank), Step(r.step)) for r in rows))
        self._on_update(version)
        return None

    def _verdict(self, parted: str | None) -> Verdict:
        final = state_hash(self._server.replica.arena.named_state())
        return Verdict(parted is None, self._server.version, self._gradients, final, parted)


def _restarts(history: History) -> set[tuple[int, int]]:
    """(rank, step) at which workers were rebuilt because the run was resumed."""
    resumed = [e.fields for e in history.plain if e.kind == "run_resumed" and e.fields["clocks"]]
    return {
        (rank, int(clock))
        for fields in resumed
        for rank, clock in enumerate(str(fields["clocks"]).split(","))
    }


def _run_again(plan: Plan, history: History, recorded: str) -> Verdict:
    mode = strategy_class(plan.mode)
    kind = None
    steps = max(len(rows) for rows in history.steps.values())  # fewer than planned when it was stopped
    if issubclass(mode, Decides):  # its decisions were recorded, and are not made again
        steps = sum(map(len, history.steps.values())) // plan.num_workers
        kind = mode.following(history)
    if plan.strategy.clients_per_round < 1.0:
        again = run_virtual(plan, stops_after=_recorded_stop(plan, history))
    else:
        again = run_virtual(dataclasses.replace(plan, steps=steps), kind=kind)
    for error in again.errors:
        if error is not None:
            raise error
    final = state_hash(again.final_state())
    gradients = sum(len(rows) for rows in again.history.steps.values())
    parted = _first_difference(history, again.history)
    if parted is None and final != recorded:
        parted = f"every loss agrees, but the final parameters hash to {final[:16]}…, not {recorded[:16]}…"
    return Verdict(parted is None, steps, gradients, final, parted)


def _recorded_stop(plan: Plan, history: History) -> dict[int, int]:
    """Steps at which the replay stops; if workers differ in steps, it is stopped, not shortened."""
    if sum(map(len, history.steps.values())) == plan.total_gradients:
        return {}
    began = {rank: rows[-1].start_ns for rank, rows in history.steps.items() if rows}
    last = max(began, key=lambda rank: began[rank])
    return {last: len(history.steps[last])}


def _first_difference(recorded: History, again: History) -> str | None:
    pairs = (
        (old.step, rank, old.loss, new.loss)
        for rank, rows in recorded.steps.items()
        for old, new in zip(rows, again.steps[rank], strict=False)
        if not same_bits(old.loss, new.loss)
    )
    first = min(pairs, default=None)
    if first is None:
        return None
    step, rank, old_loss, new_loss = first
    return f"worker-{rank}, step {step}: the loss is {new_loss!r} where {old_loss!r} was recorded"
