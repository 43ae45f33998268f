"""Fault experiments act for real, and what does not depend on the machine's timing holds."""

import json

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.wording import Wording

# How fast a busy machine is proves nothing; `paceline lab` itself judges that too.
TIMED = (
    "survivors commit",
    "the same, p99",
    ", maximum",
    "longest delay",
    "longest pause",
    "updates continue",
)
QUICK = (
    "kill-worker",
    "kill-leader",
    "partition-coordinators",
    "nan-gradient",
)
# Those that strike workers and servers do what test_elastic.py and test_elastic_servers.py do too.
SLOW = (
    "kill-two",
    "kill-server",
    "freeze-worker",
    "corrupt-checkpoint",
    "delay-packets",
    "drop-packets",
    "full-disk",
    "lose-node-and-rejoin",
    "partition-workers",
)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW)])
def test_an_experiment_shows_that_nothing_was_lost(name: str) -> None:
    result = paceline("lab", "run", name, "--times", "1", "--json")
    assert result.code in (0, 8), result.err
    data = json.loads(result.out)["data"]
    certain = [e for e in data["expectations"] if not any(part in e["what"] for part in TIMED)]
    assert len(certain) >= 5
    assert all(expectation["ok"] for expectation in certain), data
    assert {"what", "limit", "measured", "ok"} == set(certain[0])


def test_an_unknown_experiment_is_refused_with_the_known_ones() -> None:
    result = paceline("lab", "run", "nope")
    assert result.code == 3
    assert "'nope'" in result.err
    assert "kill-worker" in result.err


def test_what_depends_on_the_machine_is_marked_in_the_list() -> None:
    rows = {row["name"]: row for row in paceline("lab", "list", "--json").data()["scenarios"]}
    assert set(QUICK) | set(SLOW) <= set(rows)
    assert "root" in rows["full-disk"]["how"]
    assert "no root" in rows["partition-workers"]["how"]
    assert rows["kill-worker"]["how"] == ""


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "easgd"],
        ["--shards", "2"],
    ],
)
def test_what_cannot_be_soaked_is_refused_at_once(args: list[str], wording: Wording) -> None:
    result = paceline("lab", "soak", "--faults", "1", *args)
    assert result.code == 3
    wording(result.err)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        ("ssgd", 1),
        ("ssgd", 2),
        ("localsgd", 3),
        ("diloco", 4),
        ("asgd", 5),
        ("ssp", 6),
        ("dssp", 7),
        ("ps", 8),
    ],
)
def test_a_hundred_random_faults_lose_nothing(mode: str, seed: int) -> None:
    order = ["--faults", "100", "--seed", str(seed), "--mode", mode]
    result = paceline("lab", "soak", *order, "--json", within_s=1700)
    assert result.code == 0, result.out + result.err
