"""Fault experiments about resizing, slowness and silence act for real, and their guarantees hold."""

import pytest
from tests.fixtures.processes.command import paceline

# How fast a busy machine is proves nothing; `paceline lab` itself judges that too.
TIMED = (
    ", maximum",
    "is detected",
    "throughput recovers",
    "reported as slow",
    "longest pause",
)


def run(name: str, times: int, within_s: float) -> list[dict[str, object]]:
    result = paceline("lab", "run", name, "--times", str(times), "--json", within_s=within_s)
    assert result.code in (0, 8), result.err
    expectations = result.data()["expectations"]
    return [
        expectation for expectation in expectations if not any(part in expectation["what"] for part in TIMED)
    ]


# Growing and shrinking is in test_workers_command.py too.
@pytest.mark.parametrize(
    ("name", "times"), [pytest.param("resize", 6, marks=pytest.mark.soak), ("quorum-lost", 1)]
)
def test_an_experiment_shows_that_nothing_was_lost(name: str, times: int) -> None:
    certain = run(name, times, 240)
    assert len(certain) >= 5
    assert all(result["ok"] for result in certain), certain


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_slow_worker_is_found_and_given_less_to_do() -> None:
    assert all(result["ok"] for result in run("slow-worker", 1, 300))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_faults_and_many_sizes_end_with_the_same_hash() -> None:
    certain = run("resize", 100, 1700)
    assert all(result["ok"] for result in certain), certain
