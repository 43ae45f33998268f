"""`--launcher virtual`: all workers of a run take turns in one process, with logs and checkpoints.

It is the same loop, strategies, server, logs and checkpoints as with processes; a step takes its pace times
its slowness, and nothing else takes any time. So a run of many slow workers ends as fast as one processor
(or GPU) can compute their gradients, and its schedule is the same every time.
"""

import os
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.checkpoints.snapshot import read_snapshot
from paceline.core.clock import SystemClock
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import EventLog, Log
from paceline.plan.catalog import Channel
from paceline.strategies.port import Strategy
from paceline.sync.assignment import WorkUnit
from paceline.tasks.port import Batch, Task
from paceline.transport.arena import Arena
from paceline.transport.virtual_time import Turns
from paceline.worker.checkpointing import (
    EndSaver,
    RowSaver,
    ServerSaver,
    WorkerSaver,
    restore_worker,
    writer_for,
)
from paceline.worker.context import WorkerContext, open_log
from paceline.worker.control import WorkerControl
from paceline.worker.entry.virtual import Incidents, VirtualCluster
from paceline.worker.evaluation import Evaluator
from paceline.worker.gradient import GradientSource, Source, Times
from paceline.worker.loop import Control, LoopResult, Saver, Worker
from paceline.worker.participant import evaluate, server_report, state_hash
from paceline.worker.replica import Replica
from paceline.worker.reporting import Report

# All workers that are ready at the same moment of virtual time register; then one pass
# of `torch.func` computes their losses and gradients, each on its own parameters and
# samples. On a GPU this costs little more than one worker's pass.
# The numbers are those of batched kernels: equal up to rounding, not bit by bit.


class StackedSource:
    """Gradient source shared by the workers of one process; each worker has its own `source()`."""

    def __init__(self, single: GradientSource, task: Task, turns: Turns) -> None:
        self.turns = turns
        self._single = single
        self._task = task
        self._requested: dict[int, tuple[Replica, WorkUnit]] = {}  # by the replica's address
        self._losses: dict[int, float] = {}

    def source(self) -> "_OneOfMany":
        return _OneOfMany(self)

    def ask(self, replica: Replica, share: WorkUnit) -> None:
        replica.step = share.step
        self._requested[id(replica)] = replica, share

    def loss_of(self, replica: Replica) -> float:
        """The loss of a registered replica; the first call computes all of them."""
        if id(replica) not in self._losses:
            requested = list(self._requested.values())
            self._requested = {}
            self._compute(requested)
        return self._losses.pop(id(replica))

    def _compute(self, requested: Sequence[tuple[Replica, WorkUnit]]) -> None:
        batches = [self._single.batch_of(share) for _, share in requested]
        replicas = [replica for replica, _ in requested]
        stacked = _stack(batches)
        if stacked is None or len(requested) == 1:  # unequal batches have no common shape
            losses = [self._single.compute(replica, share) for replica, share in requested]
        else:
            losses = self._at_once(replicas, stacked).tolist()
        self._losses |= {id(replica): loss for replica, loss in zip(replicas, losses, strict=True)}

    def _at_once(self, replicas: Sequence[Replica], batch: Batch) -> Tensor:
        arenas = [replica.arena for replica in replicas]
        states = torch.stack([arena.state for arena in arenas])
        layout = arenas[0].layout
        count = len(arenas)
        parameters = {p.name: p.view_of_many(states) for p in layout.parameters}
        buffers = {p.name: p.view_of_many(states) for p in layout.buffers}
        counters = _stack_counters(arenas)
        model = _WithLoss(self._task, arenas[0].module)

        def loss(own: Mapping[str, Tensor], rest: Mapping[str, Tensor], samples: Batch) -> Tensor:
            named = {f"model.{name}": tensor for name, tensor in (*own.items(), *rest.items())}
            result: Tensor = functional_call(model, named, (samples,))
            return result

        compute = vmap(grad_and_value(loss), randomness="different")
        gradients, losses = compute(parameters, {**buffers, **counters}, batch)
        stacked_gradients = states.new_zeros((count, layout.buffers_start))
        for piece in layout.parameters:
            piece.view_of_many(stacked_gradients).copy_(gradients[piece.name])
        _hand_out(arenas, stacked_gradients, states, counters)
        values: Tensor = losses.detach()
        return values


