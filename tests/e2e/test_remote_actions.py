"""`stop` and `checkpoint now` by a run's name at its coordinator, from a folder that shares nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.coordinator.node_processes import NodeProcesses, three_nodes
from tests.fixtures.processes.command import CommandResult, assert_nothing_was_lost, paceline, training
from tests.fixtures.runs.elastic_runs import events, until_all_are_in
from tests.fixtures.runs.run_servers import until_guarded
from tests.fixtures.waiting import until_gone

ELASTIC = ["--mode", "ssgd", "--elastic", "--pace", "10ms"]
SERVED = ["--mode", "asgd", "--task", "digits", "--batch-size", "8", "--num-workers", "2", "--elastic"]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with three_nodes(tmp_path, with_tls=True) as node_processes:
        yield node_processes


def access(nodes: NodeProcesses) -> list[str]:
    return ["--coordinator", nodes.at, "--tls-dir", str(nodes.folder / "pki")]


def act(nodes: NodeProcesses, *command: str) -> CommandResult:
    """The command elsewhere: without the run's folder, `runs/` or files of the user that trains."""
    elsewhere = nodes.folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return paceline(*command, *access(nodes), "--json", folder=elsewhere)


def phases(result: CommandResult) -> list[str]:
    return [step["phase"] for step in result.data()["steps"]]


def code_of(result: CommandResult) -> str:
    return str(json.loads(result.out)["error"]["problems"][0]["code"])


def test_a_run_is_saved_and_stopped_by_its_name(nodes: NodeProcesses) -> None:
    with training(nodes.folder / "run", *ELASTIC, *access(nodes), env=nodes.env) as run:
        until_all_are_in(run, after=0, workers=2)
        processes = run.processes()
        for command in (["stop", "xor-ssgd"], ["checkpoint", "now", "xor-ssgd"]):
            refused = act(nodes, *command, "--tls-name", "viewer")
            assert code_of(refused) == "E503", "only an admin may act on a run"
        assert events(run, "stop_requested") == []
        saved = act(nodes, "checkpoint", "now", "xor-ssgd")
        assert saved.code == 0, saved.err + saved.out
        assert phases(saved) == ["requested", "accepted", "effect_seen"]
        assert events(run, "checkpoint"), "the checkpoint that the coordinator knows is on the disk"
        stopped = act(nodes, "stop", "xor-ssgd")
        assert stopped.code == 0, stopped.err + stopped.out
        assert phases(stopped)[0] == "requested"
        assert phases(stopped)[-1] == "effect_seen"
        result = run.end()
        assert result.code == 130, "as after Ctrl-C"
        until_gone(processes)
    assert_nothing_was_lost(run.run_dir)
    again = act(nodes, "stop", "xor-ssgd")
    assert (again.code, code_of(again)) == (7, "E323")
    assert code_of(act(nodes, "checkpoint", "now", "nothing")) == "E323"


@pytest.mark.parametrize("command", ["kill", "pause", "resume", "slow", "partition", "heal"])
def test_faults_act_only_beside_the_command_of_the_run(command: str) -> None:
    target = [] if command == "heal" else ["worker-0"]
    flags = ["--tls-dir", "pki", "--coordinator", "127.0.0.1:7400", "--json"]
    refused = paceline("workers", command, "xor-ssgd", *target, *flags)
    assert (refused.code, code_of(refused)) == (3, "E114"), refused.out


def test_a_run_with_parameter_servers_is_stopped_by_its_name(nodes: NodeProcesses) -> None:
    run_dir = nodes.folder / "run"
    with training(run_dir, *SERVED, *access(nodes), participants=4, env=nodes.env) as run:
        until_guarded(run)
        refused = act(nodes, "checkpoint", "now", "digits-asgd")
        assert refused.code == 6, refused.err
        assert phases(refused) == ["requested", "refused"]
        stopped = act(nodes, "stop", "digits-asgd")
        assert stopped.code == 0, stopped.err + stopped.out
        assert run.end().code == 130
    assert_nothing_was_lost(run_dir)
