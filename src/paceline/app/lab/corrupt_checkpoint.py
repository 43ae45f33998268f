"""Scenario corrupt-checkpoint: a byte of the newest checkpoint changes. It is not used, and that is said."""

import dataclasses
import subprocess
import sys
from pathlib import Path

from paceline import environ
from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import events_of, training, usual_plan
from paceline.app.train import resumable
from paceline.errors import TrainingError

WORKERS, STEPS, EVERY = 3, 160, 20
USUAL_TIMES = 1
BEFORE = 3  # checkpoints that are there when the run is stopped


def corrupt_checkpoint(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    """`times` resumes, each with a damaged newest checkpoint; the last one goes on to the end."""
    plan = dataclasses.replace(usual_plan(workers=WORKERS, steps=STEPS, pace_s=0.02), checkpoint_every=EVERY)
    with training(plan, run_dir) as run:
        run.until(lambda history: len(events_of(history, "checkpoint")) >= BEFORE, "there are checkpoints")
        run.finish(30, early=True)
    damaged: list[str] = []
    used: list[str] = []
    warned: list[bool] = []
    for number in range(times):
        newest = _flip_a_byte(run_dir)
        damaged.append(newest)
        used.append(resumable(run_dir)[1].folder.name)
        said = _resume(run_dir)
        warned.append(f"warning: checkpoint {newest} is incomplete or damaged" in said)
        say(f"resume {number + 1} of {times}: {newest} is damaged, {used[-1]} was used")
        say.so_far(_judge(damaged, used, warned))
    history = run.history()
    ended = str(events_of(history, "run_finished")[-1].fields["outcome"])
    outcome = exactly("the run's outcome", ended, "finished")
    return [*say.settled([*_judge(damaged, used, warned), outcome]), *proofs(run_dir, history, say)]


def _judge(damaged: list[str], used: list[str], warned: list[bool]) -> list[Expectation]:
    return [
        exactly("resumes that warned of the damaged checkpoint", sum(warned), len(damaged)),
        Expectation(
            "the one before it was used",
            f"older than {', '.join(damaged)}",
            ", ".join(used),
            all(name < newest for name, newest in zip(used, damaged, strict=True)),
        ),
    ]


def _flip_a_byte(run_dir: Path) -> str:
    """Of the newest checkpoint; its name."""
    newest = max((run_dir / "checkpoints").glob("at-*"))
    path = max(newest.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    return newest.name


def _resume(run_dir: Path) -> str:
    """As a user would; what the command said."""
    command = [sys.executable, "-m", "paceline", "train", "--resume", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ.for_child())
    if done.returncode:
        raise TrainingError(f"the run could not be resumed: {done.stderr[-500:]}", f"look at {run_dir}")
    return done.stderr
