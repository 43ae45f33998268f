"""The life of a participant, and those of a run that keeps its workers: a worker and its server.

`run_participant` is the life of every worker and server: the event `worker_started`, training, the event
`worker_finished`, and one report to the launcher with the SHA-256 of the final state and, from whoever holds
the final model, the task's metrics. What differs between participants are its arguments. Elastic ones are in
elastic/participant.py, elastic/fsdp.py and server/participants.py; `elastic_body` says which is whose.
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
from paceline.worker.loop import LoopResult, Saver
from paceline.worker.reporting import Report
from paceline.worker.self_monitor import device_usage, monitor_self, sample_cost, with_self_monitor
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import BuiltWorker, build_server, build_worker

_REFUSED = frozenset({"", ".", "..", "plan.json", "result.json"})


def write_task_files(task: Task, metrics: Mapping[str, float], run_dir: Path) -> None:
    """Called by whoever holds the final model, once."""
    if not isinstance(task, LeavingFiles):
        return
    for name, content in task.files(metrics).items():
        if Path(name).name != name or name in _REFUSED or name.startswith("events."):
            raise TrainingError(
                f"the task wants to leave a file {name!r}, which is no name for a file of its own",
                "let files() return plain names, such as confusion_matrix.json",
            )
        try:
            write_durably(run_dir / name, [content])
        except OSError as error:
            raise TrainingError(
                f"cannot write {run_dir / name}: {error.strerror}",
                f"make room; the trained weights are in {run_dir / 'checkpoints'}",
            ) from error


Trained = TypeVar("Trained")
_NO_FIELDS: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a participant says at its end, in its last event and in its report."""

    steps: int
    reason: str | None  # done, stopped or left; None: it found all work done, and writes no event
    facts: Callable[[], Report]  # of the report; asked for once the log is closed
    fields: Mapping[str, Scalar] = field(default_factory=dict)  # further ones of the event


def _nothing() -> None:
    """For a participant that has nothing to let go of."""


def run_participant(
    log: Log,
    report: Callable[[Report], None],
    *,
    clock: int,  # steps or updates behind it
    about: Mapping[str, Scalar] = _NO_FIELDS,  # further fields of its first event
    train: Callable[[], Trained],
    conclude: Callable[[Trained], Ending],
    release: Callable[[], None] = _nothing,  # what is held while it trains, also if that fails
    leave: Callable[[], None] = _nothing,  # what is held until its facts are known, also if anything fails
) -> None:
    """The life of every participant: it says that it starts, trains, says how it ended, and reports.

    If anything fails there is neither a last event nor a report: whoever runs the process tells why.
    """
    log.write("worker_started", pid=os.getpid(), clock=clock, **about)
    try:
        try:
            trained = train()
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
    """What a worker's loop did, and how long that took."""

    finished: StepClock
    was_stopped: bool
    seconds: float

    @property
    def facts(self) -> Report:
        """With which every worker's report begins."""
        return {"steps": self.finished, "stopped": self.was_stopped, "steps_s": self.seconds}


def timed(clock: Clock, run: Callable[[], LoopResult]) -> TimedRun:
    started_ns = clock.now_ns()
    ran = run()
    return TimedRun(ran.finished, ran.was_stopped, (clock.now_ns() - started_ns) / 1e9)


def work(rank: Rank, seat: WorkerContext, report: Callable[[Report], None]) -> None:
    """A worker of a run that keeps its workers."""
    built = build_worker(seat, rank, lambda text: report({"ev": "note", "text": text}), report)
    worker = built.worker
    of_sample = sample_cost(built.task)
    tokens = {name: value for name, value in of_sample.items() if name == "tokens_per_sample"}

    def loop() -> LoopResult:
        with monitor_self(seat, f"worker-{rank}"):
            return worker.run(built.first)

    run_participant(
        worker.log,
        report,
        clock=built.first,
        about={"node": socket.gethostname(), **tokens},
        train=lambda: timed(worker.clock, loop),
        release=lambda: _finish_writing(worker.saver),  # what was saved must not be lost with a peer
        conclude=lambda ran: _conclude_work(built, rank, seat, ran, of_sample),
    )


def _conclude_work(
    built: BuiltWorker, rank: Rank, seat: WorkerContext, ran: TimedRun, of_sample: Mapping[str, Scalar]
) -> Ending:
    worker = built.worker
    used = device_usage(device_of(worker.replica.arena.module))  # by training: before anything is evaluated
    facts: Report = {**ran.facts, **of_sample, **used}
    if built.channel is not Channel.STORE:
        facts["state_sha256"] = state_hash(worker.replica.whole_state())
        if isinstance(worker.saver, EndSaver):
            worker.saver.save_at_end(ran.finished)
            _finish_writing(worker.saver)
        worker.evaluator.conclude(facts)
        if rank == 0 or is_split(seat.plan.mode):  # a model in parts computes only where all of them are
            metrics = evaluate(built.task, worker.replica.arena.module, seat.run_dir if rank == 0 else None)
            facts |= {"metrics": metrics} if rank == 0 else {}
    worker.strategy.close()
    peak = {name: value for name, value in used.items() if name == "peak_device_bytes"}
    reason = "stopped" if ran.was_stopped else "done"
    return Ending(steps=ran.finished, reason=reason, fields=peak, facts=lambda: facts)


def _finish_writing(saver: Saver) -> None:
    if isinstance(saver, WorkerSaver):
        saver.close()


def serve(seat: WorkerContext, report: Callable[[Report], None]) -> None:
    """The parameter server of a run that keeps its workers."""
    built = build_server(seat, report)
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
            facts=lambda: server_report(server, built.task, seat.plan, seat.run_dir),
        ),
    )


def server_report(server: ParameterServer, task: Task, plan: Plan, run_dir: Path) -> Report:
    """What a server reports at its end; leaves the best weights in its replica where the run keeps them."""
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


def elastic_body(plan: Plan, who: str) -> ParticipantBody:
    # Imported when it is asked for: in the process that forks, once, and not for runs without a coordinator.
    if who.startswith("server-"):
        from paceline.worker.server.participants import serve_elastic

        return partial(serve_elastic, who)
    index = int(who.removeprefix("worker-"))
    if server_names(plan):
        from paceline.worker.server.participants import work_with_servers

        return with_self_monitor(who, partial(work_with_servers, index))
    if is_split(plan.mode):
        from paceline.worker.elastic.fsdp import work_fsdp

        return with_self_monitor(who, partial(work_fsdp, index))
    from paceline.worker.elastic.participant import work_elastic

    return with_self_monitor(who, partial(work_elastic, index))
