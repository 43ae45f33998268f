"""Worker of benchmarks/lighthouse.py: trains a small model with plain torchft, without paceline.

    TORCHFT_LIGHTHOUSE=http://… python benchmarks/torchft_worker.py NAME LOG.jsonl MIN_REPLICAS STEP_S

One replica group of one worker: torchft's Manager, its optimizer wrapper, gloo,
and a TCPStore of its own in this process. Every step is a line in the log.
"""

import hashlib
import json
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.optim import OptimizerWrapper

WIDTH, BATCH = 256, 32
HASH_EVERY = 20  # steps


def main() -> None:
    name, log, min_replicas, step_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)
    )
    torch.manual_seed(zlib.crc32(name.encode()))  # one model, but different samples for every worker
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # torch.distributed exports TCPStore, but its types do not have it.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=lambda state: _load(state, model, optimizer),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=min_replicas,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        replica_id=name,
    )
    with Path(log).open("w", encoding="utf-8", buffering=1) as lines:
        _train(manager, model, OptimizerWrapper(manager, optimizer), lines, step_s)


def _load(state: dict[str, dict[str, object]], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _train(
    manager: Manager, model: nn.Module, optimizer: OptimizerWrapper, lines: TextIO, step_s: float
) -> None:
    """Train until stopped."""
    while True:
        began_s = time.monotonic()
        optimizer.zero_grad()  # requests a quorum, concurrent with the forward pass
        loss = model(torch.randn(BATCH, 64)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        before = manager.current_step()
        optimizer.step()
        step = manager.current_step()
        record: dict[str, object] = {
            "at_s": time.monotonic(),
            "step": step,
            "is_committed": step > before,
            "members": manager.num_participants(),
        }
        if step % HASH_EVERY == 0:
            record["sha256"] = _hash(model)
        lines.write(json.dumps(record) + "\n")
        time.sleep(max(0.0, began_s + step_s - time.monotonic()))


def _hash(model: nn.Module) -> str:
    result = hashlib.sha256()
    for parameter in model.parameters():
        result.update(parameter.detach().numpy().tobytes())
    return result.hexdigest()[:16]


if __name__ == "__main__":
    main()
