"""Synchronous training equals a plain torch DDP script on the same samples, bit by bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.fixtures.processes.command import ROOT
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.checkpoints.catalog import newest_complete
from paceline.launchers.local import LocalLauncher
from paceline.worker.participant import state_hash

STEPS, BATCH, SEED = 200, 32, 11
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")  # as the model orders them; safetensors sorts

# No Paceline here but the task and the rule by which samples are chosen.
SCRIPT = f"""
import os
import sys
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from paceline.sync.samples import SampleStream, slice_of
from paceline.tasks.xor import XorTask

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{{folder}}/meet", rank=rank, world_size=2)
task = XorTask(seed={SEED})
torch.manual_seed({SEED})
model = DistributedDataParallel(task.model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
samples = task.samples()
stream = SampleStream(num_samples=len(samples), seed={SEED})
for step in range({STEPS}):
    batch = samples.batch(stream.take(*slice_of(rank, step, ({BATCH}, {BATCH}))))
    optimizer.zero_grad()
    task.loss(model, batch).backward()
    optimizer.step()
save_file(model.module.state_dict(), f"{{folder}}/{{rank}}.safetensors")
dist.barrier()
os._exit(0)  # in torch's and the interpreter's own way out threads may end in a wrong order, and abort it
"""


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The parameters that the script ends with, in both of its processes."""
    folder = tmp_path_factory.mktemp("plain")
    script = folder / "plain_ddp.py"
    script.write_text(SCRIPT)
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    messages = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], messages
    first, second = (load_file(folder / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    return first


@pytest.mark.parametrize(
    ("mode", "transport"),
    [("ssgd", "shm"), ("ssgd", "gloo"), ("ddp", "gloo"), ("ps", "shm"), ("ps", "tcp")],
)
def test_after_200_float32_steps_every_bit_is_plain_torchs(
    mode: str, transport: str, torchs: dict[str, torch.Tensor], launcher: LocalLauncher, tmp_path: Path
) -> None:
    outcome = warm_paceline(
        launcher,
        *("train", "--task", "xor", "--mode", mode, "--transport", transport, "--num-workers", "2"),
        *("--steps", str(STEPS), "--batch-size", str(BATCH), "--seed", str(SEED)),
        *("--run-dir", "run", "-q"),
        folder=tmp_path,
    )
    assert outcome.code == 0, outcome.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["state_sha256"].values()) == {state_hash({name: torchs[name] for name in NAMES})}
    checkpoint = newest_complete(tmp_path / "run" / "checkpoints", 2)
    assert checkpoint is not None
    (saved, *_) = sorted(checkpoint.folder.glob("*.safetensors"))
    tensors = load_file(saved)
    for name, expected in torchs.items():
        assert tensors[name].dtype == torch.float32
        assert tensors[name].numpy().tobytes() == expected.numpy().tobytes()
