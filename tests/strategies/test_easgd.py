"""Elastic averaging on real processes: stopped, resumed and replayed. (Laws E1-E4: its sums.)"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, ledger_plan, small_plan
from tests.fixtures.runs.run_plans import real, resumed, virtual

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import OptimizerChoice, StrategyOptions, Transport
from paceline.strategies.server_updates import ElasticExchange
from paceline.sync.fault_rules import StragglerRule
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

MOMENTUM = OptimizerChoice(name="momentum", lr=0.05)
EVERY_FOUR = StrategyOptions(sync_every=4)


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
@pytest.mark.parametrize("batch_sizes", [(4, 4, 4), (2, 6, 3)], ids=["equal", "unequal"])
def test_a_real_run_replays(
    transport: Transport, batch_sizes: tuple[int, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("easgd", num_workers=3, steps=15, strategy=EVERY_FOUR, batch_sizes=batch_sizes)
    plan = replace(plan, task_options={"batch_norm": True}, optimizer=MOMENTUM, transport=transport)
    run = real(plan, tmp_path, launcher)
    assert run.positions() == list(range(45))
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.updates == 12  # 45 shares in blocks of 4
    assert verdict.gradients == 45


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
def test_a_stopped_and_resumed_run_does_every_share_once_and_replays(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("easgd", num_workers=3, steps=60, strategy=EVERY_FOUR, pace_s=0.005)
    plan = replace(plan, optimizer=MOMENTUM, transport=transport)
    first = real(plan, tmp_path, launcher, stop_at=3)
    assert first.result["stopped_early"] is True
    assert replay(plan, first.history, first.sha256).is_equal
    again = resumed(tmp_path, launcher)
    assert again.positions() == list(range(plan.total_gradients))
    verdict = replay(plan, again.history, again.sha256)
    assert verdict.is_equal, verdict.parted


def test_a_fast_worker_does_more_blocks_and_no_worker_waits() -> None:
    slow = (StragglerRule(worker=1, factor=3.0),)
    plan = small_plan("easgd", num_workers=2, steps=40, strategy=EVERY_FOUR, pace_s=0.01, stragglers=slow)
    rows = virtual(plan).history.steps
    assert (len(rows[0]), len(rows[1])) == (60, 20)
    assert sum(row.wait_ns for mine in rows.values() for row in mine) == 0
    assert [row.bytes_out > 0 for row in rows[0][:8]] == [False, False, False, True] * 2


def test_with_unequal_batches_every_sample_counts_the_same_for_its_worker() -> None:
    plan = ledger_plan("easgd", num_workers=3, batch_sizes=(1, 2, 5), steps=6, stragglers=RANDOM_SPEEDS)
    alone = replace(plan, strategy=replace(EVERY_FOUR, elasticity=0.0), pace_s=0.01)
    replicas = virtual(alone).replicas.values()
    entries = torch.stack([replica.arena.named_state()["entries"] for replica in replicas]).sum(0)
    # Each at rate 1 with weight b·N/Σb over a mean of b samples.
    assert torch.allclose(entries, torch.full_like(entries, -3 / 8), rtol=1e-14, atol=0)


def test_batch_norm_statistics_move_with_the_centre() -> None:
    plan = small_plan("easgd", strategy=EVERY_FOUR, task_options={"batch_norm": True}, pace_s=0.01)
    state = virtual(plan).final_state()
    assert float(state["1.running_mean"].abs().sum()) > 0
    assert bool((state["1.running_var"] > 0).all())


def test_with_an_alpha_of_one_worker_and_centre_change_places() -> None:
    centre, worker, answer = torch.zeros(4), torch.arange(4.0), torch.empty(4)
    ElasticExchange(alpha=1.0, every=4, total=8).swap(centre, worker, answer)
    assert centre.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert answer.tolist() == [0.0] * 4


def test_the_last_block_is_as_long_as_the_work_that_is_left() -> None:
    elastic = ElasticExchange(alpha=0.5, every=4, total=10)
    assert [list(elastic.shares(p)) for p in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_result_is_the_centres() -> None:
    run = virtual(small_plan("easgd", strategy=EVERY_FOUR, pace_s=0.01))
    centre = state_hash(run.final_state())
    assert centre not in {state_hash(r.arena.named_state()) for r in run.replicas.values()}
