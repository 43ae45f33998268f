"""Elastic runs that use the nodes of a coordinator with TLS: started, resized, checked, and refused."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.coordinator.node_processes import NodeProcesses, make_pki, three_nodes
from tests.fixtures.processes.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.runs.elastic_runs import events, pid_of, stop, strike, until_all_are_in
from tests.fixtures.runs.run_servers import strike_primary, until_guarded, until_it_goes_on
from tests.fixtures.waiting import until

from paceline.coordinator.run_endpoint import FILE_NAME

ELASTIC = ["--elastic", "--max-workers", "3", "--shards", "6", "--pace", "10ms"]
SERVED = ["--task", "digits", "--batch-size", "8", "--num-workers", "2", "--elastic", "--pace", "10ms"]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with three_nodes(tmp_path, with_tls=True) as node_processes:
        yield node_processes


def access(nodes: NodeProcesses, folder: str = "pki") -> list[str]:
    return ["--coordinator", nodes.at, "--tls-dir", str(nodes.folder / folder)]


def leader(nodes: NodeProcesses) -> int | None:
    """The node that a majority follows; None: an election is going on."""
    flags = ["--at", nodes.at, "--tls-dir", str(nodes.folder / "pki"), "--tls-name", "viewer"]
    status = paceline("coordinator", "status", *flags, "--json")
    return json.loads(status.out)["data"]["leader"] if status.code in (0, 6) else None


def kill_leader(nodes: NodeProcesses) -> None:
    first = leader(nodes)
    assert first is not None
    nodes.running[first].stop(signal.SIGKILL)
    until(lambda: leader(nodes) not in (None, first), "another node leads")


def workers(*args: str) -> list[str]:
    result = paceline("workers", *args, "--json")
    assert result.code == 0, result.err + result.out
    return sorted(row if isinstance(row, str) else row["worker"] for row in result.data()["workers"])


def stop_and_prove(run: Running) -> None:
    stop(run)
    assert_nothing_was_lost(run.run_dir)


@pytest.mark.soak
def test_a_run_survives_the_leader_and_a_worker_and_is_resized(nodes: NodeProcesses) -> None:
    run_dir = nodes.folder / "run"
    with training(run_dir, "--mode", "ssgd", *ELASTIC, *access(nodes), env=nodes.env) as run:
        first = until_all_are_in(run, after=0, workers=2)
        kill_leader(nodes)
        run.until_it_trains()
        strike(run, "worker-1")
        second = until_all_are_in(run, after=first, workers=2)
        assert workers("add", str(run_dir)) == ["worker-0", "worker-1", "worker-2"]
        until_all_are_in(run, after=second)
        published = json.loads((run_dir / FILE_NAME).read_text())
        assert published["tls_dir"] == str(nodes.folder / "pki")
        assert "token_file" not in published
        assert "PRIVATE KEY" not in (run_dir / FILE_NAME).read_text()
        stop_and_prove(run)
    assert nodes.at not in (run_dir / "plan.json").read_text(), "access is no part of the plan"


def test_parameter_servers_survive_the_leader_and_the_primary(nodes: NodeProcesses) -> None:
    run_dir = nodes.folder / "run"
    with training(run_dir, "--mode", "asgd", *SERVED, *access(nodes), participants=4, env=nodes.env) as run:
        until_guarded(run)
        survivor = pid_of(run, "worker-0")
        kill_leader(nodes)
        until_it_goes_on(run)
        strike_primary(run)
        until_guarded(run)
        until_it_goes_on(run)
        assert pid_of(run, "worker-0") == survivor
        stop_and_prove(run)


def test_the_environment_names_the_coordinator_and_its_certificates(nodes: NodeProcesses) -> None:
    run_dir = nodes.folder / "run"
    pki = nodes.folder / "pki"
    one = nodes.addresses[2]
    env = {**nodes.env, "PACELINE_COORDINATOR": one, "PACELINE_TLS_DIR": str(pki)}
    with training(run_dir, "--mode", "ssgd", *ELASTIC, env=env) as run:
        until_all_are_in(run, after=0, workers=2)
        assert workers("list", str(run_dir)) == ["worker-0", "worker-1"]
        addresses = json.loads((run_dir / FILE_NAME).read_text())["addresses"].split(",")
        assert sorted(addresses) == sorted(nodes.addresses.values()), (
            "one address is enough to find the others"
        )
        by_name = ["xor-ssgd", "--coordinator", one, "--tls-dir", str(pki), "--tls-name", "viewer"]
        assert workers("list", *by_name) == ["worker-0", "worker-1"], "without the run's folder"
        unknown = paceline("workers", "list", "nothing", *by_name[1:], "--json")
        assert json.loads(unknown.out)["error"]["problems"][0]["code"] == "E323"
        log = run_dir / "events.jsonl"
        run.until(lambda: '"coordinators"' in log.read_text(), "the nodes are sampled for the dashboard")
        saved = paceline("checkpoint", "now", str(run_dir), "--json")
        assert saved.code == 0, saved.err
        run.until(lambda: bool(events(run, "checkpoint")), "the checkpoint was saved")
        shutil.move(pki, nodes.folder / "elsewhere")  # a command cannot read the certificates any more
        refused = paceline("workers", "list", str(run_dir))
        assert refused.code == 4
        assert "E510" in refused.err
        shutil.move(nodes.folder / "elsewhere", pki)
        stop_and_prove(run)


def test_what_a_coordinator_would_refuse_is_refused_before_the_run_begins(nodes: NodeProcesses) -> None:
    make_pki(nodes.folder / "other")
    token = nodes.folder / "token"
    token.write_text("0123456789" * 4)
    token.chmod(0o600)
    pki = str(nodes.folder / "pki")
    cases = {
        "E511": access(nodes, "other"),
        "E503": [*access(nodes), "--tls-name", "worker"],
        "E510": ["--coordinator", "192.0.2.1:7400", "--token-file", str(token)],
        "E114": ["--tls-dir", pki],
        "E100": [*access(nodes), "--no-elastic"],
    }
    for code, flags in cases.items():
        result = paceline(
            "train", "--elastic", "--steps", "5", "--run-dir", str(nodes.folder / "no"), *flags, "--json"
        )
        (error,) = json.loads(result.out)["error"]["problems"]
        assert error["code"] == code, result.out
        assert error["hint"]
        assert not (nodes.folder / "no").exists(), "no half-started run is left"
