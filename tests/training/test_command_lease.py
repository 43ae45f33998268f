"""The lease of a run's command at a real coordinator: one holder, a standby that waits, and a take-over."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from tests.fixtures.processes.command import processes_of
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.processes.warm_helpers import warm_helpers
from tests.fixtures.waiting import kill, kill_all, until

from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, TokenFile
from paceline.coordinator.state.model import COMMANDS
from paceline.coordinator.state.runs import COMMAND_ROLE
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.storage.run_store import RunStore
from paceline.training.command_lease import end_replaced_runs, find_store, held_lease
from paceline.training.run_sessions import RunHeldError
from paceline.training.standby import Ended, Lost, wait_for_loss
from paceline.worker.elastic.membership import Membership

URL = "file:///volume/runs/first"
HOLDER = """
import sys
from pathlib import Path
from paceline.coordinator.run_endpoint import Coordinators, TokenFile
from paceline.core.clock import SystemClock
from paceline.storage.run_store import FencedError
from paceline.training.command_lease import held_lease
address, tokens, url = sys.argv[1:]
coordinators = Coordinators(addresses=(address,), credentials=TokenFile(Path(tokens)))
with held_lease(coordinators, url, print) as lease:
    print("held", flush=True)
    while True:
        SystemClock().sleep(0.05)
        try:
            lease.check()
        except FencedError as error:
            print(error.code, flush=True)
            break
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(tmp_path, patience_s=60) as result:
        yield result


def coordinators(node: EmbeddedNode) -> Coordinators:
    return Coordinators(addresses=(node.address,), credentials=node.credentials)


def test_a_second_command_is_refused_and_a_standby_ends_with_the_run(node: EmbeddedNode) -> None:
    notes: list[str] = []
    with held_lease(coordinators(node), URL, notes.append) as lease:
        lease.check()
        with pytest.raises(RunHeldError), held_lease(coordinators(node), URL, notes.append, within_s=0):
            pass
        with held_lease(coordinators(node), f"{URL}-another", notes.append):
            pass
        lease.check()
        lease.ending = "finished"
    assert wait_for_loss(coordinators(node), URL, notes.append) == Ended("finished")
    with held_lease(coordinators(node), URL, notes.append) as lease:
        lease.ending = "SIGTERM"  # its machine goes
    assert isinstance(wait_for_loss(coordinators(node), URL, notes.append), Lost)
    assert notes == []


def test_a_frozen_command_loses_its_lease_and_is_fenced_when_it_wakes_up(node: EmbeddedNode) -> None:
    notes: list[str] = []
    credentials = node.credentials
    assert isinstance(credentials, TokenFile)
    arguments = [node.address, str(credentials.path), URL]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments], stdout=subprocess.PIPE, text=True
    ) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "held\n"
            kill(frozen.pid, SIGSTOP)
            assert isinstance(wait_for_loss(coordinators(node), URL, notes.append), Lost)
            with held_lease(coordinators(node), URL, notes.append) as lease:
                kill(frozen.pid, SIGCONT)
                *_, last = frozen.stdout.read().split()
                assert last == "E810"
                lease.check()
        finally:
            kill_all([frozen.pid])
    assert len(notes) == 1, "the standby has said once for whom it waits"


def test_a_fault_that_ends_the_heartbeats_reaches_the_command(node: EmbeddedNode) -> None:
    def fail() -> None:
        raise LookupError("a fault")

    connect = open_coordinators(coordinators(node)).client
    membership = Membership(connect, run=COMMANDS, worker="w", note=print, role=COMMAND_ROLE, on_run=fail)
    try:
        until(membership.is_closed, "the membership has ended")
        with pytest.raises(LookupError):
            membership.check()
    finally:
        membership.close("over")


def test_entries_of_replaced_commands_are_ended_and_a_run_is_found_by_its_name(node: EmbeddedNode) -> None:
    plan = Plan(
        run="mine", task="xor", mode="ssgd", num_workers=1, steps=9, batch_sizes=(1,), checkpoint_store=URL
    )
    other = replace(plan, run="other", checkpoint_store=None)
    for number, text in enumerate([dumps(plan), dumps(other), "", "{}"]):
        node.client.write("Runs.Create", pb.CreateRun(run=f"run-{number}", plan=text, min_workers=1), pb.Run)
    assert end_replaced_runs(node.client, URL) == ["run-0"]
    assert end_replaced_runs(node.client, URL) == []
    assert find_store(coordinators(node), "mine") == find_store(coordinators(node), "run-0") == URL


def test_a_standby_continues_a_killed_run_with_the_same_bits(
    node: EmbeddedNode, launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine, and folders that share only the store; hosts/test_run_store.py has machines."""
    for name in ("here", "there", "volume"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    credentials = node.credentials
    assert isinstance(credentials, TokenFile)
    url = f"file://{tmp_path}/volume/first"
    at = ["--coordinator", node.address, "--token-file", str(credentials.path)]
    shape = ["--elastic", "--task", "xor", "--num-workers", "2", "--steps", "120", "--checkpoint-every", "10"]
    stored = [*shape, "--pace", "20ms", "--name", "first", "--run-store", url, *at]
    command = subprocess.Popen(
        [*warm_helpers().as_module, "train", *stored],
        cwd=tmp_path / "here",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        until(lambda: bool(RunStore(url).checkpoints()), "a checkpoint is in the store")
    finally:
        kill_all(processes_of(command))
        assert command.wait() == -SIGKILL
    continued = warm_paceline(launcher, "standby", url, *at, "--json", folder=tmp_path / "there")
    assert continued.code == 0, continued.out + continued.err
    verified = warm_paceline(launcher, "verify", "first", *at, folder=tmp_path)
    assert verified.code == 0, verified.out
    assert "2 sessions" in verified.out
    alone = warm_paceline(launcher, "train", *shape, "--json", folder=tmp_path)
    expected = alone.data()["result"]["state_sha256"]
    assert continued.data()["result"]["state_sha256"] == expected
    shown = warm_paceline(launcher, "status", url, "--json", folder=tmp_path)
    assert json.loads(shown.out)["data"]["state"] == "finished"
