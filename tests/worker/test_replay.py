"""A recorded run is reproduced bit by bit, and a false record is located."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, VIRTUAL_MODES, small_plan
from tests.fixtures.runs.run_plans import real, virtual
from tests.fixtures.wording import Wording

from paceline.core.errors import PacelineError
from paceline.events.read import History
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan, StrategyOptions, Transport
from paceline.worker.participant import state_hash
from paceline.worker.replay.peers import same_bits
from paceline.worker.replay.schedule import replay


def recorded(mode: str, **changes: object) -> tuple[Plan, History, str]:
    options: dict[str, object] = {"num_workers": 1 if mode == "single" else 3, "pace_s": 0.01}
    plan = small_plan(mode, stragglers=RANDOM_SPEEDS, **{**options, **changes})
    run = virtual(plan)
    return plan, run.history, state_hash(run.final_state())


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_a_recorded_run_is_reproduced_bit_by_bit(mode: str) -> None:
    plan, history, sha256 = recorded(mode, task="tests.fixtures.tasks.user_tasks:DropoutTask")
    verdict = replay(plan, history, sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients
    assert verdict.state_sha256 == sha256


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_a_changed_loss_is_found_at_its_step(mode: str) -> None:
    plan, history, sha256 = recorded(mode)
    rank = plan.num_workers - 1
    row = history.steps[rank][5]
    history.steps[rank][5] = row._replace(loss=row.loss * (1 + 2**-52))
    verdict = replay(plan, history, sha256)
    assert not verdict.is_equal
    assert verdict.parted is not None
    assert verdict.parted.startswith(f"worker-{rank}, step 5")
    assert repr(row.loss) in verdict.parted


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_another_final_hash_is_found_at_the_end(mode: str, wording: Wording) -> None:
    plan, history, sha256 = recorded(mode)
    forged = ("0" if sha256[0] != "0" else "1") + sha256[1:]
    verdict = replay(plan, history, forged)
    assert not verdict.is_equal
    assert verdict.parted is not None
    assert forged[:16] in verdict.parted
    wording(verdict.parted, hide=[forged[:16], sha256[:16]])


def test_two_swapped_updates_are_found_at_the_next_loss_or_in_the_final_bits() -> None:
    plan, history, sha256 = recorded("asgd")
    applied = [n for n, row in enumerate(history.server) if row.op == "apply"]
    one, other = next((a, b) for a, b in itertools.pairwise(applied) if a > 10)
    first, second = history.server[one], history.server[other]
    assert first.rank != second.rank
    history.server[one] = second._replace(version=first.version)
    history.server[other] = first._replace(version=second.version)
    verdict = replay(plan, history, sha256)
    assert not verdict.is_equal
    assert verdict.parted is not None
    assert "on version" in verdict.parted


def test_a_lost_update_is_found_as_a_hole_in_the_versions(wording: Wording) -> None:
    plan, history, sha256 = recorded("ssp")
    lost = next(n for n, row in enumerate(history.server) if row.op == "apply" and row.version == 4)
    del history.server[lost]
    verdict = replay(plan, history, sha256)
    wording(str(verdict.parted))


def test_another_seed_is_found_at_the_first_step() -> None:
    plan, history, sha256 = recorded("ssgd")
    verdict = replay(replace(plan, seed=plan.seed + 1), history, sha256)
    assert verdict.parted is not None
    assert verdict.parted.startswith("worker-0, step 0")


def test_a_run_without_events_cannot_be_replayed(wording: Wording) -> None:
    with wording.raises(PacelineError):
        replay(small_plan("asgd"), History(), "")


@pytest.mark.parametrize("mode", ["single", "ssgd", "ps", "asgd", "localsgd"])
def test_a_run_that_was_stopped_is_replayed_as_far_as_it_came(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, steps=4000, pace_s=0.002)
    run = real(plan, tmp_path, launcher, stop_at=5)
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted


def test_two_workers_of_ddp_are_replayed(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ddp")
    run = real(plan, tmp_path, launcher)
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted


def test_where_the_order_of_the_sum_is_unknown_a_replay_is_refused_with_the_reason(
    wording: Wording,
) -> None:
    plan, history, sha256 = recorded("ssgd")
    for other in (
        replace(plan, transport=Transport.GLOO),
        replace(plan, mode="ddp", transport=Transport.GLOO),
    ):
        with wording.raises(PacelineError):
            replay(other, history, sha256)


def test_ssp_with_a_bound_replays_with_unequal_batches_and_batch_norm() -> None:
    plan, history, sha256 = recorded(
        "ssp",
        batch_sizes=(2, 3, 5),
        task_options={"batch_norm": True},
        strategy=StrategyOptions(staleness=2),
    )
    assert replay(plan, history, sha256).is_equal


def test_rows_that_were_lost_with_a_killed_worker_do_not_hide_what_it_pushed() -> None:
    plan, history, sha256 = recorded("asgd")
    del history.steps[1][2:6]
    verdict = replay(plan, history, sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients


def test_losses_are_compared_as_bits() -> None:
    nan = float("nan")
    assert same_bits(nan, nan)
    assert not same_bits(0.0, -0.0)
    assert not same_bits(1.0, 1.0 + 2**-52)
