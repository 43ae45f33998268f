"""The Compare page reports a speedup only where repeats support it, and else that it is unknown."""

import json
from pathlib import Path

import pytest
from tests.dashboard.asgi import OURS, send_request, settings
from tests.dashboard.made import MadeRun
from tests.fixtures.wording import Wording

from paceline.comparison.schema import Estimate
from paceline.dashboard import comparison
from paceline.dashboard.comparison import Group, Repeat


def group(name: str, workers: int, rates: list[float], *, mode: str = "ssgd") -> Group:
    repeats = tuple(Repeat(seed, rate) for seed, rate in enumerate(rates))
    return Group(run=name, mode=mode, workers=workers, plan=name, samples_per_s=rates[-1], repeats=repeats)


def test_three_rounds_make_a_difference_significant_and_noise_is_called_noise(wording: Wording) -> None:
    groups = [
        group("alone", 1, [100, 104, 98]),
        group("fast", 4, [300, 311, 296]),
        group("noisy", 2, [90, 130, 99]),
    ]
    speeds = comparison.speeds(groups)
    wording("\n".join(f"{name}: {speeds[name].in_words}" for name in ("alone", "fast", "noisy")))
    speedup, efficiency = speeds["fast"].speedup, speeds["fast"].efficiency
    assert speedup is not None
    assert efficiency is not None
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low <= speedup.value <= speedup.high
    assert efficiency.value == pytest.approx(speedup.value / 4)
    fast, noisy = comparison.sentences(groups, speeds)
    assert fast.startswith("fast ")
    assert " 3.00 " in fast
    assert speeds["noisy"].in_words in noisy


def test_fewer_than_three_rounds_of_the_same_seeds_give_no_verdict(wording: Wording) -> None:
    base, other = group("alone", 1, [100, 104, 98]), group("two", 2, [190, 200])
    speed = comparison.speeds([base, other])["two"]
    wording(speed.in_words)
    assert speed.speedup == Estimate(value=195 / 100)
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
    made_run = MadeRun(tmp_path / "runs" / "other", workers=3)
    made_run.train(30)
    made_run.close()
    given = settings(tmp_path / "runs", tmp_path / "page")
    document = send_request(given, "GET", "/api/v1/compare", OURS, query="runs=a,other").json()
    first, other = document["runs"]
    assert (first["repeats"], other["repeats"], document["base"]) == (3, 0, "a")
    assert first["throughput"]["value"] == pytest.approx(301 / 3)
    assert first["throughput"]["low"] < first["throughput"]["high"]
    assert first["cost_worker_s"] == 4.0
    assert "0 rounds" in other["in_words"]
    assert other["phases"]["backward"] > other["phases"]["comm"] > 0  # it is still at work
    assert first["target_s"] > other["target_s"] - 1e-9 >= 0
    assert any(name == "num_workers" for name, _ in document["differs"])
