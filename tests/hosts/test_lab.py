"""Experiments of the lab on hosts: real faults of hosts and links, and nothing is lost."""

import json
import random

import pytest
from tests.fixtures.processes.command import paceline

from paceline.faults.hosts.requirements import can_make_hosts
from paceline.faults.scenarios.catalog import SCENARIOS
from paceline.faults.scenarios.host_soak import SERVER_FAULTS, HostFaultDraw, draw_host_fault

# How fast a busy machine is proves nothing; `paceline lab` itself judges that too.
TIMED = (", maximum", "longest delay", "longest pause")
QUICK = ("flapping-link",)
SLOW = ("lose-host", "cut-host", "one-way-cut", "bad-links", "lose-worker-host", "cut-worker-host")
TIMES = {"one-way-cut": "2", "bad-links": "3"}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW)])
def test_an_experiment_on_hosts_shows_that_nothing_was_lost(name: str) -> None:
    reason = can_make_hosts()
    if reason is not None:
        pytest.skip(f"NO HOSTS CAN BE MADE HERE, so this is NOT tested: {reason}")
    result = paceline("lab", "run", name, "--times", TIMES.get(name, "1"), "--hosts", "3", "--json")
    assert result.code in (0, 8), result.err
    data = json.loads(result.out)["data"]
    certain = [e for e in data["expectations"] if not any(part in e["what"] for part in TIMED)]
    assert len(certain) >= 8
    assert all(expectation["ok"] for expectation in certain), data


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("mode", "seed"), [("ssgd", 1), ("localsgd", 2), ("asgd", 3), ("ps", 4), ("ddp", 5), ("fsdp", 6)]
)
def test_random_faults_on_hosts_lose_nothing(mode: str, seed: int) -> None:
    reason = can_make_hosts()
    if reason is not None:
        pytest.skip(f"NO HOSTS CAN BE MADE HERE, so this is NOT tested: {reason}")
    order = ["--hosts", "3", "--faults", "40", "--seed", str(seed), "--mode", mode]
    result = paceline("lab", "soak", *order, "--json", within_s=2900)
    assert result.code == 0, result.out + result.err


def test_faults_on_hosts_depend_on_the_seed_alone() -> None:
    def drawn(seed: int) -> list[HostFaultDraw]:
        rng = random.Random(seed)
        return [draw_host_fault(rng, SERVER_FAULTS, hosts=3, workers=2) for _ in range(200)]

    faults = drawn(7)
    assert faults == drawn(7)
    assert faults != drawn(8)
    assert {draw.fault for draw in faults} == set(SERVER_FAULTS)
    assert {draw.host for draw in faults} == {1, 2, 3}


@pytest.mark.parametrize("args", [["--mode", "easgd"], ["--shards", "6"]])
def test_what_cannot_be_soaked_on_hosts_is_refused_at_once(args: list[str]) -> None:
    assert paceline("lab", "soak", "--hosts", "3", "--faults", "1", *args).code == 3


def test_every_experiment_on_hosts_is_tested() -> None:
    assert {name for name, s in SCENARIOS.items() if s.on_hosts is not None} == {*QUICK, *SLOW}


def test_an_experiment_that_does_not_run_on_hosts_is_refused_with_those_that_do() -> None:
    result = paceline("lab", "run", "kill-worker", "--hosts", "3")
    assert result.code == 3
    assert "lose-host" in result.err
