"""Scenario nan-gradient: one shard's gradient is NaN at one step. Noticed there; never applied."""

import dataclasses
from pathlib import Path

from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import events_of, training, usual_plan
from paceline.errors import TrainingError
from paceline.plan.plan import OnNan, Plan
from paceline.sync.byzantine import Attack, ByzantineRule

WORKERS, SHARDS = 3, 4
STEPS, BAD_SHARD, FIRST_BAD, APART = 60, 2, 20, 10
USUAL_TIMES = 3


def nan_gradient(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    """Once with the rule to stop, and `times` such steps with the rule to skip."""
    what, code = _stopped(run_dir.with_name(f"{run_dir.name}-stop"))
    say(f"--on-nan stop: {what}")
    names = f"step {FIRST_BAD}" in what and f"shard {BAD_SHARD}" in what
    stopped = [
        Expectation("with --on-nan stop the error names step and shard", "it does", what, names),
        exactly("its exit code", code, 5),
    ]
    say.settled(stopped)  # that part is over
    bad = [FIRST_BAD + APART * number for number in range(times)]
    plan = _plan(OnNan.SKIP, bad, steps=max(STEPS, bad[-1] + APART))
    with training(plan, run_dir) as run:
        history = run.finish(60 + plan.steps * plan.pace_s, early=False)
    skipped = events_of(history, "step_skipped")
    said = sorted({(int(str(e.fields["step"])), str(e.fields["shards"])) for e in skipped})
    say(f"--on-nan skip: steps {', '.join(str(step) for step, _ in said)} were left out")
    skips = [
        exactly("steps that were left out, and whose shard it was", said, [(s, str(BAD_SHARD)) for s in bad]),
        exactly("workers that decided so", len({event.who for event in skipped}), WORKERS),
        exactly(
            "the run's outcome", str(events_of(history, "run_finished")[-1].fields["outcome"]), "finished"
        ),
    ]
    return [*stopped, *say.settled(skips), *proofs(run_dir, history, say)]


def _stopped(run_dir: Path) -> tuple[str, int]:
    """What the run says that stops at the first such step, and its exit code."""
    with training(_plan(OnNan.STOP, [FIRST_BAD], steps=STEPS), run_dir) as run:
        try:
            run.finish(60, early=False)
        except TrainingError as error:
            return error.what, int(error.exit_code)
    return "the run did not fail", 0


def _plan(on_nan: OnNan, bad: list[int], *, steps: int) -> Plan:
    usual = usual_plan(workers=WORKERS, steps=steps, pace_s=0.02, shards=SHARDS)
    rules = tuple(
        ByzantineRule(attack=Attack.NAN, worker=BAD_SHARD, first_step=step, end_step=step + 1) for step in bad
    )
    return dataclasses.replace(
        usual, byzantine=rules, strategy=dataclasses.replace(usual.strategy, on_nan=on_nan)
    )
