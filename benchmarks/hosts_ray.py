"""The peer Ray Train in benchmarks/hosts.py: an elastic group that resumes from its newest checkpoint.

Run on the head's host as `python -m benchmarks.hosts_ray HIDDEN PACE_S WORKERS HEAD STORE`. Hosts share no
disk, so checkpoints are in an S3-compatible store on the head's host. Commits are files on the hosts.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import boto3
import ray
import torch.distributed as dist
from botocore.exceptions import EndpointConnectionError
from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]  # pyarrow has no types
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from benchmarks.hosts_worker import trainee_of
from benchmarks.recovery_model import CHECKPOINT_EVERY, Trainee

BUCKET = "runs"
KEY, SECRET, REGION = "test", "test", "us-east-1"
SAVED = Path("checkpoint.npz")


def loop(config: dict[str, float]) -> None:
    os.chdir("/tmp")  # the host's folder
    trainee = trainee_of(int(config["hidden"]), config["pace_s"])
    step = _resume(trainee)
    while True:
        for gradient in trainee.gradients():
            dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
            gradient.div_(dist.get_world_size())
        trainee.commit(step)
        step += 1
        if step % CHECKPOINT_EVERY == 0:
            _report(trainee, step)


def _resume(trainee: Trainee) -> int:
    SAVED.unlink(missing_ok=True)
    newest = train.get_checkpoint()
    if newest is None:
        return 0
    with newest.as_directory() as folder:
        SAVED.write_bytes((Path(folder) / SAVED.name).read_bytes())
    return trainee.load()


def _report(trainee: Trainee, step: int) -> None:
    if train.get_context().get_world_rank() != 0:
        train.report({"step": step})
        return
    trainee.save(step)
    with tempfile.TemporaryDirectory() as copy:
        (Path(copy) / SAVED.name).write_bytes(SAVED.read_bytes())
        train.report({"step": step}, checkpoint=Checkpoint.from_directory(copy))


def _make_bucket(endpoint: str) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name=REGION,
    )
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            return
        except EndpointConnectionError:  # the store is starting
            time.sleep(0.1)


def _connect(head: str) -> None:
    while True:
        try:
            ray.init(address=head)
            return
        except ConnectionError:  # the head is starting
            time.sleep(0.5)


def main() -> None:
    hidden, pace_s, workers, head, store = sys.argv[1:]
    _make_bucket(f"http://{store}")
    _connect(head)
    while ray.cluster_resources().get("CPU", 0) < int(workers):
        time.sleep(0.2)
    files = S3FileSystem(
        endpoint_override=store, scheme="http", access_key=KEY, secret_key=SECRET, region=REGION
    )
    trainer = TorchTrainer(
        loop,
        train_loop_config={"hidden": int(hidden), "pace_s": float(pace_s)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(int(workers) - 1, int(workers)), elastic_resize_monitor_interval_s=1.0
        ),
        run_config=RunConfig(
            name="hosts",
            storage_path=BUCKET,
            storage_filesystem=files,
            failure_config=FailureConfig(max_failures=-1),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
