"""The peer: plain torch DDP over gloo, as its own documentation writes it, two processes.

Run as `python -m benchmarks.ddp_peer HIDDEN LAYERS BATCH STEPS`; prints samples/s of both
ranks together, measured after a warm-up. One thread per process, like the other side.
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
from torch.nn.parallel import DistributedDataParallel

from paceline.tasks.xor import XorTask

WARM_UP = 50


def rank_main(rank: int, sizes: tuple[int, int, int, int], store: str, out: "Queue[float]") -> None:
    hidden, layers, batch, steps = sizes
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    task = XorTask(seed=0, hidden=hidden, layers=layers)
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    points, labels = task.samples().columns
    started = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            started = time.perf_counter()
        low = (step * 2 + rank) * batch % (len(points) - batch)
        optimizer.zero_grad()
        loss = task.loss(model, (points[low : low + batch], labels[low : low + batch]))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        loss.item()
    out.put(batch * steps / (time.perf_counter() - started))
    dist.destroy_process_group()


def main() -> None:
    hidden, layers, batch, steps = (int(a) for a in sys.argv[1:])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("fork")
    out: Queue[float] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        sizes = (hidden, layers, batch, steps)
        ranks = [context.Process(target=rank_main, args=(r, sizes, store, out)) for r in range(2)]
        for process in ranks:
            process.start()
        print(sum(out.get() for _ in ranks))
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
