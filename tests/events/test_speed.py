"""Tokens per second and MFU, from the rows of a log."""

import pytest
from tests.events.test_summary import row

from paceline.events.performance import compute_speed, peak_flops
from paceline.events.read import History
from paceline.events.summary import WARM_STEPS, totals_of
from paceline.plan.codec import Json
from paceline.plan.plan import Launcher, Plan
from paceline.training.result import memory_json, speed_json

PLAN = Plan(run="r", task="llama", mode="single", num_workers=1, steps=9, batch_sizes=(4,))


def _history(slow: int, quick: int) -> History:
    """Steps of 4 samples: first slow ones, 10 s apart, then quick ones of one second."""
    starts = [10.0 * i for i in range(slow)] + [10.0 * slow + i for i in range(quick)]
    return History(steps={0: [row(number, start) for number, start in enumerate(starts)]})


def test_first_steps_do_not_count() -> None:
    assert totals_of(_history(WARM_STEPS, 10)).steady_samples_per_s() == pytest.approx(4.0)
    assert totals_of(_history(0, 3)).steady_samples_per_s() == pytest.approx(4.0)  # there are no others
    assert totals_of(History()).steady_samples_per_s() == 0.0


def test_after_a_resume_only_the_last_session_counts() -> None:
    history = _history(0, 20)
    history.steps[0] += [row(20 + i, 1000.0 + 2 * i) for i in range(WARM_STEPS + 10)]
    history.sessions.append({0: 20})
    assert totals_of(history).steady_samples_per_s() == pytest.approx(40 / 19)


def test_utilisation_is_work_over_what_all_gpus_could_do() -> None:
    speed = compute_speed(10.0, tokens=2048, flops=9.89e13, device="NVIDIA H200", gpus=2)
    assert speed.tokens_per_s == 20480
    assert speed.mfu == pytest.approx(0.5)
    assert compute_speed(10.0, tokens=None, flops=1.0, device="Some GPU", gpus=1).mfu is None
    assert compute_speed(10.0, tokens=None, flops=None, device="NVIDIA H200", gpus=1).mfu is None


def test_names_find_their_own_row() -> None:
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA A10G") == 70e12
    assert peak_flops("cpu") is None


def test_a_result_contains_only_what_was_reported() -> None:
    rate = totals_of(_history(0, 10)).steady_samples_per_s()
    assert speed_json(PLAN, {"worker-0": {}}, rate) == {}
    assert memory_json({"worker-0": {}}) == {}
    gpu: dict[str, Json] = {"device": "NVIDIA H200", "device_id": "a", "peak_device_bytes": 7}
    given: dict[str, dict[str, Json]] = {
        "worker-0": {"tokens_per_sample": 3, "flops_per_sample": 989e12, **gpu},
        "worker-1": gpu,
    }
    speed = speed_json(PLAN, given, rate)["speed"]
    assert isinstance(speed, dict)
    assert speed["mfu"] == pytest.approx(4.0)  # two workers on one GPU
    assert memory_json(given) == {"peak_device_bytes": {"worker-0": 7, "worker-1": 7}}
    virtual = Plan(**{**{f: getattr(PLAN, f) for f in PLAN.__slots__}, "launcher": Launcher.VIRTUAL})
    assert speed_json(virtual, given, rate) == {}
