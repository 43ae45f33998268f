"""A trial reports its metric and step, and only what ASHA may compare."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.searches import Here, laid_out

from paceline.plan.codec import Json, dumps, plan_hash
from paceline.tune.experiment import Trial
from paceline.tune.trial import WORST, TrialOrder, final_report, finished_result, value_report

ORDER = TrialOrder(number=1, plan="", run_dir="", folder="", metric=("test_loss",), lower_is_better=True)


@pytest.fixture
def trial() -> Trial:
    return laid_out(Here(steps="40"), "lr=log:1e-3..1", trials=2)[0].trials[0]


def evaluated(step: int, loss: float) -> Json:
    return {"step": step, "metrics": {"test_loss": loss}}


def test_asha_compares_what_is_evaluated_on_the_way(trial: Trial) -> None:
    report = value_report({"test_loss": 0.5}, 8, trial.plan, ORDER)
    assert (report["value"], report["rung"], report["score"]) == (0.5, 2, 0.5)
    assert (
        value_report({"test_loss": 0.5}, 8, trial.plan, replace(ORDER, lower_is_better=False))["score"]
        == -0.5
    )
    nothing = value_report({"test_loss": None}, 8, trial.plan, ORDER)
    assert (nothing["has_value"], nothing["score"]) == (False, WORST)
    assert value_report({"accuracy": 0.5}, 8, trial.plan, ORDER) == {}


def test_what_is_known_at_the_end_only_is_no_rival_at_the_first_evaluation(trial: Trial) -> None:
    plan = replace(trial.plan, evaluation=None)
    report = final_report({"metrics": {"test_loss": 0.1}}, plan, ORDER)
    assert (report["state"], report["value"], report["step"]) == ("finished", 0.1, 40)
    assert "score" not in report


def test_a_trial_that_ended_by_its_own_patience_is_recorded_where_it_ended(trial: Trial) -> None:
    result: dict[str, Json] = {
        "evaluations": [evaluated(4, 0.2), evaluated(8, 0.3), evaluated(12, 0.4)],
        "best": {"step": 4, "metrics": {"test_loss": 0.2}},
        "metrics": {},
    }
    early: dict[str, Json] = {**result, "stopped_by": "early stop: test_loss was no better"}
    report = final_report(early, trial.plan, ORDER)
    assert (report["state"], report["step"], report["rung"], report["value"]) == ("finished", 12, 3, 0.2)
    assert final_report(result, trial.plan, ORDER)["step"] == 40
    other = final_report(early, trial.plan, replace(ORDER, metric=("accuracy",)))
    assert (other["state"], other["known"], other["step"]) == ("unmeasured", "test_loss", 12)


def test_half_a_result_is_none_so_that_the_trial_is_done_again(trial: Trial, tmp_path: Path) -> None:
    assert finished_result(trial.plan, tmp_path) is None
    (tmp_path / "plan.json").write_text(dumps(trial.plan))
    text = json.dumps({"plan": plan_hash(trial.plan), "stopped_early": False, "wall_s": 1.5})
    for half in ("", text[:-1]):
        (tmp_path / "result.json").write_text(half)
        assert finished_result(trial.plan, tmp_path) is None
    (tmp_path / "result.json").write_text(text)
    assert finished_result(trial.plan, tmp_path) == json.loads(text)
