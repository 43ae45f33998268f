"""`paceline coordinator` with real nodes, each a process of its own."""

import json
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.fixtures.coordinator.node_processes import (
    NodeProcess,
    NodeProcesses,
    running,
    started,
    three_nodes,
)
from tests.fixtures.waiting import NEVER_S, is_running, kill, until, until_gone
from tests.fixtures.wording import Wording

from paceline.cli.coordinator import coordinator
from paceline.cli.main import run
from paceline.coordinator.admin.launch import free_ports
from paceline.coordinator.admin.status import UNREACHABLE
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.security import client_access
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with three_nodes(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Commands:
    """`paceline coordinator …`, as this test's user would say it in an empty folder."""

    def __init__(self, folder: Path, capsys: Captured) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *args: str, at: NodeProcesses | None = None) -> tuple[int, str, str]:
        self._capsys.readouterr()
        more = () if at is None else ("--at", at.at)
        code = run(["coordinator", *args, *more], Session(folder=self.folder))
        return int(code), *self._capsys.readouterr()

    def data(self, *args: str, at: NodeProcesses | None = None, code: int = 0) -> Any:  # Any: JSON
        result, out, err = self(*args, "--json", at=at)
        assert result == code, (out, err)
        assert err == ""
        answer = json.loads(out)
        assert answer["ok"] is True
        return answer["data"]

    def until_led(self, at: NodeProcesses, voters: int = 3) -> Any:  # Any: JSON
        """Wait for a leader, and until all voters are present and have applied the same entries."""
        seen: list[Any] = []

        def is_settled() -> bool:
            code, out, _ = self("status", "--json", at=at)
            seen[:] = [json.loads(out)["data"]] if code == ExitCode.OK else []
            lines = [line for line in seen[0]["nodes"] if line["is_voter"]] if seen else []
            return len(lines) == voters and len({line["applied"] for line in lines}) == 1

        until(is_settled, f"{voters} voters have a leader")
        return seen[0]


