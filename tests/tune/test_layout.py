"""A search is planned and validated completely before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.searches import Here, laid_out
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.load import load
from paceline.core.errors import ConfigError
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.tune.experiment import Trial, cpus_of, rung_of


def refused(here: Here, *searches: str, **more: object) -> str:
    with pytest.raises(ConfigError) as caught:
        laid_out(here, *searches, **more)
    return " | ".join(f"{p.where}: {p.what}: {p.hint}" for p in caught.value.problems)


def plan_of(**options: str) -> Plan:
    return resolve(Here(**options).read([]).config, Facts(), count=lambda _: 1000)


def test_each_trial_has_its_own_plan_drawn_from_the_seed() -> None:
    tuning, remarks = laid_out(Here(seed="7"), "lr=log:1e-3..1", "batch_size=8,16", trials=6)
    assert [trial.number for trial in tuning.trials] == [1, 2, 3, 4, 5, 6]
    assert [trial.plan.run for trial in tuning.trials][:2] == ["trial-001", "trial-002"]
    for trial in tuning.trials:
        assert trial.plan.lr == float(trial.settings["lr"])
        assert trial.plan.batch_sizes == (int(trial.settings["batch_size"]),) * 2
        assert trial.plan.seed == 7
    assert remarks == []
    assert tuning == laid_out(Here(seed="7"), "lr=log:1e-3..1", "batch_size=8,16", trials=6)[0]
    assert tuning.trials != laid_out(Here(seed="8"), "lr=log:1e-3..1", "batch_size=8,16", trials=6)[0].trials


def test_a_trial_s_file_makes_the_same_run(tmp_path: Path) -> None:
    here = Here(epochs="3", straggler="worker=1,factor=2", task_options="hidden=4")
    tuning, _ = laid_out(here, "lr=log:1e-3..1", "mode=ssgd,localsgd", "sync_every=2..8", trials=4)
    for trial in tuning.trials:
        path = tmp_path / f"{trial.number}.yaml"
        path.write_text(trial.file)
        loaded = load(file=path)
        assert not loaded.problems
        again = resolve(loaded.config, Facts(cpu_count=2), count=here.count)
        assert _without_name(again) == _without_name(trial.plan)


def _without_name(plan: Plan) -> Plan:
    return replace(plan, run="")


def test_a_mode_gets_only_what_it_reads_and_the_same_run_is_not_made_twice(wording: Wording) -> None:
    tuning, remarks = laid_out(Here(), "mode=ssgd,localsgd", "sync_every=2,4,8", trials=9)
    settings = [trial.settings for trial in tuning.trials]
    assert sorted(str(s.get("sync_every")) for s in settings) == ["2", "4", "8", "None"]
    assert laid_out(Here(), "mode=ssgd,localsgd", "sync_every=2,4,8")[1] == []
    (remark,) = remarks
    wording(remark)


def test_an_invalid_corner_is_reported_before_anything_starts(wording: Wording) -> None:
    wording(refused(Here(), "lr=0..1"))
    wording(refused(Here(), "mode=ssgd,asgdd"))
    refusal = refused(Here(straggler="worker=2,factor=3"), "num_workers=2,3", "lr=0.1..1")
    assert "num_workers=2)" in refusal, "only where it depends on it"
    wording(refusal)
    always = refused(Here(steps="0"), "num_workers=2,3")
    assert "num_workers" not in always
    wording(always)
    wording(refused(Here(steps="0"), "lr=0.1..1"))


def test_a_searched_setting_must_not_be_set_too_and_must_be_used(wording: Wording) -> None:
    wording(refused(Here(lr="0.1"), "lr=0.1..1"))
    wording(refused(Here(), "mode=ssgd,ddp", "staleness=1..4"))
    wording(refused(Here()))


def test_an_unknown_task_option_is_reported_before_anything_starts(wording: Wording) -> None:
    wording(refused(Here(), "task_option.width=8,16"))
    here = Here()
    tuning, _ = laid_out(here, "task_option.hidden=4..6", trials=3)
    assert sorted(int(str(trial.plan.task_options["hidden"])) for trial in tuning.trials) == [4, 5, 6]
    assert here.counted


def test_the_launcher_and_the_folder_of_a_trial_are_not_the_users_choice(
    wording: Wording,
) -> None:
    wording(refused(Here(launcher="ray"), "lr=0.1..1"))
    refusal = refused(Here(checkpoint_store="s3://a/b", export="tensorboard"), "lr=0.1..1")
    assert "`paceline export" in refusal
    wording(refusal)


def test_trials_are_evaluated_on_the_way_where_that_is_possible() -> None:
    tuning, _ = laid_out(Here(steps="100"), "lr=0.1..1", trials=2)
    assert [trial.plan.evaluation and trial.plan.evaluation.every for trial in tuning.trials] == [10, 10]
    assert tuning.asha is not None
    assert (tuning.asha.longest, tuning.metric, tuning.lower_is_better) == (
        10,
        ("valid_loss", "test_loss"),
        True,
    )
    tuning, _ = laid_out(Here(epochs="4"), "lr=0.1..1", trials=2)
    assert tuning.asha is not None
    assert tuning.asha.longest == 4
    tuning, _ = laid_out(Here(evaluate_every="25", steps="100"), "lr=0.1..1", trials=2)
    assert tuning.asha is not None
    assert tuning.asha.longest == 4


def test_without_intermediate_evaluations_asha_is_off_with_a_reason_or_is_refused(wording: Wording) -> None:
    tuning, remarks = laid_out(Here(mode="gossip"), "lr=0.1..1", trials=2)
    assert tuning.asha is None
    assert tuning.metric == ("test_loss",), "valid_loss is only known on the way"
    wording("\n".join(remarks))
    wording(refused(Here(mode="gossip"), "lr=0.1..1", wants_asha=True))
    wording(refused(Here(mode="gossip", evaluate_every="5"), "lr=0.1..1"))
    tuning, remarks = laid_out(Here(evaluate_every="5"), "mode=ssgd,gossip", "lr=0.1..1", trials=4)
    assert tuning.asha is not None
    wording("\n".join(remarks))
    assert laid_out(Here(), "lr=0.1..1", wants_asha=False)[0].asha is None
    wording(refused(Here(epochs="2"), "lr=0.1..1", wants_asha=True, grace=5))


@pytest.mark.parametrize(
    ("text", "names", "lower_is_better"),
    [
        ("valid_loss", ("valid_loss",), True),
        ("valid_accuracy", ("valid_accuracy",), False),
        ("f1:max", ("f1",), False),
        ("accuracy:min", ("accuracy",), True),
    ],
)
def test_an_accuracy_is_maximized_by_default(
    text: str, names: tuple[str, ...], lower_is_better: bool
) -> None:
    tuning, _ = laid_out(Here(), "lr=0.1..1", metric=text)
    assert (tuning.metric, tuning.lower_is_better) == (names, lower_is_better)


def test_a_metric_that_is_none_is_refused(wording: Wording) -> None:
    wording(refused(Here(), "lr=0.1..1", metric="loss:low"))


def test_an_evaluation_has_the_same_number_after_a_resume() -> None:
    by_steps = plan_of(steps="100", evaluate_every="25")
    assert [rung_of(by_steps, step) for step in (25, 50, 75, 100)] == [1, 2, 3, 4]
    by_epochs = plan_of(epochs="3", evaluate_every="epoch", batch_size="8")
    assert [rung_of(by_epochs, step) for step in (63, 125, 188)] == [1, 2, 3]
    assert rung_of(plan_of(mode="asgd"), 200) == 1


def test_a_trial_reserves_a_processor_for_every_thread_of_every_participant() -> None:
    assert cpus_of(plan_of()) == 2
    assert cpus_of(plan_of(mode="asgd", num_workers="3")) == 4, "a server, too"
    assert cpus_of(plan_of(threads_per_worker="2")) == 4
    assert cpus_of(plan_of(launcher="virtual", num_workers="8")) == 1
    assert cpus_of(plan_of(elastic="yes", mode="asgd")) == 4, "primary and backup"
    tuning, _ = laid_out(Here(), "num_workers=1,4")
    assert {trial.settings["num_workers"]: trial.cpus for trial in tuning.trials} == {"1": 1, "4": 4}
    assert all(isinstance(trial, Trial) and trial.gpus == 0 for trial in tuning.trials)
