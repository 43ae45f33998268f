"""The peer: plain torch on the same network and images, alone or as DDP over gloo, as torch's manual has it.

Run as `python -m benchmarks.cifar_peer RANKS BATCH STEPS`; prints images/s of all ranks together, measured
after a warm-up. One thread per process, torch's own Adam, the task's own loss.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.tasks.cifar10.task import Cifar10Task

WARM_UP = 2
IMAGES = 5000


def rank_main(rank: int, ranks: int, batch: int, steps: int, store: str, out: "Queue[float]") -> None:
    torch.set_num_threads(1)
    task = Cifar10Task(seed=0, data="synthetic", subset=IMAGES, test_subset=10)
    torch.manual_seed(0)
    model: nn.Module = task.model()
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pictures, labels = task.samples().columns
    started = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            started = time.perf_counter()
        low = (step * ranks + rank) * batch % (IMAGES - batch)
        optimizer.zero_grad()
        loss = task.loss(model, (pictures[low : low + batch], labels[low : low + batch]))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        loss.item()
    out.put(batch * steps / (time.perf_counter() - started))
    if ranks > 1:
        dist.destroy_process_group()


def main() -> None:
    ranks, batch, steps = (int(a) for a in sys.argv[1:])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("fork")
    out: Queue[float] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=rank_main, args=(rank, ranks, batch, steps, store, out))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        print(sum(out.get() for _ in processes))
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
