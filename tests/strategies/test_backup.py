"""Backup workers: late gradients are abandoned, and their samples are still used."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, ledger_plan, small_plan
from tests.fixtures.runs.run_plans import real, virtual, virtual_hash

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan, StrategyOptions, Transport
from paceline.sync.fault_rules import StragglerRule
from paceline.worker.replay.schedule import replay

PACE_S = 0.01
AN_HOUR = StragglerRule(worker=3, delay_s=3600.0)
MS = 1_000_000


def spared(workers: int, spare: int, **changes: object) -> Plan:
    options = StrategyOptions(backup_workers=spare)
    return ledger_plan("backup", num_workers=workers, pace_s=PACE_S, strategy=options, **changes)


@pytest.mark.parametrize("rule", [StragglerRule(worker=3, factor=10.0), AN_HOUR], ids=["10x", "an hour"])
def test_a_persistent_straggler_costs_the_others_nothing_and_loses_no_sample(rule: StragglerRule) -> None:
    plan = spared(4, 1, steps=30, batch_sizes=(1,) * 4, stragglers=(rule,))
    run = virtual(plan)
    assert run.elapsed_s == pytest.approx(plan.total_gradients / 3 * PACE_S, abs=1e-9)
    assert run.elapsed_s == pytest.approx(virtual(replace(plan, stragglers=())).elapsed_s, abs=1e-9)
    assert bool((run.final_state()["entries"] == -1 / 3).all())
    assert 3 not in run.history.steps  # it never was among the first
    given_up = run.history.abandoned[3]
    assert {row.lasted_ns for row in given_up} == {10 * MS}  # at once, not when its sleep was over
    assert len(given_up) == 40 - 1  # for the last update there was no share left for it


def test_more_stragglers_than_backup_workers_set_the_pace() -> None:
    rules = tuple(StragglerRule(worker=rank, factor=5.0) for rank in (2, 3))
    one, two = (virtual(spared(4, spare, steps=30, stragglers=rules)).elapsed_s for spare in (1, 2))
    assert one == pytest.approx(40 * 5 * PACE_S)
    assert two == pytest.approx(60 * PACE_S)


def test_the_delay_that_made_a_step_late_does_not_strike_it_again() -> None:
    """Delays are drawn for each attempt: a worker that is late once is not late for ever."""
    rules = (StragglerRule(worker=1, delay_s=3600.0, steps=(2,)),)
    run = virtual(spared(3, 1, steps=20, stragglers=rules))
    assert [row.step for row in run.history.abandoned[1]].count(2) <= 2
    assert len(run.history.steps[1]) > 10


def test_with_unequal_batches_every_sample_counts_the_same_whichever_worker_is_late() -> None:
    plan = spared(3, 1, batch_sizes=(1, 2, 5), steps=8, stragglers=RANDOM_SPEEDS)
    entries = virtual(plan).final_state()["entries"]
    expected = -(3 / 8) / 2  # a batch over the mean batch, over two gradients an update
    assert torch.allclose(entries, torch.full_like(entries, expected), rtol=1e-14, atol=0)


def test_without_backup_workers_it_is_ps_whichever_worker_joins_first() -> None:
    none = StrategyOptions(backup_workers=0)
    plan = small_plan("backup", num_workers=4, batch_sizes=(1, 2, 3, 4), strategy=none, pace_s=PACE_S)
    late = virtual(plan, starts_at_s={0: 0.5, 2: 0.1})
    assert late.history.abandoned == {}
    assert virtual_hash(plan) == virtual_hash(replace(plan, mode="ps"))


def test_a_worker_that_leaves_gives_its_share_back() -> None:
    plan = spared(4, 1, steps=10)
    run = virtual(plan, leaves_after={2: 3})
    applied = sorted(row.position for row in run.history.server if row.op == "apply")
    assert applied == list(range(plan.total_gradients))


def test_the_log_reports_what_was_abandoned_and_how_much_time_that_was() -> None:
    plan = spared(4, 2, steps=10, stragglers=RANDOM_SPEEDS)
    history = virtual(plan).history
    reported = [(row.rank, row.step, row.position) for row in history.server if row.op == "abandon"]
    noticed = {(rank, row.step, row.position) for rank, rows in history.abandoned.items() for row in rows}
    assert set(reported) == noticed
    ages = sum(row.age_ns for row in history.server if row.op == "abandon")
    assert ages == sum(row.lasted_ns - row.wait_ns for rows in history.abandoned.values() for row in rows)


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP], ids=["shm", "tcp"])
def test_real_processes_do_not_wait_for_one_that_sleeps_for_an_hour(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(
        "backup", num_workers=4, steps=12, pace_s=0.005, stragglers=(AN_HOUR,), transport=transport
    )
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(plan.total_gradients))
    assert 3 not in run.history.steps
    reported = [row for row in run.history.server if row.op == "abandon" and row.rank == 3]
    # None, where a loaded machine starts this worker only when the others have done all the work.
    assert len(run.history.abandoned.get(3, ())) == len(reported)
    assert replay(plan, run.history, run.sha256).is_equal
    lost = run.result["abandoned"] or {"steps": 0}
    assert isinstance(lost, dict)
    assert lost["steps"] == sum(row.op == "abandon" for row in run.history.server)


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP], ids=["shm", "tcp"])
def test_gradients_that_cross_with_the_cancellation_are_discarded_and_nothing_is_lost(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """No pace: steps are so short that late workers often push before they hear."""
    plan = small_plan("backup", num_workers=3, steps=150, transport=transport)
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(plan.total_gradients))
    assert (run.result["gradients"], run.result["samples"]) == (450, 1800)
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients


def test_a_stop_request_does_not_wait_for_a_worker_that_sleeps_for_an_hour(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("backup", num_workers=4, steps=4000, pace_s=0.002, stragglers=(AN_HOUR,))
    run = real(plan, tmp_path, launcher, stop_at=5)
    assert run.result["stopped_early"] is True
    applied = run.positions()
    assert applied == list(range(len(applied)))
    assert len(applied) < plan.total_gradients
    assert replay(plan, run.history, run.sha256).is_equal