@pytest.fixture
def commands(tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> Commands:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    monkeypatch.delenv("PACELINE_COORDINATOR", raising=False)
    return Commands(tmp_path, capsys)


@pytest.fixture
def mine(nodes: NodeProcesses, commands: Commands, monkeypatch: Patch) -> Commands:
    """Said by the user who started the nodes."""
    monkeypatch.setenv("XDG_CONFIG_HOME", nodes.env["XDG_CONFIG_HOME"])
    commands.until_led(nodes)
    return commands


# A cluster of three that were started one by one.


def test_three_nodes_form_a_cluster_with_this_users_tokens(nodes: NodeProcesses, mine: Commands) -> None:
    tokens = Path(nodes.env["XDG_CONFIG_HOME"]) / "paceline" / "tokens.json"
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    code, out, err = mine("status", at=nodes)
    assert (code, err) == (0, "")
    first, _, heads, *rows = out.splitlines()
    assert " paceline" in first
    assert "3 of 3" in first
    assert heads.split() == ["node", "address", "role", "term", "commit", "applied", "lag", "connected"]
    assert [row.split()[:2] for row in rows] == [[str(n), address] for n, address in nodes.addresses.items()]
    assert sorted(row.split()[2] for row in rows) == ["follower", "follower", "leader"]


def test_one_address_is_enough_to_find_the_others(nodes: NodeProcesses, mine: Commands) -> None:
    status = mine.data("status", "--at", nodes.addresses[2])
    assert [line["node"] for line in status["nodes"]] == [1, 2, 3]
    assert status["is_healthy"]
    only = mine.data("status", "--only", "--at", nodes.addresses[2])
    assert [line["node"] for line in only["nodes"]] == [2]


def test_where_the_cluster_is_can_be_a_variable(
    nodes: NodeProcesses, mine: Commands, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("PACELINE_COORDINATOR", nodes.at)
    assert mine.data("status")["leader"] in nodes.addresses
    monkeypatch.setenv("PACELINE_COORDINATOR", "somewhere")
    code, _, err = mine("status")
    assert code == ExitCode.BAD_CONFIG
    assert err.startswith("error[E114]: PACELINE_COORDINATOR: 'somewhere' ")


def test_leadership_is_handed_over(nodes: NodeProcesses, mine: Commands) -> None:
    leader = mine.until_led(nodes)["leader"]
    other = leader % 3 + 1
    assert mine.data("step-down", "--to", str(other), at=nodes)["leader"] == other
    assert mine.until_led(nodes)["leader"] == other
    code, out, _ = mine("step-down", at=nodes)
    assert code == 0
    assert out.startswith("node ")
    code, _, err = mine("step-down", "--to", "9", at=nodes)
    assert code == ExitCode.BAD_CONFIG
    assert err.startswith("error[E502]: node 9 ")


def test_a_snapshot_holds_what_was_written_and_can_be_verified(nodes: NodeProcesses, mine: Commands) -> None:
    access = client_access(token_file=Path(nodes.env["XDG_CONFIG_HOME"]) / "paceline" / "tokens.json")
    with BlockingClient(list(nodes.addresses.values()), access, patience_s=30) as client:
        client.write("Runs.Create", pb.CreateRun(run="kept", min_workers=1), pb.Run)
        client.write("Members.Join", pb.JoinRun(run="kept", worker="w0", role="worker"), pb.Worker)
        assert client.find_leader() in nodes.addresses.values()
    mine.until_led(nodes)
    taken = mine.data("snapshot", at=nodes)["snapshots"]
    assert [result["node"] for result in taken] == [1, 2, 3]
    assert mine.data("snapshot", "--node", "2", at=nodes)["snapshots"][0]["node"] == 2
    for node in nodes.addresses:
        document = mine.data("verify", str(nodes.data_dir(node)))
        assert (document["node"], document["is_in_use"], document["voters"]) == (node, True, [1, 2, 3])
        assert document["snapshot_index"] >= taken[node - 1]["index"] > 0
        assert [run["run"] for run in document["runs"]] == ["kept"]
        assert document["sessions"] == 1
    code, out, _ = mine("verify", str(nodes.data_dir(1)))
    assert code == 0
    assert "node 1, term " in out
    assert "kept: waiting, generation 0, step 0" in out


def test_a_node_is_taken_in_and_put_out_again(nodes: NodeProcesses, mine: Commands) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, _, err = mine("add", f"4={address}", at=nodes)
    assert code == ExitCode.UNREACHABLE
    assert err.startswith("error[E501]: ")
    assert address in err
    assert "coordinator start --id 4 --join" in err
    fourth = nodes.start(4, "--join", "--listen", address)
    code, _, err = mine("add", f"5={address}", at=nodes)
    assert code == ExitCode.BAD_CONFIG
    assert address in err
    assert "node 4" in err
    assert "node 5" in err
    assert mine.data("add", f"4={address}", at=nodes)["voters"] == [1, 2, 3, 4]
    assert mine.data("add", f"4={address}", at=nodes)["voters"] == [1, 2, 3, 4]  # again, to no harm
    assert [line["node"] for line in mine.until_led(nodes, 4)["nodes"]] == [1, 2, 3, 4]
    assert mine.data("remove", "4", at=nodes)["voters"] == [1, 2, 3]
    assert [line["node"] for line in mine.until_led(nodes)["nodes"]] == [1, 2, 3]
    assert mine.data("status", "--only", "--at", address)["nodes"][0]["node"] == 4
    assert fourth.stop() == 0


def test_other_tokens_are_refused(
    nodes: NodeProcesses, commands: Commands, tmp_path: Path, wording: Wording
) -> None:
    code, _, err = commands("status", at=nodes)
    assert code == ExitCode.NOT_READY
    assert str(tmp_path / "config") in err
    missing = first_line(err)
    wrong = tmp_path / "token"
    wrong.touch(0o600)
    wrong.write_text("x" * 40)
    for command in (["status"], ["remove", "3"]):
        code, _, err = commands(*command, "--token-file", str(wrong), at=nodes)
        assert code == ExitCode.NOT_READY
        assert first_line(err) != missing
        wording(err)


def test_a_folder_and_a_port_belong_to_one_node(nodes: NodeProcesses, tmp_path: Path) -> None:
    again = ["coordinator", "start", "--id", "1", "--data-dir", str(nodes.data_dir(1))]
    second = started([*again, "--peers", nodes.peers], tmp_path / "second.txt", nodes.env)
    assert second.process.wait(timeout=NEVER_S) == ExitCode.NOT_READY
    assert str(nodes.data_dir(1)) in second.said.read_text()
    third = ["--data-dir", str(tmp_path / "other"), "--peers", nodes.peers]
    second = started(["coordinator", "start", "--id", "1", *third], tmp_path / "third.txt", nodes.env)
    assert second.process.wait(timeout=NEVER_S) == ExitCode.NOT_READY
    assert nodes.addresses[1] in second.said.read_text()


# A cluster that one command brought up.


@contextmanager
def brought_up(folder: Path, *more: str) -> Iterator[NodeProcess]:
    with running(["coordinator", "up", "--dir", "here", *more], folder / "up.txt") as up:
        up.until_says("role=leader")
        yield up
    until_gone(pids(up).values())


def pids(up: NodeProcess) -> dict[int, int]:
    """The processes of the newest `up`, by node, as it has told them."""
    reported = [
        line.split() for line in up.said.read_text().splitlines() if " pid " in line and "|" not in line
    ]
    return {int(words[1].rstrip(":")): int(words[-1]) for words in reported}


def test_one_command_runs_a_whole_cluster_reports_dead_nodes_and_stops_with_ctrl_c(
    tmp_path: Path, commands: Commands, wording: Wording
) -> None:
    with brought_up(tmp_path) as up:
        leader = json.loads(commands("status", "--dir", "here", "--json")[1])["data"]["leader"] or 1
        before = (tmp_path / "here" / "cluster.json").read_text()
        kill(pids(up)[leader])
        up.until_says("signal 9; 2 of 3 ")
        until(lambda: _new_leader(commands, leader), "another node leads")
        code, out, _ = commands("status", "--dir", "here")
        assert code == ExitCode.DEGRADED
        assert "2 of 3 " in out
        assert UNREACHABLE in out
        _check_that_the_majority_cannot_be_removed(commands, leader)
        code, _, err = commands("up", "--dir", "here")
        assert code == ExitCode.NOT_READY
        assert err.startswith("error[E204]: ")
        assert up.stop(signal.SIGINT) == 0
        assert not any(map(is_running, pids(up).values()))
        assert up.said.read_text().count("event=stopped") == 2
    with brought_up(tmp_path) as up:
        assert (tmp_path / "here" / "cluster.json").read_text() == before
        until(lambda: commands("status", "--dir", "here")[0] == 0, "all three are back")
        assert commands("up", "--dir", "here", "--nodes", "5")[0] == ExitCode.NOT_READY
        kill(up.process.pid)
        until_gone(pids(up).values())
    assert commands("status", "--dir", "here")[0] == ExitCode.UNREACHABLE
    code, _, err = commands("up", "--dir", "here", "--nodes", "5")
    assert code == ExitCode.BAD_CONFIG
    wording(err)


def _new_leader(commands: Commands, old: int) -> bool:
    _, out, _ = commands("status", "--dir", "here", "--json")
    return json.loads(out)["data"]["leader"] not in (None, old)


def _check_that_the_majority_cannot_be_removed(commands: Commands, dead: int) -> None:
    code, _, err = commands("remove", str(dead % 3 + 1), "--dir", "here")
    assert code == ExitCode.DEGRADED
    assert f"[{dead}] " in first_line(err)
    assert f" node {dead} " in err.partition("fix: ")[2]
    code, _, err = commands("step-down", "--to", str(dead), "--dir", "here")
    assert code == ExitCode.DEGRADED
    assert f"node {dead} " in first_line(err)


def test_up_prints_the_address_of_the_cluster_once_as_json(tmp_path: Path) -> None:
    with running(["coordinator", "up", "--nodes", "1", "--json"], tmp_path / "up.txt") as up:
        up.until_says("paceline.coordinator.up/1")
        ready = json.loads(up.said.read_text())["data"]
        assert (ready["leader"], ready["dir"]) == (1, "runs/coordinator")
        assert up.stop() == 0


def test_when_all_nodes_have_ended_it_is_an_error(tmp_path: Path) -> None:
    with brought_up(tmp_path, "--nodes", "1") as up:
        kill(pids(up)[1])
        assert up.process.wait(timeout=NEVER_S) == ExitCode.DEGRADED
        assert "error[E507]: " in up.said.read_text()


# Nodes that say what they do.


def test_a_node_prints_its_state_as_json_on_request(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["coordinator", "start", "--id", "7", "--peers", f"7={address}", "--data-dir", "data", "--json"]
    with running(command, tmp_path / "said.txt") as node:
        node.until_says('"role": "leader"')
        assert node.stop(signal.SIGINT) == 0
    notes = [json.loads(line) for line in node.said.read_text().splitlines()]
    assert {(note["schema"], note["node"]) for note in notes} == {("paceline.coordinator.note/1", 7)}
    assert notes[0] == {**notes[0], "event": "state", "term": 0, "role": "follower", "leader": None}
    assert {"event": "listening", "address": address}.items() <= notes[1].items()
    assert notes[-2] == {**notes[-2], "term": 1, "role": "leader", "leader": 7, "voters": [7]}
    assert notes[-1]["event"] == "stopped"


# What can be wrong.

START = ["start", "--id", "1", "--data-dir", "d"]


@pytest.mark.parametrize(
    ("args", "code", "place"),
    [
        (["status"], 3, "--dir: "),
        (["status", "--at", "localhost"], 3, "--at: 'localhost'"),
        (["status", "--at", ","], 3, "--at: "),
        (["status", "--at", "10.0.0.1:7400", "--token-file", "TOKEN"], 4, "10.0.0.1:7400"),
        (["status", "--at", "127.0.0.1:9", "--token-file", "TOKEN"], 7, "127.0.0.1:9"),
        (
            ["remove", "1", "--at", "127.0.0.1:9", "--token-file", "TOKEN", "--timeout-s", "0.2"],
            7,
            "127.0.0.1:9",
        ),
        (["status", "--timeout-s", "0"], 2, "'--timeout-s'"),
        (["add", "4", "--at", "127.0.0.1:9", "--token-file", "TOKEN"], 3, "NODE: '4'"),
        (["remove", "x"], 2, "'ID'"),
        (["snapshot", "--node", "x", "--at", "127.0.0.1:9", "--token-file", "TOKEN"], 3, "--node: 'x'"),
        (["verify", "nowhere"], 3, "DATA_DIR: "),
        ([*START, "--peers", "2=127.0.0.1:9"], 3, "--peers: node 1"),
        ([*START, "--peers", "1=127.0.0.1:9,1=127.0.0.1:8"], 3, "--peers: "),
        ([*START, "--peers", "1:127.0.0.1:9"], 3, "--peers: '1:127.0.0.1:9'"),
        ([*START, "--peers", "1=127.0.0.1:9", "--listen", "here"], 3, "--listen: "),
        ([*START, "--peers", "1=127.0.0.1:9,2=10.0.0.1:9"], 4, "10.0.0.1:9"),
        (["up", "--nodes", "0"], 2, "'--nodes'"),
        (["up", "--image", "x"], 3, "--compose: "),
        (["up", "--compose", "f.yaml"], 3, "--image: "),
        (["init-pki", "--out", "p"], 3, "--node: "),
        (["init-pki", "--out", "p", "--node", "x=h"], 3, "--node: 'x=h'"),
        (["init-pki", "--out", "p", "--node", "1=h", "--client", "a=boss"], 3, "--client: 'boss'"),
        (["strat"], 2, "'strat'"),
    ],
)
def test_bad_input_gives_one_clear_error(
    args: list[str], code: int, place: str, commands: Commands, tmp_path: Path, wording: Wording
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("t" * 40)
    result, out, err = commands(*[str(token) if arg == "TOKEN" else arg for arg in args])
    assert (result, out) == (code, "")
    first, *further = err.splitlines()
    assert first.startswith("error[E")
    assert place in first
    if code != ExitCode.USAGE:  # whose text is click's
        wording(first.partition(" (")[0])  # behind it is what gRPC says
    assert [line.split()[0] for line in further] == ["why:", "fix:", "more:"]


# Logs that are looked at without a node.


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a snapshot and a log after it."""
    from paceline.coordinator.admin.serve import EmbeddedNode

    folder = tmp_path_factory.mktemp("log")
    with EmbeddedNode(folder, patience_s=30) as node:
        for name in ("one", "two", "three"):
            node.client.write("Runs.Create", pb.CreateRun(run=name, min_workers=1), pb.Run)
            if name == "two":
                node.client.of_node(node.address, "Snapshot", pb.SnapshotRequest())
    return folder / "coordinator" / "node-1"


Spoil = Callable[[Path], None]


def cut_the_last_record(folder: Path) -> None:
    (path,) = folder.glob("wal-*.log")
    path.write_bytes(path.read_bytes()[:-3])


def change_a_byte_of_the_log(folder: Path) -> None:
    (path,) = folder.glob("wal-*.log")
    _change_byte(path, 60)


def change_a_byte_of_the_snapshot(folder: Path) -> None:
    _change_byte(max(folder.glob("snapshot-*.bin")), 90)


def lose_the_snapshot(folder: Path) -> None:
    for path in folder.glob("snapshot-*.bin"):
        path.unlink()


def forget_the_term(folder: Path) -> None:
    """As if the log had been put together from two nodes: an entry of a term that this one never heard of."""
    from paceline.coordinator.raft.types import Entry, EntryKind, Index, Membership, NodeId, Term
    from paceline.coordinator.server import storage
    from paceline.coordinator.server.storage import read_folder

    result = read_folder(folder, NodeId(1), Membership(frozenset()))
    later = Term(result.hard_state.term + 5)
    entry = Entry(Index(result.snapshot.index + 1), later, EntryKind.NOTHING, b"")
    parts = [storage.hard_state_record(result.hard_state), storage.entry_record(entry)]
    (folder / "wal-99999999.log").write_bytes(b"".join([storage.format_record(NodeId(1)), *parts]))


def _change_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_sound_log_is_verified_and_left_as_it_is(log: Path, commands: Commands) -> None:
    before = _content(log)
    document = commands.data("verify", str(log))
    assert _content(log) == before
    assert [run["run"] for run in document["runs"]] == ["one", "two", "three"]
    assert 0 < document["snapshot_index"] < document["last_index"]
    assert (document["is_in_use"], document["torn_bytes"], document["voters"]) == (False, 0, [1])


def test_a_torn_end_is_harmless(log: Path, commands: Commands, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(log, tmp_path / "copy"))
    cut_the_last_record(copy)
    before = _content(copy)
    code, out, _ = commands("verify", str(copy))
    assert code == 0
    assert "three:" not in out
    assert commands.data("verify", str(copy))["torn_bytes"] > 0
    assert _content(copy) == before


@pytest.mark.parametrize(
    "spoil", [change_a_byte_of_the_log, change_a_byte_of_the_snapshot, lose_the_snapshot, forget_the_term]
)
def test_damage_is_an_error(
    spoil: Spoil, log: Path, commands: Commands, tmp_path: Path, wording: Wording
) -> None:
    copy = Path(shutil.copytree(log, tmp_path / "copy"))
    spoil(copy)
    code, out, err = commands("verify", str(copy))
    assert (code, out) == (ExitCode.GATE_FAILED, "")
    assert err.startswith(f"error[E508]: {copy}")
    wording(err.partition("fix: ")[2])


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def _content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


# Certificates.


def test_nodes_and_commands_with_certificates_of_one_authority(
    commands: Commands, tmp_path: Path, wording: Wording
) -> None:
    made = commands.data("init-pki", "--out", "pki", "--node", "1=127.0.0.1", "--client", "ann=viewer")[
        "files"
    ]
    assert [Path(path).name for path in made] == [
        *("ca.crt", "ca.key", "node-1.crt", "node-1.key", "ann.crt", "ann.key")
    ]
    assert all(stat.S_IMODE(Path(path).stat().st_mode) == 0o600 for path in made if path.endswith(".key"))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["coordinator", "start", "--id", "1", "--peers", f"1={address}", "--data-dir", "d"]
    with running([*command, "--tls-dir", "pki"], tmp_path / "said.txt") as node:
        node.until_says("role=leader")
        pki = ("--at", address, "--tls-dir", str(tmp_path / "pki"))
        assert commands.data("status", *pki)["leader"] == 1
        assert commands.data("status", *pki, "--only", "--tls-name", "node-1")["leader"] == 1
        code, _, err = commands("snapshot", *pki)
        assert code == ExitCode.NOT_READY
        assert "ann" in err
        assert node.stop() == 0
    code, _, err = commands("init-pki", "--out", "pki", "--node", "2=127.0.0.1")
    assert code == ExitCode.NOT_READY
    wording(err)
    added = commands.data("init-pki", "--out", "pki", "--add", "--node", "2=127.0.0.1")["files"]
    assert [Path(path).name for path in added] == ["node-2.crt", "node-2.key"]


# Containers.


def test_a_compose_file_holds_the_commands_and_no_secret(commands: Commands, tmp_path: Path) -> None:
    code, out, _ = commands("up", "--nodes", "3", "--compose", "compose.yaml", "--image", "lab/paceline:1")
    assert code == 0
    assert "init-pki --out" in out
    text = (tmp_path / "compose.yaml").read_text()
    assert "BEGIN" not in text
    content = yaml.safe_load(text)
    assert list(content["services"]) == ["node-1", "node-2", "node-3"]
    assert list(content["volumes"]) == ["data-1", "data-2", "data-3"]
    for number, service in enumerate(content["services"].values(), start=1):
        _check_service(service, number)


def _check_service(service: dict[str, Any], number: int) -> None:  # Any: YAML
    assert service["image"] == "lab/paceline:1"
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    mounts = {mount["target"]: mount for mount in service["volumes"]}
    files = ["/pki/ca.crt", f"/pki/node-{number}.crt", f"/pki/node-{number}.key"]
    assert list(mounts) == ["/data", *files]
    assert all(mounts[name]["read_only"] and mounts[name]["source"].startswith("./pki/") for name in files)
    start = _parsed([*service["entrypoint"], *service["command"]])
    assert (start["node"], start["listen"], start["tls_dir"]) == (number, "0.0.0.0:7400", Path("/pki"))
    assert start["peers"] == "1=node-1:7400,2=node-2:7400,3=node-3:7400"
    assert service["healthcheck"]["test"][0] == "CMD"
    health = _parsed(service["healthcheck"]["test"][1:])
    assert (health["at"], health["only"], health["tls_name"]) == (
        f"node-{number}:7400",
        True,
        f"node-{number}",
    )


def _parsed(words: list[str]) -> dict[str, Any]:  # Any: what click parsed, by flag
    assert words[:2] == ["paceline", "coordinator"]
    command = coordinator.commands[words[2]]
    with command.make_context(words[2], words[3:], parent=click.Context(coordinator)) as context:
        return dict(context.params)
