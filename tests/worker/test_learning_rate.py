"""Learning-rate schedules act alike in every mode, and after resume and replay."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, VIRTUAL_MODES, small_plan
from tests.fixtures.runs.run_plans import distance, real, reference, resumed, virtual
from torch import nn

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Launcher, OptimizerChoice, Transport
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

COSINE = RateSchedule(shape=RateShape.COSINE, warmup=3, steps=12)
OTHER_MODES = ("easgd", "fedavg", "diloco")


class Scheduled(torch.optim.SGD):
    """torch's own, at the rate of each step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self._made = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure here
        self.param_groups[0]["lr"] = 0.1 * COSINE.factor(self._made)
        super().step()
        self._made += 1


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_alone_every_mode_has_the_rate_of_the_step(mode: str) -> None:
    plan = small_plan(mode, num_workers=1, lr_scale=1.0, lr_schedule=COSINE)
    final, constant = virtual(plan).final_state(), virtual(replace(plan, lr_schedule=None)).final_state()
    assert distance(final, reference(plan, Scheduled)) < 1e-14
    assert distance(final, constant) > 1e-2


@pytest.mark.parametrize("mode", ["ssgd", "ps", "gossip", "adaptive"])
def test_together_the_rate_is_that_of_the_step_too(mode: str) -> None:
    plan = small_plan(mode, num_workers=3, lr_schedule=COSINE)
    if mode == "gossip":  # whose first mixing is of equals
        plan = replace(plan, steps=1)
    first = small_plan("single", steps=plan.steps, batch_sizes=(12,), lr_schedule=COSINE)
    assert distance(virtual(plan).final_state(), virtual(first).final_state()) < 1e-12


def test_a_vmapped_pass_has_the_same_rates(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ssgd", lr_schedule=COSINE, launcher=Launcher.VIRTUAL, transport=Transport.NONE)
    apart, stacked, constant = (
        [row.loss for row in real(run, tmp_path / name, launcher).history.steps[1]]
        for name, run in (
            ("apart", plan),
            ("stacked", replace(plan, vmap=True)),
            ("constant", replace(plan, lr_schedule=None)),
        )
    )
    assert stacked == pytest.approx(apart, rel=1e-9)
    assert constant != pytest.approx(apart, rel=1e-3)


@pytest.mark.parametrize("mode", [*VIRTUAL_MODES, *OTHER_MODES])
def test_a_replay_finds_the_same_rates(mode: str) -> None:
    workers = 1 if mode == "single" else 3
    plan = small_plan(mode, num_workers=workers, pace_s=0.01, stragglers=RANDOM_SPEEDS, lr_schedule=COSINE)
    run = virtual(plan)
    verdict = replay(plan, run.history, state_hash(run.final_state()))
    assert verdict.is_equal, verdict.parted


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "localsgd"])
def test_a_stopped_run_had_the_rates_of_the_whole(mode: str) -> None:
    plan = small_plan(mode, num_workers=3, pace_s=0.01, lr_schedule=COSINE)
    run = virtual(plan, stops_after={0: 5})
    assert sum(map(len, run.history.steps.values())) < plan.total_gradients
    verdict = replay(plan, run.history, state_hash(run.final_state()))
    assert verdict.is_equal, verdict.parted


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_a_resumed_run_finds_the_same_rates(mode: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    adam = OptimizerChoice(name="adam", lr=0.01)
    schedule = replace(COSINE, steps=400)
    plan = small_plan(mode, steps=400, pace_s=0.002, optimizer=adam, lr_schedule=schedule)
    assert real(plan, tmp_path / "stopped", launcher, stop_at=5).result["stopped_early"] is True
    through = real(replace(plan, pace_s=0.0), tmp_path / "through", launcher)
    assert resumed(tmp_path / "stopped", launcher).sha256 == through.sha256
