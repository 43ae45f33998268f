"""The peer torchrun: its agent restarts all workers, which resume from the newest checkpoint.

Run by `torchrun … -m benchmarks.recovery_torchrun FOLDER`.
"""

import sys
from pathlib import Path

import torch.distributed as dist

from benchmarks.recovery_model import CHECKPOINT_EVERY, Trainee


def main() -> None:
    dist.init_process_group("gloo")
    trainee = Trainee(Path(sys.argv[1]))
    step = trainee.load()
    while True:
        for gradient in trainee.gradients():
            dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
            gradient.div_(dist.get_world_size())
        trainee.commit(step)
        step += 1
        if step % CHECKPOINT_EVERY == 0 and dist.get_rank() == 0:
            trainee.save(step)


if __name__ == "__main__":
    main()
