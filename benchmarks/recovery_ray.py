"""The peer Ray Train: its controller restarts the whole group from the newest reported checkpoint.

Run as `python -m benchmarks.recovery_ray FOLDER WORKERS`, with RAY_TRAIN_V2_ENABLED=1. Ends with its stdin,
so that nothing of Ray stays behind.
"""

import sys
import tempfile
import threading
from pathlib import Path

import ray
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from benchmarks.recovery_model import CHECKPOINT_EVERY, Trainee


def loop(config: dict[str, str]) -> None:
    folder = Path(config["folder"])
    trainee = Trainee(folder)
    step = 0 if train.get_checkpoint() is None else trainee.load()
    while True:
        for gradient in trainee.gradients():
            dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
            gradient.div_(dist.get_world_size())
        trainee.commit(step)
        step += 1
        if step % CHECKPOINT_EVERY == 0:
            _report(trainee, folder, step)


def _report(trainee: Trainee, folder: Path, step: int) -> None:
    if train.get_context().get_world_rank() != 0:
        train.report({"step": step})
        return
    trainee.save(step)
    with tempfile.TemporaryDirectory() as copy:
        (Path(copy) / "checkpoint.npz").write_bytes((folder / "checkpoint.npz").read_bytes())
        train.report({"step": step}, checkpoint=Checkpoint.from_directory(copy))


def main() -> None:
    folder, workers = sys.argv[1], int(sys.argv[2])
    ray.init(num_cpus=workers + 1, include_dashboard=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"folder": folder},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=-1)),
    )
    threading.Thread(target=trainer.fit, daemon=True).start()
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
