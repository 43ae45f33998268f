"""Life cycle of a participant; the worker and the server of a run with a fixed set of workers.

`run_participant` is the life cycle of every worker and server: the event `worker_started`, training, the
event `worker_finished`, and one report to the launcher with the SHA-256 of the final state and, from the
participant that holds the final model, the task's metrics. Participants differ in its arguments only. Elastic
ones are in elastic/participant.py, elastic/fsdp.py and server/participants.py; `elastic_body` chooses one.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from paceline.core.clock import Clock
from paceline.core.disk import write_durably
from paceline.core.errors import TrainingError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.events.log import Log
from paceline.events.schema import Scalar
from paceline.plan.catalog import Channel, is_split, server_names
from paceline.plan.plan import Plan
from paceline.tasks.port import LeavingFiles, Task, device_of
from paceline.worker.checkpointing import EndSaver, WorkerSaver
from paceline.worker.context import WorkerContext
from paceline.worker.loop import LoopResult, Saver, Steps, drive
from paceline.worker.reporting import Report
from paceline.worker.self_monitor import device_usage, monitor_self, sample_cost, with_self_monitor
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import BuiltWorker, build_server, build_worker

_REFUSED = frozenset({"", ".", "..", "plan.json", "result.json"})


def write_task_files(task: Task, metrics: Mapping[str, float], run_dir: Path) -> None:
    """Called once, by the participant that holds the final model."""
    if not isinstance(task, LeavingFiles):
        return
    for name, content in task.files(metrics).items():
        if Path(name).name != name or name in _REFUSED or name.startswith("events."):
            raise TrainingError(
                f"files() of the task returned {name!r}, which is not a plain file name",
                "let files() return plain names, such as confusion_matrix.json",
            )
        try:
            write_durably(run_dir / name, [content])
        except OSError as error:
            raise TrainingError(
                f"cannot write {run_dir / name}: {error.strerror}",
                f"free disk space; the trained weights are in {run_dir / 'checkpoints'}",
            ) from error


Trained = TypeVar("Trained")
_NO_FIELDS: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Contents of a participant's end event and of its report."""

    steps: int
    reason: str | None  # done, stopped or left; None: it found all work done, and writes no event
    facts: Callable[[], Report]  # of the report; called once the log is closed
    fields: Mapping[str, Scalar] = field(default_factory=dict)  # further ones of the event


def _nothing() -> None:
    """Default for participants without resources to release."""


def run_participant(
    log: Log,
    report: Callable[[Report], None],
    *,
    clock: int,  # steps or updates behind it
    fields: Mapping[str, Scalar] = _NO_FIELDS,  # further fields of its first event
    train: Callable[[], Trained],
    conclude: Callable[[Trained], Ending],
    release: Callable[[], None] = _nothing,  # frees resources of training, also after a failure
    leave: Callable[[], None] = _nothing,  # frees resources of the report, also after any failure
) -> None:
    """Life cycle of a participant that makes its steps itself, or has none."""

    def training() -> Steps[Trained]:
        return train()
        yield  # a generator without steps

    life = participant_steps(
        log,
        report,
        clock=clock,
        fields=fields,
        train=training,
        conclude=conclude,
        release=release,
        leave=leave,
    )
    for _ in life:
        raise AssertionError("training is one call here, not a generator of steps")


def participant_steps(
    log: Log,
    report: Callable[[Report], None],
    *,
    clock: int,
    fields: Mapping[str, Scalar] = _NO_FIELDS,
    train: Callable[[], Steps[Trained]],
    conclude: Callable[[Trained], Ending],
    release: Callable[[], None] = _nothing,
    leave: Callable[[], None] = _nothing,
) -> Steps[None]:
    """Life cycle of every participant: start event, training, end event, report.

    After a failure neither an end event nor a report is written: the entry point reports the error.
    """
    log.write("worker_started", pid=os.getpid(), clock=clock, **fields)
    try:
        try:
            trained = yield from train()
        finally:
            release()
        ending = conclude(trained)
        if ending.reason is not None:
            log.write("worker_finished", steps=ending.steps, reason=ending.reason, **ending.fields)
        log.close()
        facts = ending.facts()
    finally:
        leave()
    report(facts)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Result and duration of a worker's loop."""

    finished: StepClock
    was_stopped: bool
    seconds: float

    @property
    def facts(self) -> Report:
        """First fields of every worker's report."""
        return {"steps": self.finished, "stopped": self.was_stopped, "steps_s": self.seconds}


def timed(clock: Clock, run: Callable[[], LoopResult]) -> TimedRun:
    started_ns = clock.now_ns()
    return _since(clock, started_ns, run())


def timed_steps(clock: Clock, steps: Steps[LoopResult]) -> Steps[TimedRun]:
    started_ns = clock.now_ns()
    return _since(clock, started_ns, (yield from steps))


def _since(clock: Clock, started_ns: int, result: LoopResult) -> TimedRun:
    return TimedRun(result.finished, result.was_stopped, (clock.now_ns() - started_ns) / 1e9)


