"""Composition root of a participant: a plan becomes a worker or a server with its transports.

Nothing here decides anything about training. It builds what the plan describes from what the launcher
provides (`WorkerContext`). Every `Worker` is made by `assemble_worker`, and adapters of `transport` are
chosen here; the exceptions are listed in pyproject.toml.

`build_worker` builds a worker of a run with a fixed set of workers, `build_server` its parameter server, and
`build_served_worker` a worker behind elastic servers. A worker of generations (elastic/participant.py,
elastic/fsdp.py) and a virtual one (entry/virtual.py) are assembled by their owners.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from paceline.checkpoints.snapshot import Snapshot
from paceline.compression.push import push_format
from paceline.core.clock import Clock
from paceline.core.errors import ConfigError, NoGpuError, Problem
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import EventLog, Log
from paceline.plan.catalog import MODES, Channel, is_split
from paceline.plan.plan import Device, Plan, Transport
from paceline.strategies.batch_norm import batch_norm_remark
from paceline.strategies.load import builtin_strategy
from paceline.strategies.port import Links, ServerSide, Strategy
from paceline.strategies.push_pull import PushPull
from paceline.tasks.load import load_class, load_task
from paceline.tasks.port import Task
from paceline.tasks.script import ScriptTask
from paceline.transport.elastic_store import ElasticStore
from paceline.transport.elastic_wire import Route
from paceline.transport.generation.ports import TrainingWorld
from paceline.transport.handshake import Dialer
from paceline.transport.in_process import (
    CollectiveState,
    InProcessCollective,
    InProcessPeers,
    InProcessStore,
    Mailbox,
    PeersState,
)
from paceline.transport.ports import Collective, ParameterStore, Peers
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_collective import SEMAPHORES, WORDS, ShmCollective
from paceline.transport.shm_peers import ShmPeers, peers_world
from paceline.transport.shm_store import (
    CudaStore,
    CudaStoreHost,
    ShmStore,
    ShmStoreHost,
    cuda_world,
    store_world,
)
from paceline.transport.tcp_store import TcpStore, TcpStoreHost
from paceline.transport.torch_dist import CountWire, TorchCollective, join_group, no_wire
from paceline.transport.virtual_time import Turns
from paceline.worker.checkpointing import EndSaver, RowSaver, ServerSaver, WorkerSaver, restore_strategy
from paceline.worker.context import WorkerContext
from paceline.worker.control import WorkerControl
from paceline.worker.evaluation import (
    NO_EVALUATION,
    EvaluationHook,
    Evaluations,
    Evaluator,
    ServerEvaluator,
    Validation,
)
from paceline.worker.gradient import GradientSource, Source
from paceline.worker.loop import Control, Saver, Worker
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report, ignore_report
from paceline.worker.script.data import ScriptSource
from paceline.worker.script.in_turn import strategy_of
from paceline.worker.server.core import ParameterServer


def strategy_class(mode: str) -> type:
    return builtin_strategy(mode) or load_class(mode, noun="mode")


def channel_of(mode: str) -> Channel:
    channel = getattr(strategy_class(mode), "channel", None)
    if not isinstance(channel, Channel):
        raise ConfigError(
            [
                Problem(
                    f"the strategy {mode} does not define how its workers communicate",
                    "give the class an attribute, such as channel = Channel.COLLECTIVE",
                )
            ]
        )
    return channel


def shared_world(plan: Plan, channel: Channel) -> SharedWorld | None:
    if plan.transport is Transport.CUDA_IPC:
        return cuda_world(plan.num_workers)
    if plan.transport is not Transport.SHM:
        return None
    if channel is Channel.STORE:
        return store_world(plan.num_workers)
    if channel is Channel.PEERS:
        return peers_world(plan.num_workers)
    return SharedWorld(parties=plan.num_workers, semaphores_each=SEMAPHORES, words_each=WORDS)


def set_up_torch(plan: Plan) -> None:
    torch.set_num_threads(plan.threads_per_worker)
    torch.set_default_dtype(torch.float64 if plan.dtype.value == "float64" else torch.float32)


def build_task(plan: Plan) -> Task:
    return load_task(plan.task, seed=plan.seed, options=plan.task_options)


def build_source(plan: Plan, task: Task, device: torch.device, clock: Clock) -> GradientSource | ScriptSource:
    """Of a worker process, which may load batches ahead."""
    if isinstance(task, ScriptTask):
        return ScriptSource(plan, task.samples(), device)
    return GradientSource(plan, task, device, clock, ahead=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """State of a worker process, kept across generations."""

    plan: Plan
    rank: Rank
    source: Source
    clock: Clock
    log: Log
    control: Control


def assemble_worker(
    process: WorkerProcess,
    *,
    replica: Replica,
    strategy: Strategy,
    saver: Saver,
    evaluator: EvaluationHook = NO_EVALUATION,
    collective: Collective | None = None,
) -> Worker:
    return Worker(
        plan=process.plan,
        rank=process.rank,
        replica=replica,
        strategy=strategy,
        source=process.source,
        clock=process.clock,
        log=process.log,
        control=process.control,
        saver=saver,
        evaluator=evaluator,
        collective=collective,
    )


@dataclass(frozen=True, slots=True)
class BuiltWorker:
    worker: Worker
    task: Task
    first: StepClock
    channel: Channel
    count_wire: CountWire


def build_worker(
    context: WorkerContext,
    rank: Rank,
    note: Callable[[str], None],
    report: Callable[[Report], None] = ignore_report,
) -> BuiltWorker:
    plan = context.plan
    clock = context.clock
    folder = context.folder
    set_up_torch(plan)
    task = build_task(plan)
    device = device_of(plan, rank if context.foreign is None else context.foreign.local_rank)
    channel = channel_of(plan.mode)
    source = build_source(plan, task, device, clock)
    if context.foreign is not None:
        context.foreign.ready(source.num_samples)
    links, count_wire = _links(context, rank, channel, device, clock)
    replica = build_replica(plan, task, device, clock)  # after the links: it may be split over the workers
    if channel is not Channel.STORE:
        replica.prepare_optimizer()
    strategy = strategy_of(plan, task, links, strategy_class(plan.mode))
    log = folder.open_log(plan, f"worker-{rank}", clock)
    evaluator: EvaluationHook = NO_EVALUATION
    if channel is not Channel.STORE:  # the server evaluates
        evaluator = evaluator_for(plan, task, replica, links, channel, log=log, report=report)
    saver: WorkerSaver | RowSaver = RowSaver(plan, log)
    first = StepClock(0)
    if channel is not Channel.STORE:
        kind = EndSaver if channel is Channel.PEERS else WorkerSaver
        writer = folder.writer(plan, f"worker-{rank}")
        saver = kind(plan, replica, strategy, log=log, writer=writer, report=report)
        if isinstance(evaluator, Evaluator):
            saver.also = evaluator.record.live
        if (saved := _restored(context, replica, rank)) is not None:
            first = restore_strategy(strategy, saved)
            saver.begin_at(StepClock(saved.facts["at"]))
            if isinstance(evaluator, Evaluator):
                evaluator.record.restore(saved)
    elif (saved := folder.snapshot("server-0")) is not None:
        first = StepClock(saved.facts["clocks"].get(str(rank), 0))
        replica.restore_kept(saved)
    strategy.prepare(replica, first)
    if rank == 0 and plan.num_workers > 1 and (remark := batch_norm_remark(plan, replica.arena.module)):
        note(remark)
    control = WorkerControl(context.control, rank, note)
    process = WorkerProcess(plan=plan, rank=rank, source=source, clock=clock, log=log, control=control)
    worker = assemble_worker(
        process,
        replica=replica,
        strategy=strategy,
        saver=saver,
        evaluator=evaluator,
        collective=links.collective,
    )
    return BuiltWorker(worker, task, first, channel, count_wire)


def build_served_worker(process: WorkerProcess, route: Route, dialer: Dialer, task: Task) -> Worker:
    """A worker behind elastic parameter servers; `route` finds the primary, `dialer` connects to it."""
    plan = process.plan
    clock = process.clock
    replica = Replica(plan, task, torch.device("cpu"), clock)
    store = ElasticStore(route, process.rank, dialer, clock=clock, timeout_s=plan.timeout_s)
    links = Links(rank=process.rank, world_size=plan.num_workers, clock=clock, store=store)
    strategy: Strategy = strategy_class(plan.mode)(plan, links)
    store.on_refused = partial(_take_refusal, plan, strategy, process.log, process.control)
    saver = RowSaver(plan, process.log)
    return assemble_worker(process, replica=replica, strategy=strategy, saver=saver)


def _take_refusal(
    plan: Plan, strategy: Strategy, log: Log, control: Control, position: int, version: int
) -> None:
    log.write("push_refused", position=position, version=version)
    if plan.compress is not None and plan.compress.has_state and isinstance(strategy, PushPull):
        strategy.reset_error_memory()
        record_memory_reset(log, control.note, f"its push of work unit {position} was rejected")


def record_memory_reset(log: Log, note: Callable[[str], None], why: str) -> None:
    """An error memory of compression is empty again."""
    log.write("error_memory_reset", why=why)
    log.flush()
    note(f"error memory reset: {why}")


def evaluator_for(
    plan: Plan,
    task: Task,
    replica: Replica,
    links: Links,
    channel: Channel,
    *,
    log: Log,
    report: Callable[[Report], None],
) -> EvaluationHook:
    if plan.evaluation is None:
        return NO_EVALUATION
    if channel is Channel.PEERS:  # a user's mode; others were refused earlier
        message = f"workers of {plan.mode} hold the same parameters only at the end"
        raise ConfigError([Problem(message, "leave evaluate_every and early_stop_patience out")])
    collective = links.collective
    clock = links.clock
    if channel is Channel.TORCH and not is_split(plan.mode):  # a model in parts computes all pieces together
        collective = TorchCollective(device=replica.arena.state.device, clock=clock, timeout_s=plan.timeout_s)
    validation = Validation(task, replica.arena, seed=plan.seed, collective=collective, channel=channel)
    send_report = report if links.rank == 0 else None  # all observe the same; rank 0 reports it
    record = Evaluations(plan, replica.arena, clock)
    return Evaluator(plan, record, validation, log=log, report=send_report)


def generation_evaluator(
    process: WorkerProcess,
    task: Task,
    record: Evaluations | None,
    world: TrainingWorld,
    replica: Replica,
    *,
    steps_done: Callable[[], int],
    report: Callable[[Report], None],
) -> EvaluationHook:
    """The workers of a generation share the validation data, and its rank 0 reports the result."""
    if record is None:
        return NO_EVALUATION
    plan = process.plan
    clock = process.clock
    channel = MODES[plan.mode].channel
    collective: Collective | None = None
    if channel is not Channel.TORCH:
        collective = world.collective(clock)
    elif not is_split(plan.mode):  # a model in parts computes all pieces together
        collective = TorchCollective(device=replica.arena.state.device, clock=clock, timeout_s=plan.timeout_s)
    validation = Validation(task, replica.arena, seed=plan.seed, collective=collective, channel=channel)
    send_report = report if world.rank == 0 else None
    return Evaluator(plan, record, validation, log=process.log, report=send_report, steps=steps_done)


def evaluate_between_updates(
    server: ParameterServer, task: Task, plan: Plan, *, log: Log, report: Callable[[Report], None]
) -> Callable[[], None]:
    """Hook that a parameter server runs directly after an update."""
    if server.evaluations is None:
        return lambda: None
    server.evaluations.begin()
    arena = server.replica.arena
    validation = Validation(task, arena, seed=plan.seed, collective=None, channel=Channel.STORE)
    return ServerEvaluator(server, validation, log=log, report=report).after_update


def _restored(context: WorkerContext, replica: Replica, rank: Rank) -> Snapshot | None:
    """The snapshot that the replica resumes from; None: the run begins."""
    if is_split(context.plan.mode):  # from the parts of all workers, whose number may have differed
        with context.parts() as folder:
            return None if folder is None else replica.restore_from(folder, rank)
    saved = context.folder.snapshot(f"worker-{rank}")
    if saved is not None:
        replica.restore(saved)
    return saved


def build_replica(plan: Plan, task: Task, device: torch.device, clock: Clock) -> Replica:
    if not is_split(plan.mode):
        return Replica(plan, task, device, clock)
    from paceline.worker.sharded_replica import ShardedReplica  # brings much of torch that others do not need

    return ShardedReplica(plan, task, device, clock)


@dataclass(frozen=True, slots=True)
class BuiltServer:
    server: ParameterServer
    replica: Replica
    task: Task
    host: ShmStoreHost | TcpStoreHost
    saver: ServerSaver
    log: EventLog


def build_server(context: WorkerContext, report: Callable[[Report], None] = ignore_report) -> BuiltServer:
    plan = context.plan
    clock = context.clock
    folder = context.folder
    set_up_torch(plan)
    task = build_task(plan)
    # Parameters are on the device of the slots: a server mostly copies between the two.
    place = torch.device("cuda", 0) if plan.transport is Transport.CUDA_IPC else torch.device("cpu")
    replica = Replica(plan, task, place, clock)
    replica.prepare_optimizer()
    log = folder.open_log(plan, "server-0", clock)
    kind: type[ServerSide] = strategy_class(plan.mode)
    server = ParameterServer(plan, replica, kind, log=log, clock=clock)
    if (saved := folder.snapshot("server-0")) is not None:
        server.restore(saved)
    writer = None if context.foreign is None else folder.writer(plan, "server-0")
    saver = ServerSaver(plan, server, root=context.checkpoints, log=log, report=report, writer=writer)
    evaluate = evaluate_between_updates(server, task, plan, log=log, report=report)

    def on_applied() -> None:
        evaluate()
        saver.maybe_save()

    server.on_applied = on_applied
    if context.foreign is not None:
        context.foreign.ready(0)  # it needs none
    return BuiltServer(server, replica, task, _host(context, replica), saver, log)


def device_of(plan: Plan, rank: int) -> torch.device:
    """The device of a worker; workers share GPUs in turn where there are fewer."""
    if plan.device is Device.CPU:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise NoGpuError(
            f"device is cuda, but worker-{rank} on {socket.gethostname()} has no GPU that torch can use",
            "set device to cpu, or install a torch that is built for CUDA there",
        )
    return torch.device("cuda", rank % torch.cuda.device_count())


def _links(
    context: WorkerContext, rank: Rank, channel: Channel, device: torch.device, clock: Clock
) -> tuple[Links, CountWire]:
    plan = context.plan
    count_wire: CountWire = no_wire
    collective: Collective | None = None
    store: ParameterStore | None = None
    peers: Peers | None = None
    if plan.transport in (Transport.GLOO, Transport.NCCL):
        count_wire = join_group(
            plan.transport.value,
            store_path=str(context.rendezvous),
            rank=rank,
            world_size=plan.num_workers,
            timeout_s=plan.timeout_s,
            store=None if context.foreign is None else context.foreign.store,
        )
        if channel is Channel.COLLECTIVE:
            collective = TorchCollective(device=device, clock=clock, timeout_s=plan.timeout_s)
    elif plan.transport is Transport.TCP:
        address = context.server_address
        store = TcpStore(
            address, rank, token=context.token, clock=clock, timeout_s=plan.timeout_s, tls=context.tls
        )
    elif plan.transport is Transport.CUDA_IPC:
        assert context.world is not None, "the launcher makes the shared words"
        store = CudaStore(context.world, rank, clock=clock, timeout_s=plan.timeout_s, device=device)
    elif plan.transport is Transport.SHM:
        assert context.world is not None, "the launcher makes the shared memory"
        if channel is Channel.STORE:
            store = ShmStore(context.world, rank, clock=clock, timeout_s=plan.timeout_s)
        elif channel is Channel.PEERS:
            peers = ShmPeers(context.world, rank, clock=clock, timeout_s=plan.timeout_s)
        else:
            collective = ShmCollective(context.world, rank, clock=clock, timeout_s=plan.timeout_s)
    links = Links(
        rank=rank, world_size=plan.num_workers, clock=clock, collective=collective, store=store, peers=peers
    )
    return links, count_wire


@dataclass(frozen=True, slots=True)
class InProcessWorld:
    """State that the virtual workers of one process share."""

    turns: Turns
    device: torch.device
    meeting: CollectiveState
    peers: PeersState
    mail: Mailbox


def in_process_world(plan: Plan, turns: Turns, device: torch.device) -> InProcessWorld:
    workers = plan.num_workers
    return InProcessWorld(turns, device, CollectiveState(workers), PeersState(workers), Mailbox())


def in_process_links(
    world: InProcessWorld,
    plan: Plan,
    rank: Rank,
    server: ParameterServer | None,
    *,
    wrap_collective: Callable[[Rank, Collective], Collective],
    wrap_store: Callable[[Rank, ParameterStore], ParameterStore],
) -> Links:
    turns = world.turns
    device = world.device
    timeout_s = plan.timeout_s
    collective: Collective | None = None
    store: ParameterStore | None = None
    peers: Peers | None = None
    if channel_of(plan.mode) is Channel.PEERS:
        peers = InProcessPeers(world.peers, rank, turns=turns, timeout_s=timeout_s, device=device)
    elif server is None:
        met = InProcessCollective(world.meeting, rank, turns=turns, timeout_s=timeout_s, device=device)
        collective = wrap_collective(rank, met)
    else:
        plain = InProcessStore(server, rank, world.mail, turns=turns, timeout_s=timeout_s, device=device)
        store = wrap_store(rank, plain)
    return Links(
        rank=rank, world_size=plan.num_workers, clock=turns, collective=collective, store=store, peers=peers
    )


def _host(context: WorkerContext, replica: Replica) -> ShmStoreHost | TcpStoreHost:
    layout = replica.arena.layout
    state = replica.arena.state
    if context.plan.transport is Transport.CUDA_IPC:
        assert context.world is not None, "the launcher makes the shared words"
        return CudaStoreHost(context.world, numel=layout.numel, dtype=layout.dtype, device=state.device)
    shape = push_format(context.plan, layout, Rank(0))
    push_bytes = None if shape is None else shape.slot_bytes
    if context.plan.transport is Transport.SHM:
        assert context.world is not None, "the launcher makes the shared memory"
        return ShmStoreHost(context.world, numel=layout.numel, dtype=layout.dtype, push_bytes=push_bytes)
    assert context.listener is not None, "the launcher opens the store's port"
    return TcpStoreHost(
        context.listener,
        num_workers=context.plan.num_workers,
        numel=layout.numel,
        dtype=layout.dtype,
        token=context.token,
        timeout_s=context.plan.timeout_s,
        push_bytes=push_bytes,
        tls=context.tls,
    )
