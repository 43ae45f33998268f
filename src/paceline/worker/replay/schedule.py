"""Does the recorded schedule lead to the recorded parameters, bit by bit?

A server's log says in which order workers read and updates were applied. The
replay does the same in one process: at every `read` it does what that worker
did until it pushed, at every `apply` it applies that. Each
loss is compared with the recorded one, so the first difference is found where
it arises; at the end the parameters' SHA-256 must be the recorded one.
Synchronous runs have no schedule to choose: they are simply run again. Runs of
workers that average in pairs are replayed by replay_peers.py.
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
from paceline.events.lineage import PolicyHistory, policies_of
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

# Its shards are run again as that many workers who all live. Every recorded loss
# is compared, also of attempts that were given up: whoever computed a shard, and
# however often, must have found the same. In mode adaptive they are run in the
# ways that were decided on; what somebody made in a way that the others never
# took up is left out. Clients of fedavg are at different steps, so there it is
# rounds that are counted.


def replay_elastic(plan: Plan, history: History, recorded: str) -> Verdict:
    rows = [(rank, row) for rank, found in history.steps.items() for row in found]
    steps = 1 + max(row.position // plan.num_workers for _, row in rows if row.synced)
    ways = policies_of(history.plain, steps) if plan.mode == "adaptive" else None
    if plan.mode == "fedavg":
        again = _in_rounds(plan, 1 + max(row.version for _, row in rows if row.synced))
    elif ways is not None:
        again = _as_decided(plan, steps, ways)
    else:
        again = run_virtual(dataclasses.replace(plan, steps=steps, elastic=None))
    for error in again.errors:
        if error is not None:
            raise error
    final = state_hash(again.final_state())
    parted = None
    for rank, row in sorted(rows, key=lambda found: found[1].position):
        step, shard = divmod(row.position, plan.num_workers)
        made = again.history.steps.get(shard, [])
        loss = made[step].loss if step < len(made) else row.loss
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
    """Stopped after so many rounds, by a client of the last one."""
    draws, last = draws_of(plan), 0
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


# Where workers push gradients, the gradient of what was read is computed and
# nothing else, without the strategy: what a strategy lost or changed on the way
# then shows. Where they push parameters (easgd), a worker has a life of its own
# between two pushes: there the strategy itself works, on a store that hands it
# what the log recorded and notes when it has pushed.


class ScriptedStore:
    """A worker's end of a server that is told what to do by someone else."""

    def __init__(self, handler: StoreHandler, rank: Rank) -> None:
        self._handler, self._rank = handler, rank
        self.next: PullResult | None = None  # what the coming pull is answered with
        self.has_pushed = False

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        self.slots = Slots.new(numel, dtype, push_bytes)
        self._handler.attach(self._rank, self.slots)
        return self.slots

    def join(self, clock: Clock) -> None: ...

    def pull(self) -> PullResult:
        assert self.next is not None, "the log has a read for every pull"
        pulled, self.next = self.next, None
        return pulled

    def push(self, *, wants_stop: bool) -> Traffic:
        self.has_pushed = True
        return NO_TRAFFIC

    def is_obsolete(self) -> bool:
        return False  # what the log says was applied was wanted

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
        """Leave the share's gradient where it is pushed; the step and its loss."""
        yield step, self.source.compute(self.replica, share)
        arena = self.replica.arena
        arena.buffers_to_gradients()
        if self.pusher is not None:
            self.pusher.fill(self.store.slots.gradients, arena.gradients)

    def work_until_push(self, first: Step, version: int, position: int) -> Iterator[tuple[Step, float]]:
        """Do what was handed out, from this step on; each step and its loss, as they come."""
        self.store.next = PullResult(Version(version), position, NO_TRAFFIC)
        self.store.has_pushed = False
        step = first
        while not self.store.has_pushed:
            begun = self.strategy.begin_step(step)
            assert isinstance(begun, Begun), "a read was for a share of the work"
            yield step, self.source.compute(self.replica, begun.share)
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
    _require_repeatable(plan, channel)
    if not history.steps:
        raise NothingRecordedError(
            "this run recorded no steps, so there is nothing to replay",
            "make the run with --events full (the default)",
        )
    plan = dataclasses.replace(plan, evaluation=None)  # it changed nothing, and a stop is in the log
    if channel is Channel.TORCH:  # of two numbers there is one sum: ddp computes what ssgd computes
        plan = dataclasses.replace(plan, mode="ssgd")
    if plan.elastic is not None and channel is not Channel.STORE:
        return replay_elastic(plan, history, recorded_sha256)
    if channel is Channel.PEERS:
        return replay_peers(plan, history, recorded_sha256, on_update)
    if channel is Channel.STORE:
        return _Replay(plan, history, recorded_sha256, on_update).run()
    return _run_again(plan, history, recorded_sha256)


