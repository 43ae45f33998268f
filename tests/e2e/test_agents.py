"""Elastic runs on hosts with agents: placed, moved, replaced, and with the bits of one machine.

The hosts are agents on this machine with a scratch folder and a slot each; nothing of the run folder is
shared with them.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fixtures.coordinator.node_processes import NodeProcess, NodeProcesses, started, three_nodes
from tests.fixtures.processes.command import Running, assert_nothing_was_lost, paceline, training
from tests.fixtures.runs.elastic_runs import events, pid_of, stop, strike, until_all_are_in
from tests.fixtures.waiting import descendants, kill, kill_all, until, until_gone

ELASTIC = ["--mode", "ssgd", "--elastic", "--launcher", "agents", "--timeout", "30s"]


@dataclass
class Fleet:
    """Agents of one coordinator, by name."""

    nodes: NodeProcesses
    agents: dict[str, NodeProcess] = field(default_factory=dict)

    @property
    def access(self) -> list[str]:
        if self.nodes.tls_dir is not None:
            return ["--tls-dir", str(self.nodes.tls_dir)]
        return ["--token-file", str(self.nodes.folder / "config" / "paceline" / "tokens.json")]

    @property
    def flags(self) -> list[str]:
        return ["--coordinator", self.nodes.at, *self.access]

    def start(self, name: str, *more: str) -> None:
        scratch = self.nodes.folder / f"scratch-{name}"
        scratch.mkdir(exist_ok=True)
        command = ["agent", "--join", self.nodes.at, *self.access, "--name", name, "--slots", "1"]
        command += ["--scratch", str(scratch), *more]
        self.agents[name] = started(command, self.nodes.folder / f"agent-{name}.txt", self.nodes.env)

    def listed(self) -> list[str]:
        listed = paceline("coordinator", "agents", "--at", self.nodes.at, *self.access, "--json")
        return [row["name"] for row in listed.data()["agents"]] if listed.code == 0 else []

    def left_over(self) -> list[Path]:
        """Scratch folders of runs, except those of an agent that was killed."""
        living = [name for name, agent in self.agents.items() if agent.process.poll() is None]
        return [run for name in living for run in (self.nodes.folder / f"scratch-{name}").glob("*/run-*")]

    def close(self) -> None:
        for agent in self.agents.values():
            kill_all([*descendants(agent.process.pid), agent.process.pid])
            agent.process.wait()


@contextmanager
def fleet_of(folder: Path, *, with_tls: bool = False) -> Iterator[Fleet]:
    with three_nodes(folder, with_tls=with_tls) as nodes:
        fleet = Fleet(nodes)
        try:
            yield fleet
        finally:
            fleet.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def tls_fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of(tmp_path, with_tls=True) as fleet:
        yield fleet


def host_of(run: Running, who: str) -> str:
    return [str(e.fields["node"]) for e in events(run, "worker_started") if e.who == who][-1]


def worker_on(run: Running, host: str) -> str:
    """The worker whose newest process is on this host."""
    (worker,) = (who for who in ("worker-0", "worker-1") if host_of(run, who) == host)
    return worker


def state_of(run_dir: Path) -> set[str]:
    result = json.loads((run_dir / "result.json").read_text())
    return set(result["state_sha256"].values())


def test_a_run_on_two_hosts_has_the_bits_of_one_machine(fleet: Fleet) -> None:
    fleet.start("a", "--label", "zone=1")
    fleet.start("b")
    short = ["--elastic", "--mode", "ssgd", "--steps", "40", "--checkpoint-every", "10"]
    folder = fleet.nodes.folder
    flags = [*short, "--launcher", "agents", *fleet.flags, "--run-dir", str(folder / "hosts")]
    on_hosts = paceline("train", *flags, folder=folder)
    assert on_hosts.code == 0, on_hosts.err
    on_one = paceline("train", *short, "--run-dir", str(folder / "local"), folder=folder)
    assert on_one.code == 0, on_one.err
    assert state_of(folder / "hosts") == state_of(folder / "local")
    assert_nothing_was_lost(folder / "hosts")
    assert (folder / "hosts" / "checkpoints").is_dir()
    assert fleet.listed() == ["a", "b"]
    secret_free = (folder / "hosts" / "plan.json").read_text() + (
        folder / "hosts" / "events.jsonl"
    ).read_text()
    assert fleet.nodes.at not in secret_free


@pytest.mark.soak
def test_a_worker_a_host_and_the_leader_are_lost_and_a_host_is_drained(fleet: Fleet) -> None:
    run_dir = fleet.nodes.folder / "run"
    fleet.start("a")
    fleet.start("b")
    with training(run_dir, *ELASTIC, *fleet.flags, env=fleet.nodes.env) as run:
        first = until_all_are_in(run, after=0, workers=2)
        assert {host_of(run, "worker-0"), host_of(run, "worker-1")} == {"a", "b"}
        strike(run, "worker-1")
        second = until_all_are_in(run, after=first, workers=2)
        lost = worker_on(run, "a")
        orphan = pid_of(run, lost)
        fleet.start("c")
        kill(fleet.agents["a"].process.pid)
        until_gone([orphan])
        third = until_all_are_in(run, after=second, workers=2)
        assert host_of(run, lost) == "c"
        kill(fleet.nodes.running[1].process.pid)
        run.until_it_trains()
        fleet.start("d")
        fleet.agents["b"].process.send_signal(signal.SIGTERM)
        until_all_are_in(run, after=third, workers=2)
        assert fleet.agents["b"].process.wait(timeout=120) == 0
        assert {host_of(run, "worker-0"), host_of(run, "worker-1")} == {"c", "d"}
        stop(run)
    assert_nothing_was_lost(run_dir)
    until(lambda: not fleet.left_over(), "the scratch folders of the run are removed")


def test_a_host_joins_with_tls_gets_a_further_worker_and_is_lost(tls_fleet: Fleet) -> None:
    fleet = tls_fleet
    run_dir = fleet.nodes.folder / "run"
    more = ["--num-workers", "1", "--max-workers", "2", "--shards", "4", "--name", "hosts"]
    fleet.start("others", "--run", "another")  # serves runs of another name
    fleet.start("a", "--run", "hosts", "--exit-code", "75")
    with training(run_dir, *ELASTIC, *more, *fleet.flags, participants=1, env=fleet.nodes.env) as run:
        fleet.start("b", "--run", "hosts")
        until_all_are_in(run, after=0, workers=2)
        assert host_of(run, "worker-1") == "b"
        listed = paceline("workers", "list", str(run_dir), "--json").data()
        assert {row["host"] for row in listed["workers"]} == {"a", "b"}
        orphan = pid_of(run, "worker-1")
        kill(fleet.agents["b"].process.pid)
        until_gone([orphan])
        until_all_are_in(run, after=0, workers=1)
        stop(run)
    fleet.agents["a"].process.send_signal(signal.SIGTERM)
    assert fleet.agents["a"].process.wait(timeout=120) == 75
    assert_nothing_was_lost(run_dir)


def test_agents_and_their_workers_outlive_the_absence_of_the_coordinator(fleet: Fleet) -> None:
    run_dir = fleet.nodes.folder / "run"
    fleet.start("a")
    fleet.start("b")
    with training(run_dir, *ELASTIC, *fleet.flags, env=fleet.nodes.env) as run:
        first = until_all_are_in(run, after=0, workers=2)
        pids = {pid_of(run, "worker-0"), pid_of(run, "worker-1")}
        before = len(events(run, "supervision"))
        fleet.nodes.kill_all()
        run.until(lambda: len(events(run, "supervision")) > before, "its absence is reported")
        run.until_it_trains()
        for node in fleet.nodes.addresses:
            fleet.nodes.start(node)
        until(lambda: fleet.listed() == ["a", "b"], "both agents are there again")
        assert {pid_of(run, "worker-0"), pid_of(run, "worker-1")} == pids, "none was restarted"
        strike(run, "worker-1")
        until_all_are_in(run, after=first, workers=2)
        stop(run)
    assert_nothing_was_lost(run_dir)


def test_an_agent_waits_until_a_lost_agent_of_its_name_has_left(fleet: Fleet) -> None:
    """A pod that replaces another has its name, and on the same node its process number."""
    fleet.start("a")
    until(lambda: fleet.listed() == ["a"], "the agent has joined")
    first = fleet.agents["a"]
    first.process.send_signal(signal.SIGSTOP)  # its process is there, and its lease ends
    fleet.start("a")
    fleet.agents["a"].until_says("waiting for the agent 'a'")
    kill(first.process.pid)
    first.process.wait()
    fleet.agents["a"].until_says("joining")
    until(lambda: fleet.listed() == ["a"], "the new agent has joined")
    assert fleet.agents["a"].process.poll() is None


def test_what_agents_cannot_run_is_refused_before_it_begins(tmp_path: Path) -> None:
    cases = {"E105": ["--launcher", "agents"], "E114": ["--launcher", "agents", "--elastic"]}
    for code, flags in cases.items():
        result = paceline("train", *flags, "--steps", "5", "--run-dir", str(tmp_path / "no"), "--json")
        (error,) = json.loads(result.out)["error"]["problems"]
        assert error["code"] == code, result.out
        assert not (tmp_path / "no").exists()


def test_resume_auto_starts_the_run_and_then_resumes_it(tmp_path: Path) -> None:
    flags = ["--resume", "auto", "--name", "kept", "--save-dir", str(tmp_path), "--mode", "ssgd", "--json"]
    for number in (1, 2):
        result = paceline("train", *flags, "--steps", "20", "--checkpoint-every", "10", folder=tmp_path)
        assert result.code == 0, result.err
        assert result.data()["run_dir"] == str(tmp_path / "kept")
        resumed = (tmp_path / "kept" / "events.jsonl").read_text().count('"run_resumed"')
        assert resumed == number - 1


def test_a_run_on_hosts_is_saved_and_stopped_by_its_name(fleet: Fleet) -> None:
    run_dir = fleet.nodes.folder / "run"
    elsewhere = fleet.nodes.folder / "elsewhere"
    elsewhere.mkdir()
    fleet.start("a")
    fleet.start("b")
    with training(run_dir, *ELASTIC, *fleet.flags, env=fleet.nodes.env) as run:
        until_all_are_in(run, after=0, workers=2)
        saved = paceline("checkpoint", "now", "xor-ssgd", *fleet.flags, folder=elsewhere)
        assert saved.code == 0, saved.err
        stopped = paceline("stop", "xor-ssgd", *fleet.flags, folder=elsewhere)
        assert stopped.code == 0, stopped.err
        assert run.end().code == 130
    assert events(run, "checkpoint")
    assert_nothing_was_lost(run_dir)