class _OneOfMany:
    """One worker's source: registers, lets all others register, then takes its own loss."""

    def __init__(self, shared: StackedSource) -> None:
        self._shared = shared
        self.times_ns = Times(0, 0, 0, 0)

    def compute(self, replica: Replica, share: WorkUnit, check: Callable[[], None] = lambda: None) -> float:
        self._shared.ask(replica, share)
        self._shared.turns.sleep(0.0)  # the turn goes to all other workers that are ready now
        now_ns = self._shared.turns.now_ns()
        self.times_ns = Times(now_ns, now_ns, now_ns, now_ns)
        loss = self._shared.loss_of(replica)
        check()  # only now: the pass is shared, forward and backward in one
        return loss


class _WithLoss(nn.Module):
    """The task's loss as a module, so that functional_call can put other parameters into the model."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task = task
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return self._task.loss(self.model, batch)


def _stack(batches: Sequence[Batch]) -> "Batch | None":
    flat = [tree_flatten(batch) for batch in batches]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    if any(len({leaf.shape for leaf in column}) > 1 for column in columns):
        return None
    stacked: Batch = tree_unflatten([torch.stack(column) for column in columns], flat[0][1])
    return stacked


def _stack_counters(arenas: Sequence[Arena]) -> dict[str, Tensor]:
    """Buffers that are no floating-point numbers, such as batch norm's count of batches."""
    names = [name for name, b in arenas[0].module.named_buffers() if not b.is_floating_point()]
    return {name: torch.stack([arena.module.get_buffer(name) for arena in arenas]) for name in names}


def _hand_out(
    arenas: Sequence[Arena], gradients: Tensor, states: Tensor, counters: Mapping[str, Tensor]
) -> None:
    """Every worker gets its own gradient, and the buffers as its forward pass left them."""
    layout = arenas[0].layout
    torch._foreach_copy_([arena.gradient_part for arena in arenas], list(gradients.unbind()))
    if layout.buffers:
        kept = slice(layout.buffers_start, layout.tail_start)
        torch._foreach_copy_([arena.state[kept] for arena in arenas], list(states[:, kept].unbind()))
    for number, arena in enumerate(arenas):
        arena.bind_whole_gradient()
        for name, stacked in counters.items():
            arena.module.get_buffer(name).copy_(stacked[number])


def run_virtual_workers(context: WorkerContext, report: Callable[[Report], None]) -> None:
    """Run all participants of the plan to their end, and report for each."""
    participants = _Participants(context, report)
    done = participants.run()
    for error in done.errors:
        if error is not None:
            raise error
    for facts in participants.reports():
        report(facts)


