"""What does one process of a run do from birth to end? Train, or serve; then report.

The last thing a participant does is send one report to its launcher: the
SHA-256 of its final state, and, from whoever holds the final model, the
task's metrics.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.ids import Rank
from paceline.plan.catalog import Channel, is_split
from paceline.plan.plan import Plan
from paceline.tasks.port import Task, device_of
from paceline.worker.loop import Saver
from paceline.worker.measuring import use_of_device, work_of_sample
from paceline.worker.own_look import looking
from paceline.worker.saving import EndSaver, WorkerSaver
from paceline.worker.seat import Seat
from paceline.worker.server import ParameterServer
from paceline.worker.task_files import leave_files
from paceline.worker.telling import Report as Report
from paceline.worker.wiring import build_server, build_worker


def work(rank: Rank, seat: Seat, report: Callable[[Report], None]) -> None:
    built = build_worker(seat, rank, lambda text: report({"ev": "note", "text": text}), report)
    worker = built.worker
    of_sample = work_of_sample(built.task)
    tokens = {name: value for name, value in of_sample.items() if name == "tokens_per_sample"}
    node = socket.gethostname()
    worker.log.write("worker_started", pid=os.getpid(), clock=built.first, node=node, **tokens)
    started_ns = worker.clock.now_ns()
    try:
        with looking(seat, f"worker-{rank}"):
            ran = worker.run(built.first)
        steps_s = (worker.clock.now_ns() - started_ns) / 1e9
    finally:
        _finish_writing(worker.saver)  # also when a peer was lost: what was saved must not be
    used = use_of_device(device_of(worker.replica.arena.module))  # by training: before anything is evaluated
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


def serve(seat: Seat, report: Callable[[Report], None]) -> None:
    built = build_server(seat, report)
    built.log.write("worker_started", pid=os.getpid(), clock=built.server.version)
    built.host.serve(built.server)
    built.saver.save()
    built.log.write("worker_finished", steps=built.server.version, reason="done")
    built.log.close()
    report(facts_of_server(built.server, built.task, seat.plan, seat.run_dir))


def facts_of_server(server: ParameterServer, task: Task, plan: Plan, run_dir: Path) -> Report:
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
        leave_files(task, metrics, run_dir)
    return metrics


def state_hash(state: Mapping[str, Tensor]) -> str:
    """One name for all the bits of a model, in the order of its state_dict."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
