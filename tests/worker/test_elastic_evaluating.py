"""Evaluations and early stopping of elastic runs, whose workers may be lost at any moment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.generations import ElasticRun, Fault, any_faults
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash
from tests.fixtures.wording import Wording

from paceline.events.read import read_history
from paceline.plan.plan import Elastic, Evaluation, Plan, StrategyOptions, Transport
from paceline.training.verify import verify_run

VALIDATED = "paceline.laws.tasks:ValidatedTask"
RISING = "tests.fixtures.tasks.user_tasks:RisingTask"
MODES = ("ssgd", "localsgd", "diloco", "fedavg", "adaptive")
MANY_LOOKS = 160  # about as often as a worker of these runs looks at its clock


def elastic_plan(mode: str = "ssgd", workers: int = 3, **changes: object) -> Plan:
    options = StrategyOptions(sync_every=3) if mode == "localsgd" else small_plan(mode).strategy
    plan = replace(small_plan(mode, num_workers=4), strategy=options, task=VALIDATED, steps=12)
    elastic = Elastic(workers=workers, min_workers=1, max_workers=workers)
    plan = replace(plan, elastic=elastic, evaluation=Evaluation(every=3))
    return replace(plan, **changes)  # type: ignore[arg-type]  # the names are Plan's own


def rising_plan(mode: str = "ssgd", workers: int = 3) -> Plan:
    """Best after step 9; evaluated every 3 steps."""
    return elastic_plan(mode, workers, task=RISING, steps=60, evaluation=Evaluation(every=3, patience=2))


def run_it(plan: Plan, folder: Path, *faults: Fault) -> ElasticRun:
    run = ElasticRun(plan, folder, faults)
    run.run()
    assert len(set(run.hashes)) == 1
    return run


def measured(run: ElasticRun) -> list[Any]:  # Any: JSON
    """Steps and losses, of which all who got to the end report the same."""
    results = [
        # The other metric draws from torch's generator, which workers that are threads share.
        [(entry["step"], entry["metrics"]["valid_loss"]) for entry in json.loads(str(facts["evaluations"]))]
        for facts in run.evaluated
    ]
    assert all(entries == results[0] for entries in results)
    return results[0]


def written(run: ElasticRun, kind: str) -> list[int]:
    return sorted({int(str(e.fields["step"])) for e in run.log.plain if e.kind == kind})


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_workers_measures_the_same_and_trains_the_same_bits(
    mode: str, workers: int, tmp_path: Path
) -> None:
    plan = elastic_plan(mode, workers)
    run = run_it(plan, tmp_path / "some")
    assert measured(run) == measured(run_it(elastic_plan(mode, 2), tmp_path / "two"))
    assert measured(run)[-1][0] == plan.steps
    assert written(run, "evaluated") == [step for step, _ in measured(run)]
    if mode != "adaptive":  # whose decisions are those of the moment
        assert run.hashes[0] == virtual_hash(replace(plan, elastic=None, evaluation=None))


@pytest.mark.parametrize("mode", ["ssgd", "localsgd"])
def test_all_stop_at_the_same_step_and_keep_the_best_weights(
    mode: str, tmp_path: Path, wording: Wording
) -> None:
    run = run_it(rising_plan(mode), tmp_path)
    assert [step for step, _ in measured(run)] == [3, 6, 9, 12, 15]
    assert len(run.evaluated) == 3
    for facts in run.evaluated:
        wording(str(facts["stopped_by"]))
        assert json.loads(str(facts["best"]))["step"] == 9
    assert written(run, "early_stop") == [15]


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ps", pytest.param("ddp", marks=pytest.mark.soak)])
def test_a_run_whose_evaluating_process_is_killed_stops_where_an_undisturbed_one_does(
    mode: str, tmp_path: Path
) -> None:
    args = [
        "--task",
        "tests.fixtures.tasks.user_tasks:KilledEvaluatorTask",
        "--steps",
        "200",
        "--num-workers",
        "2",
    ]
    stop = ["--evaluate-every", "3", "--early-stop-patience", "2", "--elastic", "--json"]
    marker, run_dir = tmp_path / "killed", tmp_path / "run"
    option = ["--task-option", f"marker={marker}", "--run-dir", str(run_dir)]
    outcome = paceline("train", *args, "--mode", mode, "--batch-size", "4", *stop, *option)
    assert outcome.code == 0, outcome.err
    assert marker.exists()
    result = json.loads((run_dir / "result.json").read_text())
    steps = [evaluation["step"] for evaluation in result["evaluations"]]
    assert steps == [*range(3, steps[-1] + 1, 3)]
    assert str(result["stopped_by"]).startswith("early stop")
    best, last = result["best"], result["evaluations"][-1]
    assert best["step"] == last["step"] - 6  # the patience is two evaluations
    assert result["metrics"] == {"steps": pytest.approx(best["metrics"]["valid_accuracy"])}
    assert 0 <= result["steps"] - last["step"] <= 2  # a server's workers finish what they have begun
    events = read_history(run_dir / "events.jsonl").plain
    assert [int(str(e.fields["step"])) for e in events if e.kind == "evaluated"] == steps
    assert [int(str(e.fields["step"])) for e in events if e.kind == "early_stop"] == [steps[-1]]
    if mode == "ddp":  # whose sums depend on how many workers there are
        assert all(finding.ok for finding in verify_run(run_dir))
    else:
        assert_nothing_was_lost(run_dir)


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
@settings(max_examples=5, deadline=None)  # each switches threads some thousand times
@given(faults=any_faults(at_most=2, looks=MANY_LOOKS))  # one of three survives
def test_whichever_worker_is_lost_no_evaluation_and_no_decision_is_lost_or_made_twice(
    transport: Transport, faults: list[Fault], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = run_it(replace(rising_plan(), transport=transport), tmp_path_factory.mktemp("run"), *faults)
    assert [step for step, _ in measured(run)] == [3, 6, 9, 12, 15]
    assert {json.loads(str(facts["best"]))["step"] for facts in run.evaluated} == {9}
    assert {str(facts["stopped_by"])[:10] for facts in run.evaluated} == {"early stop"}
    assert written(run, "evaluated") == [3, 6, 9, 12, 15]
    assert written(run, "early_stop") == [15]
