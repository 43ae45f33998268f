"""The layout of a comparison is fair before it starts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.comparison.layout import PACE_S, CompareRequest, lay_out, order_of
from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.sync.fault_rules import StragglerRule

SLOW = (StragglerRule(worker=0, factor=3.0),)


def request(config: TrainConfig | None = None, **more: object) -> CompareRequest:
    return CompareRequest(config=config or TrainConfig(), **more)  # type: ignore[arg-type]  # what it takes


def problems(compare_request: CompareRequest) -> str:
    with pytest.raises(ConfigError) as caught:
        lay_out(compare_request, Facts())
    return " | ".join(f"{p.what}: {p.hint}" for p in caught.value.problems)


def test_all_modes_do_the_same_steps_on_the_same_samples_with_any_number_of_workers() -> None:
    layout = lay_out(request(TrainConfig(batch_size=8, straggler=SLOW), worker_counts=(2, 4)), Facts())
    plans = layout.contenders
    assert list(plans)[:3] == ["single", "ssgd-2", "ssgd-4"]
    assert {plan.total_samples for plan in plans.values()} == {200 * 8 * 4}
    assert {plan.steps for plan in plans.values()} == {200}
    assert {plan.global_batch for plan in plans.values()} == {32}
    assert plans["ssgd-2"].batch_sizes == (16, 16)
    # A step of more samples lasts longer: two workers are as if each were one of four, twice.
    assert [plans[label].pace_s for label in ("single", "ssgd-2", "ssgd-4")] == [0.04, 0.02, PACE_S]


def test_a_round_has_one_seed_for_all_and_another_one_than_the_rounds_before() -> None:
    layout = lay_out(request(TrainConfig(seed=5)), Facts())
    for number in range(3):
        mine = [turn for turn in layout.turns if turn.round == number]
        assert {turn.label for turn in mine} == set(layout.contenders)
        assert {turn.plan.seed for turn in mine} == {5 + number}
    assert len({turn.name for turn in layout.turns}) == len(layout.turns) == 15


def test_every_contender_but_the_baseline_has_the_same_slow_worker() -> None:
    layout = lay_out(request(TrainConfig(straggler=SLOW), worker_counts=(4,)), Facts())
    slowed = {label: plan.stragglers for label, plan in layout.contenders.items()}
    assert slowed.pop("single") == ()
    assert set(slowed.values()) == {SLOW}


@given(labels=st.integers(2, 12), repeats=st.integers(1, 6), seed=st.integers(0, 1000))
def test_in_each_round_every_mode_runs_once_and_the_order_is_the_seeds(
    labels: int, repeats: int, seed: int
) -> None:
    names = [f"mode-{number}" for number in range(labels)]
    rows = order_of(names, repeats, seed)
    assert rows == order_of(names, repeats, seed)
    assert [sorted(row) for row in rows] == [sorted(names)] * repeats


def test_no_mode_always_runs_first() -> None:
    rows = order_of(["a", "b", "c", "d", "e"], 3, 0)
    assert len({row[0] for row in rows}) == 3


def test_the_baseline_is_added_when_it_is_not_named_and_each_mode_runs_once() -> None:
    layout = lay_out(request(modes=("ssgd", "sync", "asgd")), Facts())  # sync is another name of ssgd
    assert list(layout.contenders) == ["single", "ssgd-2", "asgd-2"]


def test_a_pace_is_chosen_only_where_a_worker_is_slow_and_none_was_given() -> None:
    assert "10 ms" in lay_out(request(TrainConfig(straggler=SLOW)), Facts()).remarks[0]
    assert lay_out(request(), Facts()).contenders["ssgd-2"].pace_s == 0.0
    layout = lay_out(request(TrainConfig(straggler=SLOW, pace=0.002)), Facts())
    assert (layout.contenders["ssgd-2"].pace_s, layout.remarks) == (0.002, ())


def test_a_step_that_cannot_be_dealt_evenly_is_refused_with_the_next_size_that_can(wording: Wording) -> None:
    text = problems(request(TrainConfig(batch_size=32), worker_counts=(3, 4)))
    assert "32 x 4 = 128" in text
    assert " 33" in text
    wording(text)
    unsaid = lay_out(request(worker_counts=(3, 4)), Facts()).contenders
    assert {plan.global_batch for plan in unsaid.values()} == {132}


def test_all_problems_are_reported_at_once(wording: Wording) -> None:
    config = TrainConfig(staleness=3, run_dir="here", events="off", batch_size=(1, 2))
    text = problems(request(config, modes=("ssgd", "sgdd"), worker_counts=(2, 4)))
    for name in ("staleness", "run_dir", "events", "sgdd", "batch_size"):
        assert name in text
    wording(text)
    wording(problems(request(modes=("single",))))
    wording(problems(request(worker_counts=(2, 2))))


def test_batches_that_differ_by_worker_stay_as_given() -> None:
    layout = lay_out(request(TrainConfig(batch_size=(4, 12)), modes=("ssgd",)), Facts())
    assert layout.contenders["ssgd-2"].batch_sizes == (4, 12)
    assert layout.contenders["single"].batch_sizes == (16,)


def test_epochs_are_the_same_number_of_steps_for_all_modes() -> None:
    compare_request = request(
        TrainConfig(epochs=2, batch_size=8), modes=("ssgd", "asgd"), worker_counts=(2, 4)
    )
    plans = lay_out(compare_request, Facts(), count=lambda _: 320).contenders
    assert {plan.steps for plan in plans.values()} == {20}  # 640 samples, 32 in a step


def test_modes_that_cannot_be_evaluated_during_training_are_not_and_that_is_reported(
    wording: Wording,
) -> None:
    layout = lay_out(request(TrainConfig(evaluate_every=10), modes=("ssgd", "asgd", "gossip")), Facts())
    evaluated = {label: plan.evaluation is not None for label, plan in layout.contenders.items()}
    assert evaluated == {"single": True, "ssgd-2": True, "asgd-2": True, "gossip-2": False}
    assert layout.remarks[0].startswith("gossip ")
    wording(layout.remarks[0])


def test_what_would_make_the_work_unequal_is_refused(wording: Wording) -> None:
    text = problems(request(TrainConfig(early_stop_patience=2, evaluate_every=5, scale_lr="linear")))
    wording(text)
    assert "--evaluate-every" in problems(request(target_accuracy=0.9))
