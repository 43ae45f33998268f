"""`paceline lighthouse`: start one for torchft, list its jobs, and end them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fixtures.coordinator.lighthouse_proxy import lighthouse_proxy
from tests.fixtures.coordinator.node_processes import NodeProcesses, three_nodes
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with three_nodes(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _mine(nodes: NodeProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", nodes.env["XDG_CONFIG_HOME"])
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    monkeypatch.delenv("PACELINE_COORDINATOR", raising=False)


def run_command(capsys: Captured, nodes: NodeProcesses, *args: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["coordinator", "lighthouse", *args, "--at", nodes.at], Session(folder=nodes.folder))
    return int(code), *capsys.readouterr()


def data(capsys: Captured, nodes: NodeProcesses, *args: str) -> Any:  # Any: JSON
    code, out, err = run_command(capsys, nodes, *args, "--json")
    assert (code, err) == (0, ""), (out, err)
    return json.loads(out)["data"]


def request_quorum(url: str, replica: str) -> torchft.Quorum:
    member = torchft.QuorumMember(replica_id=replica, address="http://here:1", step=3)
    request = torchft.LighthouseQuorumRequest(requester=member).SerializeToString()
    with grpc.insecure_channel(url.removeprefix("http://")) as channel:
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        method = channel.unary_unary("/torchft.LighthouseService/Quorum", None, None)
        answer = method(request, timeout=60)
    return torchft.LighthouseQuorumResponse.FromString(answer).quorum


def test_a_job_is_served_shown_and_ended(nodes: NodeProcesses, capsys: Captured) -> None:
    with lighthouse_proxy(nodes, "--job", "mine", "--heartbeat-timeout-s", "0.5") as url:
        assert url.startswith("http://127.0.0.1:")
        quorum = request_quorum(url, "r0:x")
        (job,) = data(capsys, nodes, "status")["jobs"]
        assert (job["job"], job["heartbeat_timeout_s"], job["join_timeout_s"]) == ("mine", 0.5, 60.0)
        assert job["quorum_id"] == quorum.quorum_id
        assert job["members"] == [{"replica_id": "r0:x", "step": 3, "address": "http://here:1"}]
        code, out, _ = run_command(capsys, nodes, "status")
        assert code == 0
        assert "quorum" in out
        assert "r0:x step 3" in out
        assert data(capsys, nodes, "forget", "mine")["job"] == "mine"
        until(lambda: "'mine'" in (nodes.folder / "proxy.txt").read_text(), "the proxy ends")
    assert data(capsys, nodes, "status")["jobs"] == []
    assert run_command(capsys, nodes, "forget", "mine")[0] == ExitCode.BAD_CONFIG


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "example.com"])
def test_an_address_that_others_reach_is_refused_with_the_reason(
    host: str, nodes: NodeProcesses, capsys: Captured, wording: Wording
) -> None:
    code, _, err = run_command(capsys, nodes, "proxy", "--listen", f"{host}:29510")
    assert code == ExitCode.BAD_CONFIG
    assert "--open-to-network" in err
    wording(err)


def test_settings_that_contradict_those_of_the_job_are_refused(
    nodes: NodeProcesses, capsys: Captured
) -> None:
    with lighthouse_proxy(nodes, "--job", "kept", "--min-replicas", "2"):
        more = ("--job", "kept", "--min-replicas", "3", "--listen", "127.0.0.1:0")
        code, _, err = run_command(capsys, nodes, "proxy", *more)
    assert code == ExitCode.BAD_CONFIG
    assert "min_replicas 2" in err


def test_a_port_that_is_taken_is_named(nodes: NodeProcesses, capsys: Captured) -> None:
    taken = next(iter(nodes.addresses.values()))
    code, _, err = run_command(capsys, nodes, "proxy", "--listen", taken)
    assert code == ExitCode.NOT_READY
    assert taken in err


def test_without_any_node_the_proxy_reports_that(tmp_path: Path, capsys: Captured) -> None:
    code = run(
        ["coordinator", "lighthouse", "status", "--at", "127.0.0.1:9", "--timeout-s", "0.3"],
        Session(folder=tmp_path),
    )
    assert code == ExitCode.UNREACHABLE
    assert capsys.readouterr().err.startswith("error[E501]: ")
