"""A worker of the peers in benchmarks/hosts.py: plain torch DDP, torchrun with checkpoints, or torchft.

Run on a host as `python -m benchmarks.hosts_worker PEER HIDDEN PACE_S HOST_NAME`, with the variables that
torchrun sets, or TORCHFT_LIGHTHOUSE. The model, the batch and the optimizer are those of Paceline's side;
commits and checkpoints are files in the host's own folder (recovery_model.py).
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.recovery_model import CHECKPOINT_EVERY, Trainee
from paceline.tasks.xor import XorTask

BATCH, LAYERS = 32, 2
TORCHFT_TIMEOUT_S = 5.0


def trainee_of(hidden: int, pace_s: float) -> Trainee:
    task = XorTask(seed=0, hidden=hidden, layers=LAYERS)
    points, labels = task.samples().columns

    def loss(model: nn.Module) -> Tensor:
        chosen = torch.randint(len(points), (BATCH,))
        return task.loss(model, (points[chosen], labels[chosen]))

    return Trainee(Path(), build=task.model, loss=loss, step_s=pace_s)


def ddp(trainee: Trainee, _: str) -> None:
    """Plain DistributedDataParallel over gloo, started once; a lost worker ends it."""
    dist.init_process_group("gloo")
    _train_ddp(trainee, 0, lambda _: None)


def torchrun(trainee: Trainee, _: str) -> None:
    """The same under torchrun, whose agents restart all workers from the newest common checkpoint."""
    dist.init_process_group("gloo")
    behind = torch.tensor([trainee.load()])
    dist.all_reduce(behind, op=dist.ReduceOp.MIN)
    _train_ddp(trainee, int(behind), trainee.save)


def _train_ddp(trainee: Trainee, step: int, save: Callable[[int], None]) -> None:
    model = DistributedDataParallel(trainee.model)
    while True:
        trainee.gradients(model)
        trainee.commit(step)
        step += 1
        if step % CHECKPOINT_EVERY == 0:
            save(step)


def torchft(trainee: Trainee, host_name: str) -> None:
    """One replica group of one worker, as in torchft's examples."""
    from torchft import Manager, ProcessGroupGloo

    # torch.distributed exports TCPStore, but its types do not have it.
    store = dist.TCPStore(host_name, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=TORCHFT_TIMEOUT_S)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=trainee.model.load_state_dict,
        state_dict=trainee.model.state_dict,
        min_replica_size=1,
        timeout=timeout,
        replica_id=host_name,
        store_addr=host_name,
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=host_name,
    )
    while True:
        manager.start_quorum()
        works = [manager.allreduce(gradient) for gradient in trainee.gradients()]
        for work in works:
            work.wait()
        if manager.should_commit():
            trainee.commit(manager.current_step())


PEERS = {"ddp": ddp, "torchrun": torchrun, "torchft": torchft}


def main() -> None:
    peer, hidden, pace_s, host_name = sys.argv[1:]
    PEERS[peer](trainee_of(int(hidden), float(pace_s)), host_name)


if __name__ == "__main__":
    main()
