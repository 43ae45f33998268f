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


def nan_gradient(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    """Once with the rule to stop, and `times` such steps with the rule to skip."""
    message, code = _stopped(run_dir.with_name(f"{run_dir.name}-stop"))
    reporter(f"--on-nan stop: {message}")
    names = f"step {FIRST_BAD}" in message and f"shard {BAD_SHARD}" in message
    stopped = [
        Expectation("with --on-nan stop the error names step and shard", "it does", message, names),
        exactly("the command exits with this code", code, 5),
    ]
    reporter.settled(stopped)  # that part is over
    bad = [FIRST_BAD + BAD_STEPS_APART * number for number in range(times)]
    plan = _plan(OnNan.SKIP, bad, steps=max(NAN_STEPS, bad[-1] + BAD_STEPS_APART))
    with training(plan, run_dir) as run:
        history = run.finish(60 + plan.steps * plan.pace_s, early=False)
    skipped = events_of(history, "step_skipped")
    skipped_steps = sorted({(int(str(e.fields["step"])), str(e.fields["shards"])) for e in skipped})
    reporter(f"--on-nan skip: steps {', '.join(str(step) for step, _ in skipped_steps)} were left out")
    skips = [
        exactly(
            "exactly the steps with a NaN are skipped, with their shard",
            skipped_steps,
            [(s, str(BAD_SHARD)) for s in bad],
        ),
        exactly("all workers skip them", len({event.who for event in skipped}), NAN_WORKERS),
        exactly(
            "the run finishes", str(events_of(history, "run_finished")[-1].fields["outcome"]), "finished"
        ),
    ]
    return [*stopped, *reporter.settled(skips), *proofs(run_dir, history, reporter)]


def _stopped(run_dir: Path) -> tuple[str, int]:
    """Output and exit code of the run that stops at the first such step."""
    with training(_plan(OnNan.STOP, [FIRST_BAD], steps=NAN_STEPS), run_dir) as run:
        try:
            run.finish(60, early=False)
        except TrainingError as error:
            return error.what, int(error.exit_code)
    return "the run did not fail", 0


def _plan(on_nan: OnNan, bad: list[int], *, steps: int) -> Plan:
    default = default_plan(workers=NAN_WORKERS, steps=steps, pace_s=0.02, shards=SHARDS)
    rules = tuple(
        ByzantineRule(attack=Attack.NAN, worker=BAD_SHARD, first_step=step, end_step=step + 1) for step in bad
    )
    return dataclasses.replace(
        default, byzantine=rules, strategy=dataclasses.replace(default.strategy, on_nan=on_nan)
    )


WORKERS = 3
STEPS = 160
EVERY = 20
CORRUPT_CHECKPOINT_TIMES = 1
BEFORE = 3  # checkpoints that are there when the run is stopped


def corrupt_checkpoint(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    """`times` resumes, each with a damaged newest checkpoint; the last one continues to the end."""
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
        output = _resume(run_dir)
        warned.append(f"warning: checkpoint {newest} is incomplete or damaged" in output)
        reporter(f"resume {number + 1} of {times}: {newest} is damaged, {used[-1]} was used")
        reporter.so_far(_judge(damaged, used, warned))
    history = run.history()
    ended = str(events_of(history, "run_finished")[-1].fields["outcome"])
    outcome = exactly("the run finishes", ended, "finished")
    return [*reporter.settled([*_judge(damaged, used, warned), outcome]), *proofs(run_dir, history, reporter)]


def _judge(damaged: list[str], used: list[str], warned: list[bool]) -> list[Expectation]:
    return [
        exactly("every resume warns of the damaged checkpoint", sum(warned), len(damaged)),
        Expectation(
            "the previous checkpoint is used",
            f"older than {', '.join(damaged)}",
            ", ".join(used),
            all(name < newest for name, newest in zip(used, damaged, strict=True)),
        ),
    ]


def _flip_a_byte(run_dir: Path) -> str:
    """Flip a byte of the newest checkpoint; returns its name."""
    newest = max((run_dir / "checkpoints").glob("at-*"))
    path = max(newest.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    return newest.name


def _resume(run_dir: Path) -> str:
    """Resume by the command; returns its output."""
    command = [sys.executable, "-m", "paceline", "train", "--resume", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ.for_child())
    if done.returncode:
        raise TrainingError(f"the run could not be resumed: {done.stderr[-500:]}", f"look at {run_dir}")
    return done.stderr
