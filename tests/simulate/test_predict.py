"""Properties of every prediction, for any workers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import StrategyOptions
from paceline.simulate.predict import outline, predict
from paceline.simulate.profile import FREE, Constant, Costs, Exponential, Link, Profile, Recorded
from paceline.simulate.strategy_models import (
    PREDICTABLE_MODES,
    Adaptive,
    Asynchronous,
    BackupWorkers,
    DynamicBound,
    ElasticAveraging,
    FederatedRounds,
    LocalSgd,
    OuterSgd,
    SingleWorker,
    StrategyModel,
    Synchronous,
    candidates,
    strategy_model_of,
)
from paceline.sync.adaptive_setting import Allowed

SSGD = Synchronous(Channel.COLLECTIVE)
MILLISECONDS = st.integers(1, 50)


def profile_of_times(*times_ms: float, costs: Costs = FREE) -> Profile:
    models = tuple(Constant(t / 1e3) for t in times_ms)
    return Profile(num_workers=len(models), step_times=models, batch_sizes=(4,) * len(models), costs=costs)


def random_profile(draws: list[list[int]]) -> Profile:
    models = tuple(Recorded(tuple(ms / 1e3 for ms in own)) for own in draws)
    return Profile(num_workers=len(models), step_times=models, batch_sizes=(2,) * len(models))


DRAWS = st.lists(st.lists(MILLISECONDS, min_size=6, max_size=6), min_size=1, max_size=6)
ALL_WAYS: list[StrategyModel] = [
    SingleWorker(),
    SSGD,
    Synchronous(Channel.STORE),
    Asynchronous(None),
    Asynchronous(2),
    LocalSgd(3),
    LocalSgd(3, 2),
    BackupWorkers(1),
    OuterSgd(3),
    OuterSgd(4, fragments=3),
    ElasticAveraging(3),
    FederatedRounds(3),
    FederatedRounds(3, 0.5),
    DynamicBound(1, 3),
    *(Adaptive(allowed, 3) for allowed in Allowed),
]


@given(times=st.lists(MILLISECONDS, min_size=2, max_size=7))
def test_no_way_without_abandoning_is_faster_than_all_workers_without_waiting(times: list[int]) -> None:
    profile, optimum = profile_of_times(*times), sum(1e3 / t for t in times)
    for way in ALL_WAYS:
        if not isinstance(way, BackupWorkers):
            assert predict(profile, way, steps=12, seed=0).gradients_per_s <= optimum * (1 + 1e-6), way


@given(draws=DRAWS)
def test_a_bound_of_zero_takes_as_long_as_ssgd(draws: list[list[int]]) -> None:
    profile = random_profile(draws)
    bounded = outline(profile, Asynchronous(0), steps=6, seed=0)
    assert bounded.total_ns == outline(profile, SSGD, steps=6, seed=0).total_ns
    assert bounded.total_ns == outline(profile, Synchronous(Channel.STORE), steps=6, seed=0).total_ns
    assert bounded.total_ns == outline(profile, LocalSgd(1), steps=6, seed=0).total_ns


@given(draws=DRAWS)
def test_more_bound_is_never_slower_and_never_faster_than_the_slowest_worker(draws: list[list[int]]) -> None:
    profile = random_profile(draws)
    times = [outline(profile, Asynchronous(bound), steps=6, seed=0).total_ns for bound in range(7)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == max(sum(own) for own in draws) * 10**6


@given(draws=DRAWS, bound=st.integers(0, 4))
def test_every_gradient_is_applied_once_and_staleness_stays_within_its_bound(
    draws: list[list[int]], bound: int
) -> None:
    result = outline(random_profile(draws), Asynchronous(bound), steps=6, seed=0)
    assert result.steps == (6,) * len(draws)
    assert result.staleness is not None
    assert sum(result.staleness.values()) == 6 * len(draws)
    assert max(result.staleness) <= (2 * bound + 1) * (len(draws) - 1)


@given(draws=DRAWS)
def test_ssp_without_a_bound_is_asgd(draws: list[list[int]]) -> None:
    profile = random_profile(draws)
    mine = outline(profile, strategy_model_of("ssp", StrategyOptions(staleness=None)), steps=6, seed=0)
    theirs = outline(profile, strategy_model_of("asgd", StrategyOptions()), steps=6, seed=0)
    assert mine.total_ns == theirs.total_ns
    assert mine.trace.ranks.tolist() == theirs.trace.ranks.tolist()


@given(draws=DRAWS, low=st.integers(0, 3))
def test_dssp_with_no_room_is_ssp_and_never_leaves_its_range(draws: list[list[int]], low: int) -> None:
    profile = random_profile(draws)
    fixed = outline(profile, Asynchronous(low), steps=6, seed=0)
    assert (
        outline(profile, DynamicBound(low, 0), steps=6, seed=0).trace.at_ns.tolist()
        == fixed.trace.at_ns.tolist()
    )
    moving = outline(profile, DynamicBound(low, 2), steps=6, seed=0)
    assert moving.steps == fixed.steps
    assert moving.staleness is not None
    assert max(moving.staleness) <= (2 * (low + 2) + 1) * (len(draws) - 1)


@given(draws=DRAWS)
def test_needing_all_gradients_is_ssgd(draws: list[list[int]]) -> None:
    profile = random_profile(draws)
    all_needed = outline(profile, BackupWorkers(0), steps=6, seed=0)
    assert all_needed.total_ns == outline(profile, SSGD, steps=6, seed=0).total_ns
    assert all_needed.abandoned == 0


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), workers=st.integers(2, 6))
def test_the_same_seed_gives_the_same_prediction(seed: int, workers: int) -> None:
    profile = Profile(
        num_workers=workers, step_times=(Exponential(0.01),) * workers, batch_sizes=(1,) * workers
    )
    for way in ALL_WAYS:
        assert predict(profile, way, steps=20, seed=seed) == predict(profile, way, steps=20, seed=seed)


def test_a_lasting_straggler_sets_the_rate_of_all_modes_that_wait_and_not_of_asgd() -> None:
    profile = profile_of_times(10, 30, 10, 10)
    rates = {
        c.mode: predict(profile, c.model, steps=400, seed=0).gradients_per_s
        for c in candidates(StrategyOptions(staleness=3, sync_every=8, backup_workers=1), 4)
    }
    for mode in ("ssgd", "ddp", "ps", "ssp", "localsgd", "fedavg", "diloco", "dssp"):
        assert rates[mode] == pytest.approx(4 / 0.03, rel=0.02), mode
    assert rates["asgd"] == pytest.approx(3 / 0.01 + 1 / 0.03, rel=0.02)
    assert rates["backup"] == pytest.approx(3 / 0.01, rel=0.02)


def test_adaptive_reaches_the_optimum_but_for_its_first_steps_and_whole_samples() -> None:
    profile = replace(profile_of_times(10, 30, 10, 10), batch_sizes=(64,) * 4)
    batch = predict(profile, Adaptive(Allowed.BATCH, 8), steps=1000, seed=0)
    local = predict(profile, Adaptive(Allowed.LOCAL_STEPS, 24), steps=1000, seed=0)
    for result in (batch, local):
        assert 0.95 <= result.gradients_per_s / (3 / 0.01 + 1 / 0.03) <= 1
    assert batch.steps == (1000,) * 4
    assert local.steps[1] < local.steps[0] / 2


def test_mean_staleness_of_asgd_tends_to_the_number_of_others() -> None:
    profile = Profile(num_workers=6, step_times=(Exponential(0.01),) * 6, batch_sizes=(1,) * 6)
    assert predict(profile, Asynchronous(None), steps=3000, seed=2).mean_staleness == pytest.approx(
        5, abs=0.02
    )


def test_a_busy_server_limits_the_rate_to_one_over_its_service_time() -> None:
    slow_server = Costs(apply_s=0.004, answer_s=0.001)
    profile = profile_of_times(*[10] * 8, costs=slow_server)
    assert predict(profile, Asynchronous(None), steps=300, seed=0).gradients_per_s == pytest.approx(
        200, rel=0.02
    )
    # Far from saturation each exchange simply adds to the step: 10 ms and 5 ms, one worker at a time.
    alone = profile_of_times(10, costs=slow_server)
    assert predict(alone, Asynchronous(None), steps=300, seed=0).gradients_per_s == pytest.approx(
        1 / 0.015, rel=0.01
    )


def test_local_steps_divide_what_travels_and_what_an_exchange_costs() -> None:
    costs = Costs(collective=Link(latency_s=0.01, bytes_per_s=1e6))
    profile = replace(profile_of_times(10, 10, costs=costs), parameter_bytes=10_000)
    often = predict(profile, SSGD, steps=80, seed=0)
    seldom = predict(profile, LocalSgd(8), steps=80, seed=0)
    assert seldom.bytes_out * 8 == often.bytes_out
    assert often.total_s == pytest.approx(80 * (0.01 + 0.01 + 0.01))
    assert seldom.total_s == pytest.approx(80 * 0.01 + 10 * 0.02)


def test_workers_woken_at_once_take_turns_on_the_processors_they_share() -> None:
    costs = Costs(wake_up_s=0.001, turn_s=0.002)
    roomy = profile_of_times(*[10] * 8, costs=costs)
    crowded = replace(roomy, processors=4)
    for enough in (roomy, replace(roomy, processors=8)):
        assert predict(enough, SSGD, steps=10, seed=0).total_s == pytest.approx(10 * 0.011)
    assert predict(crowded, SSGD, steps=10, seed=0).total_s == pytest.approx(10 * 0.013)
    assert predict(crowded, LocalSgd(5), steps=10, seed=0).total_s == pytest.approx(10 * 0.01 + 2 * 0.003)
    assert predict(crowded, Asynchronous(None), steps=10, seed=0) == predict(
        roomy, Asynchronous(None), steps=10, seed=0
    )


def test_fragments_spread_the_traffic_and_add_a_synchronization_each() -> None:
    costs = Costs(collective=Link(latency_s=0.01, bytes_per_s=1e6))
    profile = replace(profile_of_times(10, 10, costs=costs), parameter_bytes=40_000)
    whole = predict(profile, OuterSgd(8), steps=80, seed=0)
    local = predict(profile, LocalSgd(8), steps=80, seed=0)
    pieces = predict(profile, OuterSgd(8, fragments=4), steps=80, seed=0)
    assert whole.total_s == pytest.approx(local.total_s)
    assert whole.bytes_out == local.bytes_out
    # A fragment's turn comes after 2, 4 and 6 steps of every 8; after the last step all are brought together.
    meetings = 9 * 4 + 3 + 4
    assert pieces.bytes_out == local.bytes_out * meetings // 40
    assert pieces.total_s == pytest.approx(80 * 0.01 + meetings * (0.01 + 0.01))
    assert predict(profile, OuterSgd(8, fragments=4, delay=2), steps=80, seed=0) == pieces


def test_waiting_is_what_the_fast_lose_to_the_slow() -> None:
    assert predict(profile_of_times(10, 30), SSGD, steps=10, seed=0).waiting == pytest.approx(20 / 60)
    assert predict(profile_of_times(10, 30), Asynchronous(None), steps=300, seed=0).waiting < 0.01


def test_every_mode_that_is_known_is_a_candidate() -> None:
    result = candidates(StrategyOptions(staleness=3, sync_every=8), 4)
    assert [c.mode for c in result] == [mode for mode in MODES if mode in PREDICTABLE_MODES]
    assert set(MODES) - PREDICTABLE_MODES == {"fsdp", "onebit", "gossip", "adpsgd"}, (
        "these are not predicted, and the docs say so"
    )


def test_workers_that_start_late_are_waited_for() -> None:
    late = replace(profile_of_times(10, 10), starts_at_s=(0.0, 0.5))
    assert outline(late, SSGD, steps=4, seed=0).total_ns == 540 * 10**6
    shared = outline(late, Asynchronous(None), steps=40, seed=0)
    assert shared.steps[0] > shared.steps[1]
    assert np.all(np.diff(shared.trace.at_ns) >= 0)
