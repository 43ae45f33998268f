"""The track with Ray: what must be done, computed from benchmarks and runs, without running one."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.comparison.made import MACHINE
from tests.comparison_benchmark.made import run as measured
from tests.learn.test_checking import STRUCK

from paceline.comparison.benchmark.assess import compare
from paceline.comparison.benchmark.keras_runner import LOG
from paceline.comparison.benchmark.runner import MEASURED
from paceline.comparison.benchmark.schema import Cluster, Measured, dumps, write_measured
from paceline.core.clock import boot_id
from paceline.learn.course import BASICS, ON_RAY, Course
from paceline.learn.evidence import fingerprints, gather
from paceline.learn.lesson import BenchmarkFacts, Facts, Finding, Part, RunFacts, Trace
from paceline.learn.progress import Moment, Progress, check, skipped

BEGAN_S = 1000.0
PLAIN = RunFacts(
    folder="runs/plain",
    began_unix_s=BEGAN_S,
    mode="ssgd",
    workers=2,
    steps=160,
    pace_s=0.025,
    samples=10240,
    samples_per_s=2400.0,
)
ON_CLUSTER = replace(PLAIN, folder="runs/on-ray", launcher="ray", samples_per_s=2200.0)
SURVIVOR = replace(STRUCK, folder="runs/survivor", workers=2, launcher="ray")


def sides(workers: int, total_s: float, rate: float) -> list[Measured]:
    """Keras alone in 100 s at 50 images/s, and Ray Train."""
    base = replace(measured("baseline", 1, 100.0, 50.0), framework="keras", started_unix_s=BEGAN_S)
    ray = replace(
        measured("ray", workers, total_s, rate, on_ray=True),
        framework="keras",
        started_unix_s=BEGAN_S,
        first_step_s=40.0,
        cluster=Cluster(nodes=2, cpus=4.0),
    )
    return [base, ray]


def made(name: str, workers: int = 2, total_s: float = 130.0, rate: float = 90.0) -> BenchmarkFacts:
    runs = {run.name: [run] for run in sides(workers, total_s, rate)}
    result = compare(runs, baseline="baseline", subject="ray", task="cifar10, Keras", machine=MACHINE)
    return BenchmarkFacts(folder=name, result=result, traces=(Trace(folder=name, began_unix_s=BEGAN_S),))


BROKEN = BenchmarkFacts(
    folder="broken",
    result=None,
    traces=(Trace(folder="broken/runs/baseline-1", began_unix_s=BEGAN_S),),
    dead_worker="ActorDiedError: the actor died",
)
FACTS = Facts(
    runs={"plain": PLAIN, "on-ray": ON_CLUSTER, "survivor": SURVIVOR},
    benchmarks={
        "two": made("two"),
        "watched": made("watched"),
        "more": made("more", 4, 150.0, 100.0),
        "broken": BROKEN,
    },
)
RIGHT: dict[int, dict[int, str]] = {
    11: {1: "0.9", 2: "10240"},
    12: {1: "0.77", 2: "38", 3: "50"},
    13: {1: "40", 2: "1.8", 3: "b"},
    14: {1: "2", 2: "4", 3: "2"},
    15: {1: "2", 2: "25", 3: "b"},
    16: {1: "5", 2: "1"},
    17: {1: "1", 2: "3"},
    18: {1: "b", 2: "1", 3: "0"},
}


def part(number: int) -> Part:
    return ON_RAY.parts[number - 11]


def missing(number: int, answers: dict[int, str], facts: Facts, *, predicted_s: float = 1.0) -> list[Finding]:
    now = Moment(unix_s=predicted_s, monotonic_ns=0, boot_id=boot_id())
    progress = Progress().begin(number, 0.0).predict(number, "1", now)
    for question, value in answers.items():
        progress = progress.answer(number, question, value, 2.0)
    return [finding for finding in check(part(number), progress.of(number), facts) if not finding.ok]


@pytest.mark.parametrize("number", RIGHT)
def test_a_part_is_done_when_all_was_seen_and_answered(number: int) -> None:
    assert missing(number, RIGHT[number], FACTS) == []


@pytest.mark.parametrize("number", RIGHT)
def test_a_wrong_answer_is_one_finding_with_a_hint(number: int) -> None:
    for question, right in RIGHT[number].items():
        wrong = "a" if right == "b" else "977"
        (finding,) = missing(number, {**RIGHT[number], question: wrong}, FACTS)
        assert finding.what.startswith(f"question {question}: ")
        assert finding.hint


@pytest.mark.parametrize("number", RIGHT)
def test_without_evidence_each_missing_thing_has_a_command(number: int) -> None:
    findings = missing(number, RIGHT[number], Facts())
    assert findings
    assert all(finding.hint for finding in findings)


@pytest.mark.parametrize(("number", "name"), [(12, "two"), (14, "watched"), (15, "more"), (16, "broken")])
def test_a_benchmark_that_was_made_before_the_prediction_does_not_count(number: int, name: str) -> None:
    (finding,) = missing(number, RIGHT[number], FACTS, predicted_s=BEGAN_S + 1)
    assert name in finding.what


def test_a_benchmark_that_finished_was_not_broken() -> None:
    finished = replace(FACTS, benchmarks={**FACTS.benchmarks, "broken": made("broken")})
    assert len(missing(16, RIGHT[16], finished)) >= 2


def test_a_run_without_ray_is_not_one_on_ray() -> None:
    local = replace(FACTS, runs={**FACTS.runs, "on-ray": replace(ON_CLUSTER, launcher="local")})
    (finding,) = missing(11, RIGHT[11], local)
    assert "local" in finding.what


def test_facts_of_a_benchmark_come_from_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "two"
    runs = sides(2, 130.0, 90.0)
    for run in runs:
        (out / "runs" / f"{run.name}-1").mkdir(parents=True)
        write_measured(run, out / "runs" / f"{run.name}-1" / MEASURED)
    by_name = {run.name: [run] for run in runs}
    result = compare(by_name, baseline="baseline", subject="ray", task="cifar10", machine=MACHINE)
    (out / "comparison.json").write_text(dumps(result), encoding="utf-8")
    facts = gather(tmp_path, (), tries_rules=False, benchmarks=("two", "never")).benchmarks
    assert list(facts) == ["two"]
    assert facts["two"].result == result
    assert facts["two"].is_consistent
    assert len(fingerprints(tmp_path, (), is_compared=False, benchmarks=("two",))) == 2
    write_measured(replace(runs[0], total_s=1.0), out / "runs" / "baseline-1" / MEASURED)
    assert not gather(tmp_path, (), benchmarks=("two",)).benchmarks["two"].is_consistent


def test_a_dead_worker_is_found_in_the_log_of_a_benchmark_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "broken" / "runs" / "ray-1"
    folder.mkdir(parents=True)
    (folder / MEASURED).write_text("{}\n", encoding="utf-8")
    (folder / LOG).write_text(
        "epoch 1\n\x1b[33mray.exceptions.ActorDiedError\x1b[0m: it died\n", encoding="utf-8"
    )
    facts = gather(tmp_path, (), tries_rules=False, benchmarks=("broken",)).benchmarks["broken"]
    assert (facts.result, facts.traces) == (None, ())
    assert facts.dead_worker.startswith("ray.exceptions.ActorDiedError")


def test_a_track_counts_its_own_parts_and_the_one_begun_last_is_continued(tmp_path: Path) -> None:
    progress = Progress().begin(13, 0.0)
    assert skipped(13, progress, ON_RAY.first) == [11, 12]
    course = Course(tmp_path)
    assert course.track == BASICS
    course.start(course.part(11))
    assert course.track == ON_RAY
    assert course.part(None).number == 11