class _Participants(VirtualCluster):
    def __init__(self, context: WorkerContext, report: Callable[[Report], None]) -> None:
        self._context = context
        self._send_report = report
        self._logs: list[EventLog] = []
        self._results: dict[int, LoopResult] = {}
        # Starts at the launcher's current time, so that all times of the log have one origin.
        self._began_ns = SystemClock().now_ns()
        super().__init__(context.plan, Incidents(), turns=Turns(self._began_ns))
        self._stacked: StackedSource | None = None
        if context.plan.vmap:
            single = GradientSource(context.plan, self._task, self._device, self._turns)
            self._stacked = StackedSource(single, self._task, self._turns)
        self._server_saver: ServerSaver | None = None
        if self._server is not None:
            if context.resume_from is not None:
                self._server.restore(read_snapshot(context.resume_from, "server-0"))
            log = self._logs[0]
            log.write("worker_started", pid=os.getpid(), clock=self._server.version)
            self._server_saver = ServerSaver(
                context.plan, self._server, root=context.checkpoints, log=log, report=report
            )
            evaluate = self._server.on_applied
            save = self._server_saver.maybe_save

            def on_applied() -> None:
                evaluate()
                save()

            self._server.on_applied = on_applied

    def reports(self) -> list[Report]:
        """Reports that the participants would have sent as separate processes."""
        reports = [self._of_worker(rank) for rank in sorted(self._results)]
        if self._server is not None:
            reports.append(self._of_server())
        for log in self._logs:
            log.close()
        return reports

    def _of_worker(self, rank: int) -> Report:
        result = self._results[rank]
        replica = self._run.replicas[rank]
        steps_s = self._run.ended_s[rank] - self._began_ns / 1e9
        facts: Report = {"who": f"worker-{rank}", "steps": result.finished, "stopped": result.was_stopped}
        facts["steps_s"] = steps_s
        if self._server is None:
            facts["state_sha256"] = state_hash(replica.arena.named_state())
            self._evaluators[rank].conclude(facts)
            if rank == 0:
                facts["metrics"] = evaluate(self._task, replica.arena.module, self._context.run_dir)
        return facts

    def _of_server(self) -> Report:
        assert self._server is not None, "asked only where there is a server"
        assert self._server_saver is not None, "a server has a saver"
        self._server_saver.save()
        self._logs[0].write("worker_finished", steps=self._server.version, reason="done")
        facts = server_report(self._server, self._task, self._plan, self._context.run_dir)
        return {"who": "server-0", **facts}

    def _restored(self, worker: Worker) -> StepClock:
        first = StepClock(0)
        folder = self._context.resume_from
        if folder is not None and self._server is not None:
            first = StepClock(self._server.clocks[worker.rank])
        elif folder is not None:
            saved = read_snapshot(folder, f"worker-{worker.rank}")
            first = restore_worker(worker.replica, worker.strategy, saved)
            assert isinstance(worker.saver, WorkerSaver), "a worker without a server saves itself"
            worker.saver.begin_at(StepClock(saved.facts["at"]))
            if isinstance(worker.evaluator, Evaluator):
                worker.evaluator.record.restore(saved)
        worker.log.write("worker_started", pid=os.getpid(), clock=first)
        return first

    def _ended(self, worker: Worker, result: LoopResult) -> None:
        if isinstance(worker.saver, EndSaver):
            worker.saver.save_at_end(result.finished)
        if isinstance(worker.saver, WorkerSaver):
            worker.saver.close()
        self._results[worker.rank] = result
        reason = "stopped" if result.was_stopped else "done"
        worker.log.write("worker_finished", steps=result.finished, reason=reason)

    def _new_source(self) -> Source:
        return super()._new_source() if self._stacked is None else self._stacked.source()

    def _new_control(self, rank: Rank, replica: Replica) -> Control:
        return WorkerControl(
            self._context.control, rank, lambda text: self._report({"ev": "note", "text": text})
        )

    def _report(self, report: Report) -> None:
        self._send_report(report)

    def _new_saver(self, rank: Rank, replica: Replica, strategy: Strategy, log: Log) -> Saver:
        if self._server is not None:
            return RowSaver(self._plan, log)
        kind = EndSaver if strategy.channel is Channel.PEERS else WorkerSaver
        plan = self._plan
        root = self._context.checkpoints
        writer = writer_for(plan, root, f"worker-{rank}", participants=plan.num_workers)
        saver = kind(plan, replica, strategy, log=log, writer=writer, report=self._report)
        if isinstance(evaluator := self._evaluators[rank], Evaluator):
            saver.also = evaluator.record.live
        return saver

    def _server_log(self) -> Log:
        return self._opened("server-0")

    def _worker_log(self, rank: Rank) -> Log:
        return self._opened(f"worker-{rank}")

    def _opened(self, participant: str) -> EventLog:
        log = open_log(self._plan, self._context.run_dir, participant, self._turns)
        self._logs.append(log)
        return log
