"""Torch baseline: the plain training loop of torch's manual, alone or with DDP, on the same samples.

The model, the loss, the optimizer and the data are the task's; the loop and the averaging are torch's. It
runs in processes of our own (`rank_main`, by launchers/isolated.py) or in those of Ray Train (`ray_loop`).
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core.clock import SystemClock, unix_now_s
from paceline.plan.codec import Json, loads
from paceline.plan.plan import Plan
from paceline.sync.samples import SampleStream, slice_of
from paceline.tasks.optim import build_optimizer
from paceline.tasks.port import Optimizer, Task, keeps_order
from paceline.tasks.torch_adapters import Scheduled, optimizer_of, samples_of
from paceline.transport.torch_dist import wait_for_all
from paceline.worker.wiring import build_task, set_up_torch


def rank_main(order: dict[str, Json], _note: Callable[[str], None]) -> dict[str, Json]:
    """Order: `plan`, `rank`, and `meet`, the path of a new file for the rendezvous of the ranks."""
    plan = loads(str(order["plan"]), where="the benchmark's plan")
    rank = int(str(order["rank"]))
    if plan.num_workers > 1:
        meet = f"file://{order['meet']}"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=plan.num_workers)
    report = _train(plan, rank)
    if plan.num_workers > 1:
        wait_for_all()  # rank 0 evaluates its model meanwhile
    return report


def ray_loop(order: dict[str, Json]) -> dict[str, Json]:
    """The same in a worker of Ray Train, which has made the process group; `cwd`: where a user's task is."""
    plan = loads(str(order["plan"]), where="the benchmark's plan")
    folder = Path(str(order["cwd"]))
    if folder.is_dir():
        os.chdir(folder)
    return _train(plan, dist.get_rank() if plan.num_workers > 1 else 0)


def _train(plan: Plan, rank: int) -> dict[str, Json]:
    """Start time and loss of each step, and the metrics of the model (rank 0)."""
    set_up_torch(plan)
    clock = SystemClock()
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    wrapped: nn.Module = DistributedDataParallel(model) if plan.num_workers > 1 else model
    optimizer = _optimizer(plan, task, model)
    samples = samples_of(task)
    stream = SampleStream(num_samples=len(samples), seed=plan.seed, in_order=keeps_order(samples))
    starts_ns = []
    losses = []
    first_unix_s = unix_now_s()
    for step in range(plan.steps):
        starts_ns.append(clock.now_ns())
        batch = samples.batch(stream.take(*slice_of(rank, step, plan.batch_sizes)))
        model.zero_grad(set_to_none=True)
        loss = task.loss(wrapped, batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if isinstance(optimizer, Scheduled):
            optimizer.begin(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    ended_ns = clock.now_ns()
    model.eval()
    metrics = {name: float(value) for name, value in task.metrics(model).items()} if rank == 0 else {}
    return {
        "first_step_unix_s": first_unix_s,
        "starts_s": [(at - starts_ns[0]) / 1e9 for at in starts_ns],
        "steps_s": (ended_ns - starts_ns[0]) / 1e9,
        "losses": [*losses],
        "metrics": {**metrics},
        "num_samples": len(samples),
        "torch": torch.__version__,
    }


def _optimizer(plan: Plan, task: Task, model: nn.Module) -> Optimizer:
    """The same as in a worker: the one of the plan, or else the task's."""
    if plan.optimizer is not None:
        choice = plan.optimizer
        return build_optimizer(
            choice.name, model.parameters(), lr=choice.lr, weight_decay=choice.weight_decay
        )
    optimizer = optimizer_of(task, model.parameters())
    if plan.lr is not None:
        for group in optimizer.param_groups:
            group["lr"] = plan.lr
    return optimizer
