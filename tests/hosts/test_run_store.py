"""The machine of the command is lost: a standby on another one continues the run from its store."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.host_runs import fleet_on_hosts
from tests.fixtures.waiting import until
from tests.hosts.test_training import state_of

from paceline.faults.hosts.host import HostProcess
from paceline.faults.scenarios.host_fleet import PACELINE, HostFleet
from paceline.faults.scenarios.host_nodes import copy_certificate
from paceline.storage.run_store import RunStore

pytest.importorskip(
    "moto.server", reason="the store of a run is NOT tested: pip install 'moto[server]' boto3"
)

BUCKET = "runs"
URL = f"s3://{BUCKET}/team/first"
STORE_PORT = 5000
SHAPE = ("--mode", "ssgd", "--task", "xor", "--num-workers", "2", "--checkpoint-every", "10")


@dataclass
class StoredFleet:
    """Two hosts that train, one for the command, one for a standby, and one with an S3-compatible store."""

    fleet: HostFleet
    env: dict[str, str]
    folder: Path

    @property
    def standby_host(self) -> int:
        return self.fleet.command_host + 1

    @property
    def store_host(self) -> int:
        return self.fleet.command_host + 2

    def start_store(self) -> HostProcess:
        command = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(STORE_PORT)]
        log = self.fleet.log_of("store")
        host = self.fleet.nodes.network.host(self.store_host)
        store = host.start(command, log=log, env={"PYTHONWARNINGS": "ignore"})
        until(lambda: "Running on" in log.read_text(), "the store listens")
        return store

    def start_standby(self) -> HostProcess:
        host = self.fleet.nodes.network.host(self.standby_host)
        copy_certificate(self.fleet.nodes.folder / "pki", host, "admin")
        at = ",".join(self.fleet.nodes.addresses.values())
        command = [*PACELINE, "standby", URL, "--coordinator", at, "--tls-dir", "pki"]
        return host.start(command, log=self.fleet.log_of("standby"), env=self.env)

    def output(self, name: str) -> str:
        return self.fleet.log_of(name).read_text(errors="replace")

    def until_checkpoint(self, after: int) -> int:
        """Wait until the store has a checkpoint behind this one; its number."""

        def newest() -> int:
            return max(RunStore(URL).checkpoints(), default=-1)

        until(lambda: newest() > after, f"a checkpoint behind {after} is in the store")
        return newest()


@contextmanager
def stored_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredFleet]:
    with fleet_on_hosts(tmp_path / "hosts", agents=2, more_hosts=2) as fleet:
        address = fleet.nodes.network.host(fleet.command_host + 2).address
        env = {
            "AWS_ENDPOINT_URL": f"http://{address}:{STORE_PORT}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        stored = StoredFleet(fleet, env, tmp_path)
        stored.start_store()
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield stored


def assert_whole(tmp_path: Path, shape: list[str], folder: Path) -> None:
    """The run verifies as read from its store, and has the bits of an undisturbed one."""
    verified = paceline("verify", URL)
    assert verified.code == 0, verified.out + verified.err
    alone = paceline("train", "--elastic", *shape, "--pace", "0", "--run-dir", str(tmp_path / "alone"))
    assert alone.code == 0, alone.err
    assert state_of(folder) == state_of(tmp_path / "alone")


@pytest.mark.soak
def test_a_standby_continues_the_run_of_a_lost_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = [*SHAPE, "--steps", "300"]
    with stored_fleet(tmp_path, monkeypatch) as stored:
        standby = stored.start_standby()
        stored.fleet.start_training(
            *shape, "--pace", "40ms", "--name", "first", "--run-store", URL, env=stored.env
        )
        stored.until_checkpoint(after=20)
        stored.fleet.nodes.network.lose(stored.fleet.command_host)
        assert standby.wait(240) == 0, stored.output("standby")
        continued = stored.fleet.nodes.network.host(stored.standby_host).folder / "runs/first"
        assert_whole(tmp_path, shape, continued)
        assert [session.number for session in RunStore(URL).sessions()] == [1, 2]
        assert "secret-of-the-store" not in stored.output("train") + (continued / "plan.json").read_text()


@pytest.mark.soak
def test_a_frozen_command_is_fenced_and_an_outage_of_the_store_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = [*SHAPE, "--steps", "3500"]
    with stored_fleet(tmp_path, monkeypatch) as stored:
        network = stored.fleet.nodes.network
        run = stored.fleet.start_training(
            *shape, "--pace", "20ms", "--name", "first", "--run-store", URL, env=stored.env
        )
        newest = stored.until_checkpoint(after=20)
        at = ",".join(stored.fleet.nodes.addresses.values())
        access = ["--coordinator", at, "--tls-dir", str(stored.fleet.nodes.folder / "pki")]
        held = paceline("train", "--resume", URL, *access, folder=tmp_path)
        assert held.code == 4, held.err
        assert "E212" in held.err
        network.cut(stored.store_host, stored.fleet.command_host)
        until(lambda: "warning:" in run.output(), "the outage is reported")
        network.heal()
        stored.until_checkpoint(after=newest)
        standby = stored.start_standby()
        until(lambda: bool(stored.output("standby")), "the standby waits")
        run.command.signal(signal.SIGSTOP)
        until(lambda: len(RunStore(URL).sessions()) == 2, "the standby continues the run")
        run.command.signal(signal.SIGCONT)
        run.command.process.send_signal(signal.SIGCONT)  # nsenter stops with its program
        assert run.command.wait(120) == 5, run.output()
        assert "E810" in run.output()
        assert standby.wait(240) == 0, stored.output("standby") + stored.output("agent-1")
        shown = paceline("status", "first", "--json", *access, folder=tmp_path)
        assert json.loads(shown.out)["data"]["state"] == "finished"
        assert_whole(tmp_path, shape, network.host(stored.standby_host).folder / "runs/first")
