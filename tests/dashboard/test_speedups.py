"""What does Compare say of runs beside each other? Faster only if repeats say so; else that nobody knows."""

import json
from pathlib import Path

import pytest
from tests.dashboard.asgi import OURS, ask, settings
from tests.dashboard.made import MadeRun

from paceline.comparison.schema import Estimate
from paceline.dashboard import comparison
from paceline.dashboard.comparison import Group, Repeat


def group(name: str, workers: int, rates: list[float], *, mode: str = "ssgd") -> Group:
    repeats = tuple(Repeat(seed, rate) for seed, rate in enumerate(rates))
    return Group(run=name, mode=mode, workers=workers, plan=name, samples_per_s=rates[-1], repeats=repeats)


def test_three_rounds_make_a_difference_significant_and_noise_is_called_noise() -> None:
    groups = [
        group("alone", 1, [100, 104, 98]),
        group("fast", 4, [300, 311, 296]),
        group("noisy", 2, [90, 130, 99]),
    ]
    found = comparison.speeds(groups)
    assert found["alone"].in_words == "the baseline"
    assert found["fast"].in_words == "significantly faster"
    assert found["noisy"].in_words == "no significant difference"
    speedup, efficiency = found["fast"].speedup, found["fast"].efficiency
    assert speedup is not None
    assert efficiency is not None
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low <= speedup.value <= speedup.high
    assert efficiency.value == pytest.approx(speedup.value / 4)
    fast, noisy = comparison.sentences(groups, found)
    assert fast.startswith("fast made 3.00 times the samples a second of alone (95 %: ")
    assert noisy.endswith("no significant difference.")


def test_fewer_than_three_rounds_of_the_same_seeds_say_nothing() -> None:
    base, other = group("alone", 1, [100, 104, 98]), group("two", 2, [190, 200])
    found = comparison.speeds([base, other])["two"]
    assert found.in_words.startswith("not known: 2 rounds")
    assert found.speedup == Estimate(value=195 / 100)
    assert comparison.rounds(other.repeats, (Repeat(7, 1.0),)) == ([], [])


def test_amdahls_law_is_fitted_where_one_worker_and_two_other_numbers_ran() -> None:
    serial = 0.1
    groups = [group(f"w{n}", n, [100 / (serial + (1 - serial) / n)] * 3) for n in (1, 2, 4)]
    (fit,) = comparison.scaling(groups, comparison.speeds(groups))
    assert fit.law.serial == pytest.approx(serial)
    assert fit.law.limit == pytest.approx(1 / serial)
    assert comparison.scaling(groups[1:], comparison.speeds(groups[1:])) == []


def test_repeats_are_found_in_the_folder_by_their_plans(tmp_path: Path) -> None:
    for name, rate in (("a", 100.0), ("b", 103.0), ("c", 98.0)):
        run = MadeRun(tmp_path / "runs" / name)
        run.train(20)
        run.close("finished")
        (run.folder / "result.json").write_text(json.dumps({"samples_per_s": rate, "training_s": 2.0}))
    one = MadeRun(tmp_path / "runs" / "other", workers=3)
    one.train(30)
    one.close()
    said = settings(tmp_path / "runs", tmp_path / "page")
    found = ask(said, "GET", "/api/v1/compare", OURS, query="runs=a,other").json()
    first, other = found["runs"]
    assert (first["repeats"], other["repeats"], found["base"]) == (3, 0, "a")
    assert first["throughput"]["value"] == pytest.approx(301 / 3)
    assert first["throughput"]["low"] < first["throughput"]["high"]
    assert first["cost_worker_s"] == 4.0
    assert other["in_words"].startswith("not known: 0 rounds")
    assert other["phases"]["backward"] > other["phases"]["comm"] > 0  # it is still at work
    assert first["target_s"] > other["target_s"] - 1e-9 >= 0
    assert any(name == "num_workers" for name, _ in found["differs"])