def _require_repeatable(plan: Plan, channel: Channel) -> None:
    if plan.device is not Device.CPU:
        raise NotRepeatableError(
            "this run computed on a GPU, whose kernels need not give the same bits twice",
            "to prove a schedule, make the run with --device cpu",
        )
    if plan.vmap:
        raise NotRepeatableError(
            "this run computed all workers' gradients in one vmapped pass, whose rounding is its own",
            "to prove a schedule, make the run with --no-vmap",
        )
    if plan.elastic is not None and channel is Channel.TORCH:
        raise NotRepeatableError(
            f"in an elastic {plan.mode} run the order of summing depends on who lived when",
            "to prove an elastic run bit by bit, make it with --mode ssgd",
        )
    if is_split(plan.mode):
        raise NotRepeatableError(
            f"{plan.mode} puts parameters together by torch's own code, at places that only torch can repeat",
            "to prove a synchronous run bit by bit, make it with --mode ssgd",
        )
    is_summed_by_others = channel is not Channel.STORE and plan.transport in (Transport.GLOO, Transport.NCCL)
    if is_summed_by_others and plan.num_workers > 2 and plan.strategy.aggregate == "mean":
        mode = "ssgd" if channel is Channel.TORCH else plan.mode
        raise NotRepeatableError(
            f"gloo and NCCL choose the order in which {plan.num_workers} workers' gradients are summed, "
            "and no log says which",
            f"to prove a synchronous run bit by bit, make it with --mode {mode} --transport shm",
        )
    if channel is Channel.TORCH and plan.compress is not None:
        raise NotRepeatableError(
            f"ddp compressed to {plan.compress.codec} by torch's own code, which only torch can repeat",
            "to prove a compressed run bit by bit, make it with --mode ssgd",
        )


class _Replay:
    def __init__(self, plan: Plan, history: History, recorded: str, on_update: Callable[[int], None]) -> None:
        set_up_torch(plan)
        self._plan, self._recorded, self._on_update = plan, recorded, on_update
        # A gradient that arrives, is discarded or is abandoned changes nothing.
        self._rows = [row for row in history.server if row.op in ("read", "apply")]
        # An error memory also remembers what was pushed and then discarded.
        decisive = ("apply",) if plan.compress is None else ("apply", "discard")
        # By version too: a step that was abandoned is read for again, under the same number.
        self._counted = {(r.rank, r.step, r.read_version) for r in history.server if r.op in decisive}
        # Of a worker that was killed, the last rows may be missing; what it pushed is known all the same.
        self._losses = {(rank, r.step): r.loss for rank, rows in history.steps.items() for r in rows}
        # Where workers come and go a clock says nothing about how many steps its worker has made.
        self._by_share = {
            (rank, r.position, r.version): r.loss for rank, rows in history.steps.items() for r in rows
        }
        task, cpu, clock = build_task(plan), torch.device("cpu"), SystemClock()
        self._server = ParameterServer(
            plan, Replica(plan, task, cpu, clock), strategy_class(plan.mode), log=MemoryLog(), clock=clock
        )
        self._task, self._clock = task, clock
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
        worker, first = self._workers[row.rank], Step(row.step)
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
            return f"the log goes from version {self._server.version} to {version}"
        self._server.apply(tuple(Held(Rank(r.rank), Step(r.step)) for r in rows))
        self._on_update(version)
        return None

    def _verdict(self, parted: str | None) -> Verdict:
        final = state_hash(self._server.replica.arena.named_state())
        return Verdict(parted is None, self._server.version, self._gradients, final, parted)


def _restarts(history: History) -> set[tuple[int, int]]:
    """(rank, step) at which workers began anew because the run was resumed."""
    resumed = [e.fields for e in history.plain if e.kind == "run_resumed" and e.fields["clocks"]]
    return {
        (rank, int(clock))
        for fields in resumed
        for rank, clock in enumerate(str(fields["clocks"]).split(","))
    }


def _run_again(plan: Plan, history: History, recorded: str) -> Verdict:
    mode, kind = strategy_class(plan.mode), None
    steps = max(len(rows) for rows in history.steps.values())  # fewer than planned when it was stopped
    if issubclass(mode, Decides):  # what it decided was recorded, and is not decided anew
        steps, kind = sum(map(len, history.steps.values())) // plan.num_workers, mode.following(history)
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
    """Where workers make different numbers of steps, a stopped run is stopped again, not shortened."""
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
