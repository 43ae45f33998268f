"""Advice: right where theory has an answer, and none where nothing differs."""

from tests.fixtures.wording import Wording

from paceline.plan.plan import StrategyOptions
from paceline.simulate.advice import REPEATS, Advice, advise, compare
from paceline.simulate.profile import FREE, Constant, Costs, Link, Lognormal, Profile, Recorded, StepTimes
from paceline.simulate.strategy_models import candidates
from paceline.sync.fault_rules import StragglerRule

OPTIONS = StrategyOptions(staleness=3, sync_every=8, backup_workers=1)


def advice_for(*models: StepTimes, costs: Costs = FREE, rules: tuple[StragglerRule, ...] = ()) -> Advice:
    profile = Profile(
        num_workers=len(models),
        step_times=models,
        batch_sizes=(8,) * len(models),
        costs=costs,
        stragglers=rules,
    )
    return advise(profile, candidates(OPTIONS, len(models)), steps=150, seeds=range(REPEATS))


def reasons(advice: Advice) -> dict[str, str]:
    return {ranked.compared.candidate.mode: ranked.reason for ranked in advice.ranking}


def test_against_a_lasting_straggler_asgd_is_advised_and_the_reason_names_the_worker(
    wording: Wording,
) -> None:
    advice = advice_for(Constant(0.01), Constant(0.03), Constant(0.01), Constant(0.01))
    assert advice.advised.candidate.mode == "asgd"
    assert advice.is_clear
    (slow,) = advice.workers
    assert slow.startswith("worker 1 ")
    assert "3.0x" in slow
    wording(slow)
    wording(reasons(advice)["ssp"])
    wording(reasons(advice)["localsgd"])
    assert any(all(mode in text for mode in ("ssp", "localsgd", "diloco")) for text in advice.caveats)
    assert any("N-1 = 3" in text for text in advice.caveats)
    wording("\n".join(advice.caveats))


def test_equal_workers_differ_in_nothing_so_the_simplest_way_is_advised(wording: Wording) -> None:
    advice = advice_for(*[Constant(0.01)] * 4)
    assert not any("diloco" in text for text in advice.caveats)
    wording("\n".join(advice.caveats))
    assert advice.advised.candidate.mode == "ssgd"
    assert not advice.is_clear
    level = {r.compared.candidate.mode for r in advice.ranking if not r.compared.is_significant}
    assert level == {
        *("ssgd", "ddp", "ps", "asgd", "ssp", "dssp", "easgd", "localsgd", "fedavg", "diloco", "adaptive")
    }


def test_when_an_exchange_costs_as_much_as_a_step_local_steps_are_advised() -> None:
    slow = Link(latency_s=0.01)
    advice = advice_for(*[Constant(0.01)] * 4, costs=Costs(collective=slow, torch=slow, push=slow, pull=slow))
    assert advice.advised.candidate.mode == "localsgd"


def test_a_worker_that_is_often_much_slower_is_reported(wording: Wording) -> None:
    rules = (StragglerRule(probability=0.02, factor=60.0),)
    advice = advice_for(*[Constant(0.01)] * 8, rules=rules)
    wording("\n".join(advice.workers))


def test_a_small_or_uncertain_difference_is_not_called_one() -> None:
    profile = Profile(num_workers=2, step_times=(Lognormal(0.01, 0.05),) * 2, batch_sizes=(1, 1), costs=FREE)
    comparison = compare(profile, candidates(OPTIONS, 2), steps=4, seeds=range(40))
    by_mode = {c.candidate.mode: c for c in comparison}
    best = min(c.mean_s for c in comparison)
    for compared in comparison:
        low, high = compared.worse_by_s
        if low <= 0 <= high or abs(compared.mean_s - best) < 0.02 * best:
            assert not compared.is_significant
    assert by_mode["single"].is_significant


def test_a_mean_difference_counts_even_if_single_runs_vary_more() -> None:
    """ssp beats localsgd by several percent on average, though not in every run."""
    rules = (StragglerRule(probability=0.05, factor=10.0),)
    profile = Profile(
        num_workers=8, step_times=(Constant(0.03),) * 8, batch_sizes=(1,) * 8, stragglers=rules, costs=FREE
    )
    options = StrategyOptions(staleness=8, sync_every=16)
    bounded = [c for c in candidates(options, 8) if c.mode in ("ssp", "localsgd")]
    best, other = compare(profile, bounded, steps=24, seeds=range(REPEATS))
    assert best.candidate.mode == "ssp"
    assert other.is_significant
    assert other.low_s < best.high_s, "single runs overlap"
    unsure = compare(profile, bounded, steps=24, seeds=range(1))
    assert not any(c.is_significant for c in unsure), "one run proves nothing"


def test_where_workers_share_processors_infrequent_synchronization_is_advised_with_the_reason(
    wording: Wording,
) -> None:
    crowded = Profile(
        num_workers=8,
        step_times=(Constant(0.02),) * 8,
        batch_sizes=(1,) * 8,
        costs=Costs(turn_s=0.0006),
        processors=2,
    )
    advice = advise(crowded, candidates(OPTIONS, 8), steps=80, seeds=range(REPEATS))
    assert advice.advised.candidate.mode == "localsgd"
    wording("\n".join(advice.caveats))


def test_one_worker_has_no_peer_to_wait_for() -> None:
    advice = advice_for(Recorded((0.01, 0.02, 0.01, 0.03)))
    assert advice.advised.candidate.mode == "single"
