"""Scenarios nan-gradient and corrupt-checkpoint: damaged data is detected and never used.

nan-gradient: the gradient of one shard is NaN at some steps. corrupt-checkpoint: a byte of the newest
checkpoint is flipped, and the run resumes from the one before.
"""

import dataclasses
import subprocess
import sys
from pathlib import Path

from paceline.core import environ
from paceline.core.errors import TrainingError
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, exactly
from paceline.faults.scenarios.measurements import proofs
from paceline.faults.scenarios.training import default_plan, events_of, training
from paceline.plan.plan import OnNan, Plan
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.training.run import load_resumable

NAN_WORKERS = 3
SHARDS = 4
NAN_STEPS = 60
BAD_SHARD = 2
FIRST_BAD = 20
BAD_STEPS_APART = 10
NAN_GRADIENT_TIMES = 3


def nan_gradient(run_dir: Path, times: int, say: ScenarioReporter) -> list[Expectation]:
    """Once with the rule to stop, and `times` such steps with the rule to skip."""
    what, code = _stopped(run_dir.with_name(f"{run_dir.name}-stop"))
    say(f"--on-nan stop: {what}")
    names = f"step {FIRST_BAD}" in what and f"shard {BAD_SHARD}" in what
    stopped = [
        Expectation("with --on-nan stop the error names step and shard", "it does", what, names),
        exactly("its exit code", code, 5),
    ]
    say.settled(stopped)  # that part is over
    bad = [FIRST_BAD + BAD_STEPS_APART * number for number in range(times)]
    plan = _plan(OnNan.SKIP, bad, steps=max(NAN_STEPS, bad[-1] + BAD_STEPS_APART))
    with training(plan, run_dir) as run:
        history = run.finish(60 + plan.steps * plan.pace_s, early=False)
    skipped = events_of(history, "step_skipped")
    said = sorted({(int(str(e.fields["step"])), str(e.fields["shards"])) for e in skipped})
    say(f"--on-nan skip: steps {', '.join(str(step) for step, _ in said)} were left out")
    skips = [
        exactly("steps that were left out, and whose shard it was", said, [(s, str(BAD_SHARD)) for s in bad]),
        exactly("workers that decided so", len({event.who for event in skipped}), NAN_WORKERS),
        exactly(
            "the run's outcome", str(events_of(history, "run_finished")[-1].fields["outcome"]), "finished"
        ),
    ]
    return [*stopped, *say.settled(skips), *proofs(run_dir, history, say)]


def _stopped(run_dir: Path) -> tuple[str, int]:
    """What the run says that stops at the first such step, and its exit code."""
    with training(_plan(OnNan.STOP, [FIRST_BAD], steps=NAN_STEPS), run_dir) as run:
        try:
            run.finish(60, early=False)
        except TrainingError as error:
            return error.what, int(error.exit_code)
    return "the run did not fail", 0


def _plan(on_nan: OnNan, bad: list[int], *, steps: int) -> Plan:
    usual = default_plan(workers=NAN_WORKERS, steps=steps, pace_s=0.02, shards=SHARDS)
    rules = tuple(
        ByzantineRule(attack=Attack.NAN, worker=BAD_SHARD, first_step=step, end_step=step + 1) for step in bad
    )
    return dataclasses.replace(
        usual, byzantine=rules, strategy=dataclasses.replace(usual.strategy, on_nan=on_nan)
    )


WORKERS = 3
STEPS = 160
EVERY = 20
CORRUPT_CHECKPOINT_TIMES = 1
BEFORE = 3  # checkpoints that are there when the run is stopped


def corrupt_checkpoint(run_dir: Path, times: int, say: ScenarioReporter) -> list[Expectation]:
    """`times` resumes, each with a damaged newest checkpoint; the last one goes on to the end."""
    plan = dataclasses.replace(
        default_plan(workers=WORKERS, steps=STEPS, pace_s=0.02), checkpoint_every=EVERY
    )
    with training(plan, run_dir) as run:
        run.until(lambda history: len(events_of(history, "checkpoint")) >= BEFORE, "there are checkpoints")
        run.finish(30, early=True)
    damaged: list[str] = []
    used: list[str] = []
    warned: list[bool] = []
    for number in range(times):
        newest = _flip_a_byte(run_dir)
        damaged.append(newest)
        used.append(load_resumable(run_dir)[1].folder.name)
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
