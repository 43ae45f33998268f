"""Fault experiments about resizing, slowness and silence act for real, and their guarantees hold."""

import pytest
from tests.fixtures.command import paceline

# How fast a busy machine is proves nothing; `paceline lab` itself judges that too.
TIMED = (
    "at the latest",
    "is found after",
    "throughput afterwards",
    "found slow and are not",
    "the longest time",
)


def run(name: str, times: int, within_s: float) -> list[dict[str, object]]:
    done = paceline("lab", "run", name, "--times", str(times), "--json", within_s=within_s)
    assert done.code in (0, 8), done.err
    expectations = done.data()["expectations"]
    return [found for found in expectations if not any(part in found["what"] for part in TIMED)]


# Growing and shrinking is in test_workers_command.py too.
@pytest.mark.parametrize(
    ("name", "times"), [pytest.param("resize", 6, marks=pytest.mark.soak), ("quorum-lost", 1)]
)
def test_an_experiment_shows_that_nothing_was_lost(name: str, times: int) -> None:
    certain = run(name, times, 240)
    assert len(certain) >= 5
    assert all(found["ok"] for found in certain), certain


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_slow_worker_is_found_and_given_less_to_do() -> None:
    assert all(found["ok"] for found in run("slow-worker", 1, 300))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_faults_and_many_sizes_end_with_the_same_hash() -> None:
    certain = run("resize", 100, 1700)
    assert all(found["ok"] for found in certain), certain