def build_fixed_worker(rank: Rank, context: WorkerContext, report: Callable[[Report], None]) -> BuiltWorker:
    return build_worker(context, rank, lambda text: report({"ev": "note", "text": text}), report)


def work(rank: Rank, context: WorkerContext, report: Callable[[Report], None]) -> None:
    """A worker of a run that keeps its workers."""
    built = build_fixed_worker(rank, context, report)
    drive(work_steps(built, rank, context, report), built.worker.source)


def work_steps(
    built: BuiltWorker, rank: Rank, context: WorkerContext, report: Callable[[Report], None]
) -> Steps[None]:
    """Its life cycle, in which the driver of the generator computes the gradients."""
    worker = built.worker
    of_sample = sample_cost(built.task)
    tokens = {name: value for name, value in of_sample.items() if name == "tokens_per_sample"}

    def loop() -> Steps[LoopResult]:
        with monitor_self(context, f"worker-{rank}"):
            return (yield from worker.steps(built.first))

    yield from participant_steps(
        worker.log,
        report,
        clock=built.first,
        fields={"node": socket.gethostname(), **tokens},
        train=lambda: timed_steps(worker.clock, loop()),
        release=lambda: _finish_writing(worker.saver),  # a lost peer must not lose what was saved
        conclude=lambda result: _conclude_work(built, rank, context, result, of_sample),
    )


def _conclude_work(
    built: BuiltWorker, rank: Rank, context: WorkerContext, result: TimedRun, of_sample: Mapping[str, Scalar]
) -> Ending:
    worker = built.worker
    used = device_usage(device_of(worker.replica.arena.module))  # read before any evaluation
    counted = built.count_wire()
    wire = {} if counted is None else {"wire_out_bytes": counted.sent, "wire_in_bytes": counted.received}
    facts: Report = {**result.facts, **of_sample, **used, **wire}
    if built.channel is not Channel.STORE:
        facts["state_sha256"] = state_hash(worker.replica.whole_state())
        if isinstance(worker.saver, EndSaver):
            worker.saver.save_at_end(result.finished)
            _finish_writing(worker.saver)
        worker.evaluator.conclude(facts)
        if rank == 0 or is_split(context.plan.mode):  # a model in parts computes only where all of them are
            metrics = evaluate(
                built.task, worker.replica.arena.module, context.run_dir if rank == 0 else None
            )
            facts |= {"metrics": metrics} if rank == 0 else {}
    worker.strategy.close()
    peak = {name: value for name, value in used.items() if name == "peak_device_bytes"}
    reason = "stopped" if result.was_stopped else "done"
    return Ending(steps=result.finished, reason=reason, fields={**peak, **wire}, facts=lambda: facts)


def _finish_writing(saver: Saver) -> None:
    if isinstance(saver, WorkerSaver):
        saver.close()


def serve(context: WorkerContext, report: Callable[[Report], None]) -> None:
    """The parameter server of a run that keeps its workers."""
    built = build_server(context, report)
    server = built.server

    def train() -> None:
        built.host.serve(server)
        built.saver.save()

    run_participant(
        built.log,
        report,
        clock=server.version,
        train=train,
        conclude=lambda _: Ending(
            steps=server.version,
            reason="done",
            facts=lambda: server_report(server, built.task, context.plan, context.run_dir),
        ),
    )


def server_report(server: ParameterServer, task: Task, plan: Plan, run_dir: Path) -> Report:
    """Final report of a server; loads the best weights into its replica if the run keeps them."""
    facts: Report = {
        "steps": server.version,
        "stopped": len(server.applied) < plan.total_gradients,
        "state_sha256": state_hash(server.replica.arena.named_state()),
    }
    if server.evaluations is not None:
        server.evaluations.conclude(facts)
    facts["metrics"] = evaluate(task, server.replica.arena.module, run_dir)
    return facts


def evaluate(task: Task, module: nn.Module, run_dir: Path | None) -> dict[str, float]:
    """The task's metrics; what else it leaves goes into the run folder, if this worker is to write it."""
    module.eval()
    metrics = {name: float(value) for name, value in task.metrics(module).items()}
    if run_dir is not None:
        write_task_files(task, metrics, run_dir)
    return metrics


def state_hash(state: Mapping[str, Tensor]) -> str:
    """One name for all the bits of a model, in the order of its state_dict."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


ParticipantBody = Callable[[WorkerContext, Callable[[Report], None]], None]


def elastic_body(plan: Plan, participant: str) -> ParticipantBody:
    # Imported on demand: once, in the process that forks, and not in runs without a coordinator.
    if participant.startswith("server-"):
        from paceline.worker.server.participants import serve_elastic

        return partial(serve_elastic, participant)
    index = int(participant.removeprefix("worker-"))
    if server_names(plan):
        from paceline.worker.server.participants import work_with_servers

        return with_self_monitor(participant, partial(work_with_servers, index))
    if is_split(plan.mode):
        from paceline.worker.elastic.fsdp import work_fsdp

        return with_self_monitor(participant, partial(work_fsdp, index))
    from paceline.worker.elastic.participant import work_elastic

    return with_self_monitor(participant, partial(work_elastic, index))
