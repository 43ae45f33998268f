"""Is everything about a search decided, and sound, before anything starts?"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.searches import Here, laid_out

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


def plan_of(**said: str) -> Plan:
    return resolve(Here(**said).read([]).config, Facts(), count=lambda _: 1000)


def test_each_trial_is_a_plan_of_its_own_drawn_from_the_seed() -> None:
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


def test_a_mode_gets_only_what_it_reads_and_the_same_run_is_not_made_twice() -> None:
    tuning, remarks = laid_out(Here(), "mode=ssgd,localsgd", "sync_every=2,4,8", trials=9)
    settings = [trial.settings for trial in tuning.trials]
    assert sorted(str(s.get("sync_every")) for s in settings) == ["2", "4", "8", "None"]
    assert laid_out(Here(), "mode=ssgd,localsgd", "sync_every=2,4,8")[1] == []
    assert remarks == ["there are only 4 different runs to try, and not 9"]


def test_a_corner_that_cannot_run_is_told_before_anything_starts() -> None:
    assert "lr is 0.0, but it must be more than 0" in refused(Here(), "lr=0..1")
    assert "there is no mode asgdd" in refused(Here(), "mode=ssgd,asgdd")
    told = refused(Here(straggler="worker=2,factor=3"), "num_workers=2,3", "lr=0.1..1")
    assert "there is no worker 2 among 2" in told
    assert "(with num_workers=2)" in told, "only where it depends on it"
    assert "with" not in refused(Here(steps="0"), "num_workers=2,3")
    assert "steps is 0" in refused(Here(steps="0"), "lr=0.1..1")


def test_what_is_searched_must_not_be_said_too_and_must_be_read_by_somebody() -> None:
    assert "lr is searched, and also said: leave --lr out" in refused(Here(lr="0.1"), "lr=0.1..1")
    told = refused(Here(), "mode=ssgd,ddp", "staleness=1..4")
    assert "staleness is set, but no mode of the search reads it" in told
    assert "nothing is searched" in refused(Here())


def test_an_option_that_the_task_does_not_have_is_told_before_anything_starts() -> None:
    assert "has no option width" in refused(Here(), "task_option.width=8,16")
    here = Here()
    tuning, _ = laid_out(here, "task_option.hidden=4..6", trials=3)
    assert sorted(int(str(trial.plan.task_options["hidden"])) for trial in tuning.trials) == [4, 5, 6]
    assert here.counted


def test_who_starts_a_trial_s_workers_and_where_its_record_goes_is_not_the_user_s_to_say() -> None:
    assert "a trial's workers are processes where Ray puts the trial" in refused(
        Here(launcher="ray"), "lr=0.1..1"
    )
    assert "afterwards `paceline export" in refused(Here(checkpoint_store="s3://a/b", export="tensorboard"),
                                                    "lr=0.1..1")  # fmt: skip


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


def test_where_nobody_looks_on_the_way_asha_is_off_and_says_why_or_is_refused() -> None:
    tuning, remarks = laid_out(Here(mode="gossip"), "lr=0.1..1", trials=2)
    assert tuning.asha is None
    assert tuning.metric == ("test_loss",), "valid_loss is only known on the way"
    assert remarks == [
        "mode gossip: evaluated at the end of a trial only",
        "scheduler none: no trial can be stopped early, as none is evaluated on the way",
    ]
    told = refused(Here(mode="gossip"), "lr=0.1..1", wants_asha=True)
    assert "scheduler is asha, but no trial can be stopped early" in told
    assert "mode gossip: evaluated at the end" in told
    told = refused(Here(mode="gossip", evaluate_every="5"), "lr=0.1..1")
    assert "evaluate_every is set, but mode gossip has no step" in told
    tuning, remarks = laid_out(Here(evaluate_every="5"), "mode=ssgd,gossip", "lr=0.1..1", trials=4)
    assert tuning.asha is not None
    assert remarks == ["mode gossip: evaluated at the end of a trial only"]
    assert laid_out(Here(), "lr=0.1..1", wants_asha=False)[0].asha is None
    assert "evaluated more than 2 times" in refused(Here(epochs="2"), "lr=0.1..1", wants_asha=True, grace=5)


@pytest.mark.parametrize(
    ("said", "names", "lower_is_better"),
    [
        ("valid_loss", ("valid_loss",), True),
        ("valid_accuracy", ("valid_accuracy",), False),
        ("f1:max", ("f1",), False),
        ("accuracy:min", ("accuracy",), True),
    ],
)
def test_an_accuracy_is_to_be_large_unless_somebody_says_otherwise(
    said: str, names: tuple[str, ...], lower_is_better: bool
) -> None:
    tuning, _ = laid_out(Here(), "lr=0.1..1", metric=said)
    assert (tuning.metric, tuning.lower_is_better) == (names, lower_is_better)


def test_a_metric_that_is_none_is_refused() -> None:
    assert "it must be NAME, NAME:min or NAME:max" in refused(Here(), "lr=0.1..1", metric="loss:low")


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
