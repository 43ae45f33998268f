"""`paceline coordinator kill`: which node it kills, and which processes it never does."""

import os
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.coordinator.admin.operations import _pid, _victim
from paceline.coordinator.admin.status import NodeRow, StatusReport
from paceline.coordinator.client.endpoints import addresses_from_environment
from paceline.coordinator.client.nodes_file import NodesFile, pid_file
from paceline.core.errors import ConfigError, NotReadyError


def _report(leader: int | None) -> StatusReport:
    living = [
        NodeRow(node=n, address=f"127.0.0.1:{n}", role="follower", is_voter=True, term=2) for n in (1, 2)
    ]
    dead = NodeRow(node=3, address="127.0.0.1:3", role="no answer", is_voter=True)
    return StatusReport(
        cluster="c", version="1", leader=leader, term=2, nodes=(*living, dead), sessions=0, leases=0
    )


def test_the_leader_is_killed_unless_another_node_is_named() -> None:
    assert _victim(_report(leader=2), None) == 2
    assert _victim(_report(leader=2), 1) == 1


def test_without_a_leader_a_living_node_is_killed() -> None:
    assert _victim(_report(leader=None), None) == 1


def test_a_dead_node_is_not_killed_again(wording: Wording) -> None:
    with wording.raises(ConfigError):
        _victim(_report(leader=2), 3)


def test_a_process_that_is_not_a_node_is_never_killed(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError):
        _pid(tmp_path, 1)
    pid_file(tmp_path, 1).write_text(f"{os.getpid()}\n")  # the process id was reused meanwhile
    with pytest.raises(NotReadyError):
        _pid(tmp_path, 1)


def test_the_environment_may_name_the_folder_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodesFile(cluster="c", nodes={1: "127.0.0.1:7401", 2: "127.0.0.1:7402"}).write(tmp_path)
    monkeypatch.setenv("PACELINE_COORDINATOR", str(tmp_path))
    assert addresses_from_environment() == ("127.0.0.1:7401", "127.0.0.1:7402")
    monkeypatch.setenv("PACELINE_COORDINATOR", "127.0.0.1:7409")
    assert addresses_from_environment() == ("127.0.0.1:7409",)
    monkeypatch.setenv("PACELINE_COORDINATOR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError):
        addresses_from_environment()
