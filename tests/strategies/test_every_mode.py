"""Properties of every mode that a user can choose, for any task."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import RANDOM_SPEEDS, VIRTUAL_MODES, ledger_plan, small_plan
from tests.fixtures.runs.run_plans import distance, real, reference, virtual, virtual_hash

from paceline.core.errors import PacelineError
from paceline.core.ids import Rank
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES
from paceline.plan.plan import OptimizerChoice, StrategyOptions
from paceline.strategies.ddp import Ddp
from paceline.strategies.load import builtin_strategy
from paceline.strategies.port import Links
from paceline.worker.participant import state_hash

TOGETHER = ("ssgd", "ps", "ssp", "dssp", "localsgd", "fedavg")
# ssp and localsgd as synchronous SGD.
LOCKSTEP = StrategyOptions(staleness=0, staleness_range=0, sync_every=1)
REPEATABLE = (*TOGETHER, "gossip")
TORCH_ADAM = "tests.fixtures.tasks.user_tasks:TorchAdamTask"
TORCH_MOMENTUM = "tests.fixtures.tasks.user_tasks:TorchMomentumTask"


@pytest.mark.parametrize(
    "mode", ["ssgd", "ps", "asgd", "ssp", "dssp", "localsgd", "fedavg", "gossip", "adpsgd"]
)
def test_with_unequal_batches_every_sample_counts_the_same(mode: str) -> None:
    plan = ledger_plan(mode, num_workers=3, batch_sizes=(1, 2, 5), steps=6, stragglers=RANDOM_SPEEDS)
    entries = virtual(replace(plan, pace_s=0.01)).final_state()["entries"]
    assert torch.allclose(entries, torch.full_like(entries, -1 / 8), rtol=1e-14, atol=0)


@pytest.mark.parametrize("mode", TOGETHER)
def test_with_unequal_batches_lockstep_modes_compute_what_one_worker_would(mode: str) -> None:
    plan = small_plan(mode, num_workers=3, batch_sizes=(1, 2, 5), strategy=LOCKSTEP)
    expected = reference(plan, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert distance(virtual(plan).final_state(), expected) < 1e-12


def test_ddp_refuses_unequal_batches_because_torch_would_not_weight_them() -> None:
    plan = small_plan("ddp", batch_sizes=(2, 6))
    with pytest.raises(PacelineError) as caught:
        Ddp(plan, Links(rank=Rank(0), world_size=2))
    assert "(2, 6)" in caught.value.what
    assert "--mode ssgd" in caught.value.hint


@pytest.mark.parametrize("mode", ["ssgd", "ps", "localsgd", "fedavg"])
def test_batch_norm_statistics_are_the_mean_of_the_workers(mode: str) -> None:
    options = {"batch_norm": True}
    one_step = small_plan(mode, steps=1, task_options=options)
    tensor = virtual(one_step).final_state()["1.running_mean"]
    alone = [
        virtual(small_plan("single", steps=1, batch_sizes=(size,), task_options=options)).final_state()
        for size in (4, 8)
    ]
    # Both see 8 samples in one step: the mean of two batches' means is the mean of their union.
    assert torch.allclose(tensor, alone[1]["1.running_mean"], rtol=0, atol=1e-14)
    assert not torch.allclose(tensor, alone[0]["1.running_mean"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_batch_norm_statistics_are_trained_in_every_mode(mode: str) -> None:
    state = virtual(small_plan(mode, task_options={"batch_norm": True}, pace_s=0.01)).final_state()
    assert float(state["1.running_mean"].abs().sum()) > 0
    assert not torch.equal(state["1.running_var"], torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_alone_clipping_is_torchs_clipping(mode: str) -> None:
    plan = small_plan(mode, num_workers=1, lr_scale=1.0, clip_norm=0.3)
    expected = reference(plan, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=0.3)
    unclipped = reference(plan, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    final = virtual(plan).final_state()
    # torch divides by norm + 1e-6; we scale to exactly the limit.
    assert distance(final, expected) < 1e-4
    assert distance(final, unclipped) > 1e-2


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_the_mean_gradient_is_clipped_and_not_each_workers(mode: str) -> None:
    plan = small_plan(mode, num_workers=3, clip_norm=0.3)
    first = small_plan("single", batch_sizes=(12,), clip_norm=0.3)
    assert distance(virtual(plan).final_state(), virtual(first).final_state()) < 1e-12


def test_a_clipped_update_is_as_long_as_the_limit_allows() -> None:
    plan = small_plan("ssgd", steps=1, clip_norm=0.01)
    before = virtual(replace(plan, lr=1e-300)).final_state()
    after = virtual(plan).final_state()
    moved = torch.cat([(after[name] - before[name]).reshape(-1) for name in after])
    assert float(torch.linalg.vector_norm(moved)) == pytest.approx(0.1 * 0.01)


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
@pytest.mark.parametrize(
    ("task", "same"),
    [
        (TORCH_ADAM, OptimizerChoice(name="adam", lr=0.05)),
        (TORCH_MOMENTUM, OptimizerChoice(name="momentum", lr=0.1)),
    ],
)
def test_a_task_may_bring_an_optimizer_of_torchs_own(mode: str, task: str, same: OptimizerChoice) -> None:
    plan = small_plan(mode, pace_s=0.01, stragglers=RANDOM_SPEEDS)
    assert virtual_hash(replace(plan, task=task)) == virtual_hash(replace(plan, optimizer=same))


def test_under_ddp_a_task_may_bring_an_optimizer_of_torchs_own(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("ddp")
    torchs = real(replace(plan, task=TORCH_ADAM), tmp_path / "torch", launcher)
    ours = real(replace(plan, optimizer=OptimizerChoice(name="adam", lr=0.05)), tmp_path / "own", launcher)
    assert torchs.sha256 == ours.sha256


def test_ssgd_over_gloo_and_over_shared_memory_end_with_the_same_bits(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    from paceline.plan.plan import Transport

    plan = small_plan("ssgd", task_options={"batch_norm": True})
    ends = {
        real(replace(plan, transport=transport), tmp_path / transport.value, launcher).sha256
        for transport in (Transport.SHM, Transport.GLOO)
    }
    assert ends == {virtual_hash(plan)}


@pytest.mark.parametrize("average", [False, True])
def test_torchs_moments_are_averaged_by_localsgd_only_on_request(average: bool) -> None:
    options = StrategyOptions(sync_every=4, average_optimizer_state=average)
    run = virtual(small_plan("localsgd", task=TORCH_ADAM, strategy=options))
    states = {state_hash(replica.optimizer_state()) for replica in run.replicas.values()}
    assert len(states) == (1 if average else 2)


def test_averaging_moments_sends_them_too_and_the_byte_count_shows_it() -> None:
    adam = OptimizerChoice(name="adam", lr=0.05)
    moved = {
        average: sum(
            row.bytes_out
            for rows in virtual(
                small_plan(
                    "localsgd",
                    optimizer=adam,
                    strategy=StrategyOptions(sync_every=4, average_optimizer_state=average),
                )
            ).history.steps.values()
            for row in rows
        )
        for average in (False, True)
    }
    moments = 2 * (3 * 5 + 5 + 5 * 2 + 2) * 8  # first and second, of every parameter
    assert moved[True] - moved[False] == 2 * 3 * moments  # two workers, three syncs, 2(N-1)/N = 1


def test_post_local_sgd_that_never_becomes_local_is_synchronous_sgd() -> None:
    late = StrategyOptions(sync_every=5, post_local_after=12)
    local = virtual(small_plan("localsgd", strategy=late)).final_state()
    assert distance(local, virtual(small_plan("ssgd")).final_state()) < 1e-12


def test_post_local_sgd_is_ssgd_at_first_and_then_drifts() -> None:
    early = StrategyOptions(sync_every=6, post_local_after=4)
    local, together = (small_plan("localsgd", strategy=early), small_plan("ssgd"))
    at_four = (virtual(replace(plan, steps=4)).final_state() for plan in (local, together))
    assert distance(*at_four) < 1e-12
    assert distance(virtual(local).final_state(), virtual(together).final_state()) > 1e-6


def test_a_task_that_forgets_to_seed_its_model_still_starts_equal_everywhere() -> None:
    for mode in ("ssgd", "localsgd", "gossip", "adpsgd"):
        run = virtual(small_plan(mode, task="tests.fixtures.tasks.user_tasks:UnseededTask"))
        assert len({state_hash(r.arena.named_state()) for r in run.replicas.values()}) == 1


@pytest.mark.parametrize("mode", VIRTUAL_MODES)
def test_dropout_draws_the_same_numbers_for_the_same_share(mode: str) -> None:
    plan = small_plan(mode, task="tests.fixtures.tasks.user_tasks:DropoutTask", pace_s=0.01)
    assert virtual_hash(plan) == virtual_hash(plan)
    if mode in REPEATABLE:
        slowed = replace(plan, stragglers=RANDOM_SPEEDS, strategy=LOCKSTEP)
        assert virtual_hash(slowed) == virtual_hash(replace(plan, strategy=LOCKSTEP))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_the_catalog_is_a_class_with_its_channel(mode: str) -> None:
    result = builtin_strategy(mode)
    assert result is not None
    assert vars(result).get("channel", MODES[mode].channel) is MODES[mode].channel
    assert builtin_strategy("no-such-mode") is None
