"""Evaluation during training, by all workers together, without a change to the training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, real, resumed
from tests.fixtures.wording import ANY_WORKER, Wording

from paceline.core.errors import TrainingError
from paceline.events.summary import end_ns
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Evaluation, EventDetail, Launcher, OptimizerChoice, Plan, Transport
from paceline.training.checkpoints import export_weights
from paceline.worker.replay.schedule import replay

VALIDATED = "paceline.laws.tasks:ValidatedTask"
RISING = "tests.fixtures.tasks.user_tasks:RisingTask"
SERVED = ("ps", "backup", "asgd", "ssp", "dssp", "easgd")
EVALUATED = ("single", "ssgd", "ddp", "onebit", "localsgd", "fedavg", "diloco", "adaptive")


def evaluated_plan(mode: str, **changes: object) -> Plan:
    adam = OptimizerChoice(name="adam", lr=0.01) if mode == "onebit" else None
    plan = small_plan(mode, task=VALIDATED, optimizer=adam, evaluation=Evaluation(every=4))
    return replace(plan, **changes)  # type: ignore[arg-type]  # the names are Plan's own


def rising_plan(mode: str = "ssgd", **changes: object) -> Plan:
    """Best after step 9; evaluated every 3 steps."""
    return replace(
        evaluated_plan(mode, task=RISING, steps=60, evaluation=Evaluation(every=3, patience=2)),
        **changes,  # type: ignore[arg-type]  # the names are Plan's own
    )


def evaluations(run: RealRun) -> list[Any]:  # Any: JSON
    result = run.result["evaluations"]
    assert isinstance(result, list)
    return result


def losses(run: RealRun) -> list[tuple[int, float]]:
    return [(evaluation["step"], evaluation["metrics"]["valid_loss"]) for evaluation in evaluations(run)]


@pytest.mark.parametrize("mode", EVALUATED)
def test_a_run_that_is_evaluated_ends_with_the_bits_of_one_that_is_not(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = evaluated_plan(mode, task_options={"batch_norm": True})
    looked_at = real(plan, tmp_path / "looked-at", launcher)
    plain = real(replace(plan, evaluation=None), tmp_path / "plain", launcher)
    if mode != "adaptive":  # whose decisions are those of the moment
        assert looked_at.result["state_sha256"] == plain.result["state_sha256"]
    assert [step for step, _ in losses(looked_at)] == [4, 8, 12]
    assert evaluations(plain) == []


@pytest.mark.parametrize("mode", SERVED)
def test_a_server_evaluates_its_parameters_between_two_updates(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = evaluated_plan(mode, task="tests.fixtures.tasks.user_tasks:TwiceMeasuredTask")
    run = real(plan, tmp_path / "run", launcher)
    assert [step for step, _ in losses(run)] == [4, 8, 12]
    events = [e for e in run.history.plain if e.kind == "evaluated"]
    assert [(e.who, e.fields["step"], e.fields["samples"]) for e in events] == [
        ("server-0", step, 8 * step) for step in (4, 8, 12)
    ]
    metrics = run.result["metrics"]
    assert isinstance(metrics, dict)
    assert losses(run)[-1][1] == pytest.approx(metrics["test_loss"], rel=1e-12)
    assert replay(plan, run.history, run.sha256).is_equal


@pytest.mark.parametrize("mode", SERVED)
def test_a_server_that_stops_early_keeps_the_best_weights_and_resuming_changes_nothing(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = rising_plan(mode, steps=400)
    run = real(plan, tmp_path / "run", launcher)
    assert run.result["stopped_early"] is True
    assert str(run.result["stopped_by"]).startswith("early stop: valid_loss ")
    best: Any = run.result["best"]  # Any: JSON
    gradients = run.result["gradients"]
    assert isinstance(gradients, int)
    metrics: Any = run.result["metrics"]  # Any: JSON
    assert metrics["steps"] == pytest.approx(best["metrics"]["valid_accuracy"])
    (stop,) = [e.fields for e in run.history.plain if e.kind == "early_stop"]
    assert stop["step"] == losses(run)[-1][0]
    # What was handed out before the decision is still applied, and slower workers catch up with the fastest.
    ahead = 2 * plan.strategy.sync_every + (plan.strategy.staleness or 0)
    if mode == "dssp":
        ahead += plan.strategy.staleness_range
    assert 0 <= gradients - 2 * losses(run)[-1][0] <= plan.num_workers * ahead
    assert replay(plan, run.history, run.sha256).is_equal
    again = resumed(tmp_path / "run", launcher)
    for key in ("best", "evaluations", "stopped_by", "stopped_early", "metrics", "state_sha256", "gradients"):
        assert again.result[key] == run.result[key], key


def test_a_synchronous_server_makes_no_step_after_the_one_that_it_stops_at(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = real(rising_plan("ps"), tmp_path / "run", launcher)
    assert [step for step, _ in losses(run)] == [3, 6, 9, 12, 15]
    assert run.result["steps"] == 15


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.GLOO])
def test_any_number_of_workers_sees_what_one_sees(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    result = set()
    for workers in (1, 2, 3):
        plan = evaluated_plan("ssgd", num_workers=workers, batch_sizes=(4,) * workers, transport=transport)
        # At this rate nothing moves, so all have the same to look at.
        run = real(replace(plan, lr=1e-300, steps=4), tmp_path / str(workers), launcher)
        result.add(str(losses(run)))
    assert len(result) == 1


def test_with_ddp_all_ranks_evaluate_the_buffers_that_the_run_ends_with(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = evaluated_plan("ddp", task="tests.fixtures.tasks.user_tasks:TwiceMeasuredTask")
    run = real(replace(plan, task_options={"batch_norm": True}), tmp_path / "run", launcher)
    metrics = run.result["metrics"]
    assert isinstance(metrics, dict)
    assert losses(run)[-1][1] == pytest.approx(metrics["test_loss"], rel=1e-12)


def test_an_evaluation_is_written_once_and_takes_no_training_time(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = real(evaluated_plan("ssgd"), tmp_path / "run", launcher)
    events = [e for e in run.history.plain if e.kind == "evaluated"]
    assert [(e.who, e.fields["step"], e.fields["samples"]) for e in events] == [
        ("worker-0", 4, 32),
        ("worker-0", 8, 64),
        ("worker-0", 12, 96),
    ]
    assert [json.loads(str(e.fields["metrics"])) for e in events] == [e["metrics"] for e in evaluations(run)]
    seconds = [float(str(e.fields["seconds"])) for e in events]
    assert sorted(seconds) == seconds
    on_the_way_s = sum(float(str(e.fields["took_s"])) for e in events[:-1])  # the last is after all steps
    assert on_the_way_s > 0
    rows = [row for mine in run.history.steps.values() for row in mine]
    span_s = (max(map(end_ns, rows)) - min(row.start_ns for row in rows)) / 1e9
    assert run.result["training_s"] == pytest.approx(span_s - on_the_way_s, rel=1e-9)
    assert run.result["best"] is None


def test_a_task_that_only_has_metrics_is_evaluated_by_them(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = evaluated_plan("ssgd", task="digits", evaluation=Evaluation(every=6))
    shared = real(plan, tmp_path / "digits", launcher)
    whole = real(replace(plan, task="xor"), tmp_path / "xor", launcher)
    assert list(evaluations(shared)[0]["metrics"]) == ["valid_loss", "valid_accuracy"]
    assert evaluations(whole)[-1]["metrics"] == whole.result["metrics"]
    metrics = shared.result["metrics"]
    assert isinstance(metrics, dict)
    last = evaluations(shared)[-1]["metrics"]
    assert last["valid_accuracy"] == pytest.approx(metrics["test_accuracy"], abs=1e-12)
    assert last["valid_loss"] == pytest.approx(metrics["test_loss"], rel=1e-12)


@pytest.mark.parametrize("mode", ["single", "ssgd", "ddp", "localsgd"])
def test_all_stop_when_it_gets_no_better_and_the_best_weights_stay(
    mode: str, launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    run = real(rising_plan(mode, strategy=small_plan("ssgd").strategy), tmp_path / "run", launcher)
    assert [step for step, _ in losses(run)] == [3, 6, 9, 12, 15]
    assert run.result["stopped_early"] is True
    wording(str(run.result["stopped_by"]))
    assert run.result["best"] == {"step": 9, "metrics": {"valid_loss": 0.0, "valid_accuracy": 9.0}}
    assert run.result["metrics"] == {"steps": 9.0}
    stops = [e.fields for e in run.history.plain if e.kind == "early_stop"]
    assert [(f["step"], f["best_step"]) for f in stops] == [(15, 9)]
    export_weights(run.run_dir, at=None, worker=0, kind="safetensors", out=tmp_path / "best.safetensors")
    assert load_file(tmp_path / "best.safetensors")["steps"] == 9.0


def test_a_run_that_stopped_early_can_be_replayed_and_resuming_it_changes_nothing(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = rising_plan()
    run = real(plan, tmp_path / "run", launcher)
    assert replay(plan, run.history, run.sha256).is_equal
    again = resumed(tmp_path / "run", launcher)
    for key in ("best", "evaluations", "stopped_by", "stopped_early", "metrics", "state_sha256", "gradients"):
        assert again.result[key] == run.result[key], key


@pytest.mark.parametrize("how", ["processes", "virtual", "without events"])
def test_patience_continues_where_it_was_when_a_run_is_resumed(
    how: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = rising_plan(evaluation=Evaluation(every=3, patience=6), pace_s=0.01)
    if how == "virtual":
        plan = replace(plan, launcher=Launcher.VIRTUAL, transport=Transport.NONE)
    if how == "without events":
        plan = replace(plan, events=EventDetail.OFF)
    whole = real(plan, tmp_path / "whole", launcher)
    stopped = real(plan, tmp_path / "parts", launcher, stop_at=11)
    assert stopped.result["stopped_early"] is True
    if "stopped_by" not in stopped.result:  # all of a virtual run may be over before it can be asked
        assert len(evaluations(stopped)) < 9
        stopped = resumed(tmp_path / "parts", launcher)
    assert stopped.result["stopped_by"] == whole.result["stopped_by"]
    assert losses(stopped) == losses(whole)
    assert stopped.result["best"] == whole.result["best"]
    assert stopped.result["state_sha256"] == whole.result["state_sha256"]
    seconds = [evaluation["seconds"] for evaluation in evaluations(stopped)]
    assert sorted(seconds) == seconds


def test_the_best_weights_are_kept_also_when_all_steps_were_made(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    run = real(rising_plan(steps=12), tmp_path / "run", launcher)
    assert run.result["stopped_early"] is False
    best = run.result["best"]
    assert isinstance(best, dict)
    assert best["step"] == 9


def test_what_is_wanted_large_is_waited_for_while_it_grows(launcher: LocalLauncher, tmp_path: Path) -> None:
    growing = Evaluation(every=3, patience=1, metric="valid_accuracy", lower_is_better=False)
    run = real(rising_plan(steps=24, evaluation=growing), tmp_path / "run", launcher)
    assert run.result["stopped_early"] is False
    assert run.result["best"] == {"step": 24, "metrics": evaluations(run)[-1]["metrics"]}


def test_a_metric_that_the_task_does_not_have_is_one_clear_error(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    odd = Evaluation(every=3, patience=1, metric="valid_f1")
    with wording.raises(TrainingError, hide=ANY_WORKER):
        real(rising_plan(evaluation=odd), tmp_path / "run", launcher)
