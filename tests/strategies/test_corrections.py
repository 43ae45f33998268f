"""Variants of asgd on real processes. (Laws Z1-Z4 prove what they compute.)"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real

from paceline.config.environment import Facts
from paceline.config.load import from_set_flags, load
from paceline.core.errors import ConfigError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import AsgdVariant, Plan, StrategyOptions, Transport
from paceline.plan.resolve import resolve
from paceline.strategies.server_updates import DelayCompensated, Ringmaster, StalenessAware
from paceline.sync.fault_rules import StragglerRule
from paceline.worker.replay.schedule import replay

VARIANTS = [
    StrategyOptions(asgd=AsgdVariant.STALENESS_AWARE),
    StrategyOptions(asgd=AsgdVariant.DC, dc_lambda=0.1),
    StrategyOptions(asgd=AsgdVariant.RINGMASTER, max_staleness=2),
]


def resolved(**options: str) -> Plan:
    sets = from_set_flags([f"{name}={value}" for name, value in options.items()])
    return resolve(load(flags=sets.entries).config, Facts(cuda_devices=0, cpu_count=2, modules=frozenset()))


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: o.asgd.value)
@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
def test_a_real_run_of_each_variant_does_all_the_work_once_and_replays(
    options: StrategyOptions, transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = replace(
        small_plan("asgd", num_workers=3, steps=20),
        strategy=options,
        transport=transport,
        pace_s=0.002,
        stragglers=(StragglerRule(worker=1, factor=4.0),),
    )
    run = real(plan, tmp_path / "run", launcher)
    applied = sorted(row.position for row in run.history.server if row.op == "apply")
    assert applied == list(range(plan.total_gradients))
    assert replay(plan, run.history, run.sha256).is_equal
    assert run.result["discarded"] == sum(row.op == "discard" for row in run.history.server)


def test_the_knobs_of_asgd_have_defaults_that_fit_the_number_of_workers() -> None:
    assert resolved(mode="asgd").strategy.asgd is AsgdVariant.PLAIN
    assert resolved(mode="asgd", asgd="dc").strategy.dc_lambda == 0.04
    ringmaster = resolved(mode="asgd", asgd="ringmaster", num_workers="4").strategy
    assert ringmaster.max_staleness == 8


def test_a_knob_given_to_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(mode="ssgd", asgd="dc")
    assert "asgd" in caught.value.problems[0].what


def test_the_older_the_gradient_the_smaller_its_step() -> None:
    assert [StalenessAware().rate_factor(tau) for tau in (0, 1, 2, 4)] == [1.0, 1.0, 0.5, 0.25]


def test_the_compensation_follows_the_published_formula() -> None:
    gradient = torch.tensor([2.0, -1.0])
    DelayCompensated(0.5).compensate(gradient, torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0]))
    assert gradient.tolist() == [2.0 + 0.5 * 4.0 * 1.0, -1.0 + 0.5 * 1.0 * -2.0]


def test_ringmaster_keeps_what_is_below_its_limit() -> None:
    assert [Ringmaster(2).keeps(tau) for tau in (0, 1, 2, 3)] == [True, True, False, False]
    assert Ringmaster(None).keeps(10**6)
