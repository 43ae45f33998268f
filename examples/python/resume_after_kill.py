"""Kill a training run with SIGKILL, and resume it from its newest checkpoint.

The run is a process of its own here, so that this script survives the kill. The resumed run ends
with the same bits as a run without the kill: `paceline replay runs/killed` proves it.
"""

import subprocess
import sys
import time
from pathlib import Path

import paceline

TRAIN = """
import paceline
paceline.train("digits", workers=2, steps=200, pace="10ms", checkpoint_every=20, run_dir="runs/killed")
"""
RUN = Path("runs/killed")

training = subprocess.Popen([sys.executable, "-c", TRAIN])
while training.poll() is None and not (RUN / "checkpoints/at-00000020/worker-1.json").exists():
    time.sleep(0.05)  # until the first checkpoint is written
training.kill()  # kill -9
training.wait()
print("killed; checkpoints:", sorted(path.name for path in RUN.glob("checkpoints/at-*")))

result = paceline.resume(RUN)
print("resumed:", result.steps, "steps,", result.metrics)
