"""What does one process of a run do from birth to end? Train, or serve; then report.

The last thing a participant does is send one report to its launcher: the
SHA-256 of its final state, and, from whoever holds the final model, the
task's metrics.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.core.disk import write_durably
from paceline.core.errors import TrainingError
from paceline.core.ids import Rank
from paceline.plan.catalog import Channel, is_split, server_names
from paceline.plan.plan import Plan
from paceline.tasks.port import LeavingFiles, Task, device_of
from paceline.worker.checkpointing import EndSaver, WorkerSaver
from paceline.worker.context import WorkerContext
from paceline.worker.loop import Saver
from paceline.worker.reporting import Report
from paceline.worker.self_monitor import device_usage, monitor_self, sample_cost, with_self_monitor
from paceline.worker.server.core import ParameterServer
from paceline.worker.wiring import build_server, build_worker

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


def work(rank: Rank, seat: WorkerContext, report: Callable[[Report], None]) -> None:
    built = build_worker(seat, rank, lambda text: report({"ev": "note", "text": text}), report)
    worker = built.worker
    of_sample = sample_cost(built.task)
    tokens = {name: value for name, value in of_sample.items() if name == "tokens_per_sample"}
    node = socket.gethostname()
    worker.log.write("worker_started", pid=os.getpid(), clock=built.first, node=node, **tokens)
    started_ns = worker.clock.now_ns()
    try:
        with monitor_self(seat, f"worker-{rank}"):
            ran = worker.run(built.first)
        steps_s = (worker.clock.now_ns() - started_ns) / 1e9
    finally:
        _finish_writing(worker.saver)  # also when a peer was lost: what was saved must not be
    used = device_usage(device_of(worker.replica.arena.module))  # by training: before anything is evaluated
    facts: Report = {"steps": ran.finished, "stopped": ran.was_stopped, "steps_s": steps_s}
    facts |= {**of_sample, **used}
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
    worker.log.write("worker_finished", steps=ran.finished, reason=reason, **peak)
    worker.log.close()
    report(facts)


def _finish_writing(saver: Saver) -> None:
    if isinstance(saver, WorkerSaver):
        saver.close()


def serve(seat: WorkerContext, report: Callable[[Report], None]) -> None:
    built = build_server(seat, report)
    built.log.write("worker_started", pid=os.getpid(), clock=built.server.version)
    built.host.serve(built.server)
    built.saver.save()
    built.log.write("worker_finished", steps=built.server.version, reason="done")
    built.log.close()
    report(server_report(built.server, built.task, seat.plan, seat.run_dir))


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
