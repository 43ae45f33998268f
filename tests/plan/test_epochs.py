"""`--epochs` becomes the right number of steps, or is refused with a reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.explain import explain
from paceline.plan.plan import Evaluation, Plan
from paceline.plan.resolve import resolve
from paceline.plan.schedule import next_evaluation, steps_of_epochs


def planned(num_samples: int = 1437, **options: object) -> Plan:
    config = TrainConfig(**options)  # type: ignore[arg-type]  # the names are TrainConfig's own
    return resolve(config, Facts(), count=lambda _: num_samples)


def refused(num_samples: int = 1437, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(num_samples, **options)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.what


def must_not_count(_: TrainConfig) -> int:
    raise AssertionError("the plan does not depend on it")


def test_epochs_are_steps_of_the_global_batch_rounded_up() -> None:
    plan = planned(epochs=5.0, num_workers=2, batch_size=32)
    assert (plan.steps, plan.epochs, plan.num_samples) == (113, 5.0, 1437)  # 5 * 1437 / 64 is 112.27
    assert planned(num_samples=1000, epochs=0.1, num_workers=1, batch_size=10).steps == 10
    assert planned(num_samples=3, epochs=0.5, num_workers=2).steps == 1


def test_steps_need_no_sample_count() -> None:
    plan = resolve(TrainConfig(steps=7, evaluate_every=3), Facts(), count=must_not_count)
    assert (plan.steps, plan.epochs, plan.num_samples) == (7, None, None)
    assert resolve(TrainConfig(), Facts(), count=must_not_count).steps == 200


def test_what_depends_on_the_steps_is_checked_when_they_are_known(wording: Wording) -> None:
    wording(refused(epochs=5.0, lr_warmup=500))
    assert planned(epochs=50.0, lr_warmup=500).lr_schedule is not None


def test_a_run_has_one_length(wording: Wording) -> None:
    wording(refused(epochs=2.0, steps=9))
    wording(refused(epochs=0.0))


def test_a_task_without_samples_and_a_task_that_cannot_be_counted_are_refused(wording: Wording) -> None:
    wording(refused(num_samples=0, epochs=1.0))
    with wording.raises(ConfigError):
        resolve(TrainConfig(epochs=1.0), Facts())


@given(num_samples=st.integers(1, 500), batch=st.integers(1, 90), every=st.none() | st.integers(1, 40))
def test_evaluations_are_due_at_the_end_of_every_epoch_or_every_so_many_steps(
    num_samples: int, batch: int, every: int | None
) -> None:
    plan = small_plan("single", batch_sizes=(batch,), num_samples=num_samples)
    plan = replace(plan, evaluation=Evaluation(every=every))
    due, result = [], 0
    while result < 60:
        result = next_evaluation(plan, result)
        due.append(result)
    if every is not None:
        expected = {every * k for k in range(1, 62)}
    else:
        expected = {steps_of_epochs(k, num_samples, batch) for k in range(1, 61 * batch // num_samples + 2)}
    assert due == sorted(step for step in expected if step <= due[-1])


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dssp", "ps", "backup", "easgd", "ssgd"])
@pytest.mark.parametrize("elastic", [None, True])
def test_modes_with_servers_and_elastic_runs_are_evaluated_on_the_way(
    mode: str, elastic: bool | None
) -> None:
    if (mode, elastic) != ("easgd", True):  # which is not elastic
        plan = planned(mode=mode, elastic=elastic, evaluate_every=5, early_stop_patience=2)
        assert plan.evaluation == Evaluation(every=5, patience=2)


@pytest.mark.parametrize("mode", ["gossip", "adpsgd"])
def test_modes_without_a_common_step_are_not_evaluated_on_the_way(mode: str, wording: Wording) -> None:
    wording(refused(mode=mode, evaluate_every=5))


def test_other_combinations_that_cannot_work_are_refused(wording: Wording) -> None:
    wording(refused(mode="diloco", fragments=2, evaluate_every="epoch"))
    wording(refused(evaluate_every=0))
    wording(refused(evaluate_every="never"))
    wording(refused(early_stop_metric="valid_loss"))
    wording(refused(early_stop_metric="a:most", early_stop_patience=1))


def test_patience_alone_means_every_epoch() -> None:
    plan = planned(epochs=3.0, early_stop_patience=2, early_stop_metric="valid_accuracy:max")
    expected = Evaluation(every=None, patience=2, metric="valid_accuracy", lower_is_better=False)
    assert plan.evaluation == expected
    assert planned(evaluate_every=4, steps=9).evaluation == Evaluation(every=4)


def test_the_linear_rule_multiplies_the_rate_and_warms_up() -> None:
    plan = planned(scale_lr="linear", num_workers=4, batch_size=16, steps=1000)
    assert plan.lr_scale == 4.0
    assert plan.lr_schedule is not None
    assert plan.lr_schedule.warmup == 113  # 5 epochs of 1437 samples, 64 at a time
    short = planned(scale_lr="linear", num_workers=4, batch_size=16, epochs=5.0)
    assert short.lr_schedule is not None
    assert short.lr_schedule.warmup == 113 // 5  # no more than a fifth of the run
    own = resolve(TrainConfig(scale_lr="linear", lr_warmup=7), Facts(), count=must_not_count)
    assert own.lr_schedule is not None
    assert own.lr_schedule.warmup == 7
    alone = resolve(TrainConfig(scale_lr="linear", mode="single"), Facts(), count=must_not_count)
    assert (alone.lr_scale, alone.lr_schedule) == (1.0, None)


@pytest.mark.parametrize("mode", ["asgd", "localsgd"])
def test_the_linear_rule_is_refused_where_the_batch_of_an_update_does_not_grow(
    mode: str, wording: Wording
) -> None:
    wording(refused(mode=mode, scale_lr="linear"))


def test_the_plan_describes_the_epochs(wording: Wording) -> None:
    plan = planned(epochs=5.0, early_stop_patience=2, scale_lr="linear", batch_size=32)
    texts = {line.topic: line.text for line in explain(plan)}
    wording(texts["work"])
    wording(texts["rate"])
    wording(texts["evaluated"])
