"""Experiments of the lab on hosts: real faults of hosts and links, and nothing is lost."""

import json

import pytest
from tests.fixtures.processes.command import paceline

from paceline.faults.hosts.requirements import can_make_hosts
from paceline.faults.scenarios.catalog import SCENARIOS

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


def test_every_experiment_on_hosts_is_tested() -> None:
    assert {name for name, s in SCENARIOS.items() if s.on_hosts is not None} == {*QUICK, *SLOW}


def test_an_experiment_that_does_not_run_on_hosts_is_refused_with_those_that_do() -> None:
    result = paceline("lab", "run", "kill-worker", "--hosts", "3")
    assert result.code == 3
    assert "lose-host" in result.err
