"""Recorded schedules of real processes replay to the same bits. A few here, 200 in `make soak`."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.run_plans import real

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan, StrategyOptions, Transport
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.topology import Topology
from paceline.worker.replay.schedule import replay


def plan_number(number: int) -> Plan:
    """Varied modes, tasks, sizes, bounds, speeds and transports, the same for the same number."""
    workers = 2 + number % 3
    mode = ("asgd", "ssp")[number % 2]
    slow = (StragglerRule(probability=0.2, factor=4.0), StragglerRule(worker=number % workers, factor=2.0))
    return Plan(
        run=f"replay-{number}",
        task=("xor", "digits")[number // 2 % 2],
        mode=mode,
        num_workers=workers,
        steps=25,
        batch_sizes=(8,) * workers,
        transport=(Transport.SHM, Transport.TCP)[number // 4 % 2],
        seed=number,
        lr_scale=1 / workers,
        strategy=StrategyOptions(staleness=number // 2 % 4 if mode == "ssp" else None),
        stragglers=slow if number % 3 else (),
        pace_s=0.001 if number % 3 else 0.0,
    )


def check(numbers: range, folder: Path, launcher: LocalLauncher) -> None:
    for number in numbers:
        plan = plan_number(number)
        run = real(plan, folder / plan.run, launcher)
        verdict = replay(plan, run.history, run.sha256)
        assert verdict.is_equal, f"run {number}: {verdict.parted}"
        assert verdict.gradients == plan.total_gradients


def test_recorded_runs_replay_bit_by_bit(tmp_path: Path, launcher: LocalLauncher) -> None:
    check(range(12), tmp_path, launcher)


@pytest.mark.parametrize("number", range(4))
def test_recorded_exchanges_replay_bit_by_bit(number: int, tmp_path: Path, launcher: LocalLauncher) -> None:
    plan = replace(
        plan_number(number),
        mode="adpsgd",
        num_workers=4,
        batch_sizes=(8, 8, 4, 8),
        lr_scale=1.0,
        transport=Transport.SHM,
        strategy=StrategyOptions(topology=list(Topology)[number]),
    )
    run = real(plan, tmp_path / plan.run, launcher)
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_recorded_runs_replay_bit_by_bit(tmp_path: Path, launcher: LocalLauncher) -> None:
    check(range(200), tmp_path, launcher)
