"""A cluster of real coordinator processes for tests: start, kill, freeze and query nodes.

Every cluster has a loopback address of its own (127.x.y.z), so two of them never
need the same port, and a port stays free while its node is dead.
"""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc.aio

import paceline
from paceline.coordinator.client.aio import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Membership, NodeId
from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.storage import StoredState, read_folder
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token, load_or_create_tokens, read_token
from paceline.core.clock import monotonic_s

PATIENCE_S = 60.0  # for what must happen, on a machine that does other things too
LOOK_AGAIN_S = 0.02
ROOT = Path(__file__).parent.parent.parent.parent
_STANDING = re.compile(r"term=(\d+) role=(\S+)")


def own_host() -> str:
    """An unused loopback address."""
    return "127." + ".".join(str(part % 250 + 2) for part in secrets.token_bytes(3))


class Cluster:
    """`async with Cluster(folder) as cluster:` runs, whole, and leaves no process behind."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        host = own_host()
        self.folder = folder
        self.addresses = {node: f"{host}:{7400 + node}" for node in range(1, nodes + 1)}
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.control: Client
        folder.mkdir(parents=True, exist_ok=True)

    # What another kind of cluster does otherwise.

    def peers(self, node: int) -> Mapping[int, str]:
        """What a node is told about where all nodes are."""
        return self.addresses

    def command(self, node: int) -> list[str]:
        """In front of the node's own command."""
        return []

    def make_secrets(self) -> None:
        load_or_create_tokens(self.folder / "tokens.json")

    def secrets_flags(self) -> list[str]:
        return ["--token-file", str(self.folder / "tokens.json")]

    def access(self, role: Role = Role.ADMIN) -> Token | Certificate:
        """What a client shows."""
        return security.client_access(token_file=self.folder / "tokens.json", role=role)

    def token(self, role: Role = Role.ADMIN) -> Token:
        return read_token(self.folder / "tokens.json", role=role)

    def client(
        self, nodes: list[int] | None = None, *, role: Role = Role.ADMIN, patience_s: float = PATIENCE_S
    ) -> Client:
        """A client that knows these nodes; all, if none are named."""
        access = self.access(role)
        addresses = [self.addresses[node] for node in nodes or self.addresses]
        return Client(
            addresses,
            lambda address: security.open_channel(address, access),
            metadata=security.call_metadata(access),
            patience_s=patience_s,
        )

    # Life and death.

    async def __aenter__(self) -> Self:
        try:
            self.make_secrets()
            for node in self.addresses:
                self.start(node)
            self.control = self.client(patience_s=2.0)
            await self.whole()
        except BaseException:
            self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()
        await self.control.close()

    def start(self, node: int) -> None:
        peers = ",".join(f"{other}={address}" for other, address in self.peers(node).items())
        command = [*_bound_to_us(), *self.command(node), sys.executable, "-m", "paceline"]
        command += ["coordinator", "start", "--id", str(node), "--peers", peers]
        command += ["--data-dir", str(self.data_dir(node)), *self.secrets_flags()]
        source = str(Path(paceline.__file__).parent.parent)
        with self.log(node).open("ab") as log:
            self.processes[node] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": source},
                stdout=log,
                stderr=log,
                text=True,
            )

    def kill(self, node: int) -> None:
        self.processes[node].kill()
        self.processes[node].wait()

    def terminate(self, node: int) -> int:
        """Ask it to stop; its exit code."""
        self.processes[node].terminate()
        return self.processes[node].wait(PATIENCE_S)

    async def ended(self, node: int) -> int:
        """Until it ends by itself; its exit code."""
        await self.until(lambda: self.processes[node].poll() is not None, f"node {node} ends")
        return self.processes[node].returncode

    def freeze(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGCONT)

    def _end_all(self) -> None:
        for process in self.processes.values():
            process.kill()  # also a frozen one
            process.wait()

    # What they say.

    def data_dir(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def log(self, node: int) -> Path:
        return self.folder / f"node-{node}.txt"

    def output(self, node: int) -> str:
        return self.log(node).read_text(errors="replace")

    def standing(self, node: int) -> tuple[int, str]:
        """The term and the role that it named last; cheaper than asking it."""
        matches = _STANDING.findall(self.output(node))
        return (int(matches[-1][0]), matches[-1][1]) if matches else (0, "")

    def on_disk(self, node: int) -> StoredState:
        """What its folder holds; raises if any of it is damaged."""
        members = Membership(frozenset(NodeId(n) for n in self.addresses))
        return read_folder(self.data_dir(node), NodeId(node), members)

    def check_disks(self) -> None:
        """Stop all in peace: no folder is damaged, and all hold the same log as far as they hold it."""
        for node in self.living():
            assert self.terminate(node) == 0, self.output(node)
        logs = [{entry.index: entry for entry in self.on_disk(node).entries} for node in self.addresses]
        shared = set(logs[0]).intersection(*logs)
        assert shared, "the logs have nothing in common"
        assert all(log[index] == logs[0][index] for log in logs for index in shared)

    def living(self) -> list[int]:
        return [node for node, process in self.processes.items() if process.poll() is None]

    async def says(self, node: int, text: str) -> None:
        await self.until(lambda: text in self.output(node), f"node {node} says {text!r}")

    async def status(self, node: int) -> pb.NodeStatus | None:
        """What it thinks; None: it does not answer."""
        try:
            return await self.control.of_node(self.addresses[node], "Status", pb.StatusRequest())
        except grpc.aio.AioRpcError:
            return None

    async def statuses(self, nodes: list[int]) -> list[pb.NodeStatus]:
        """Of those that answer."""
        results = await asyncio.gather(*(self.status(node) for node in nodes))
        return [status for status in results if status is not None]

    async def leader(self, among: list[int] | None = None) -> int:
        """Until one of these leads, and all of them say so."""
        return (await self.whole(among))[0].leader

    async def whole(self, among: list[int] | None = None) -> list[pb.NodeStatus]:
        """Until these nodes have one leader, one of them, and have applied all that it committed."""
        nodes = among or list(self.addresses)
        deadline_s = monotonic_s() + PATIENCE_S
        while True:
            node_statuses = await self.statuses(nodes)
            if len(node_statuses) == len(nodes) and _is_of_one_mind(node_statuses):
                return node_statuses
            assert monotonic_s() < deadline_s, (
                f"nodes {nodes} do not agree: {_describe(node_statuses)}\n{self._tails()}"
            )
            await asyncio.sleep(LOOK_AGAIN_S)

    async def until(self, is_true: Callable[[], bool], description: str) -> None:
        deadline_s = monotonic_s() + PATIENCE_S
        while not is_true():
            assert monotonic_s() < deadline_s, f"waited {PATIENCE_S:g} s until {description}\n{self._tails()}"
            await asyncio.sleep(LOOK_AGAIN_S)

    def _tails(self) -> str:
        return "\n".join(f"--- node {node}\n{self.output(node)[-1500:]}" for node in self.processes)


def _is_of_one_mind(node_statuses: list[pb.NodeStatus]) -> bool:
    leaders = {status.leader for status in node_statuses}
    terms = {status.term for status in node_statuses}
    applied = {status.applied for status in node_statuses}
    leading = [status.node for status in node_statuses if status.role == "leader"]
    is_quiet = (
        {status.commit for status in node_statuses}
        == applied
        == {status.last_index for status in node_statuses}
    )
    return len(leaders) == len(terms) == len(applied) == 1 and leading == list(leaders) and is_quiet


def _describe(node_statuses: list[pb.NodeStatus]) -> str:
    """In few words."""
    return "; ".join(
        f"node {s.node}: {s.role} of {s.leader} in term {s.term}, {s.applied}/{s.commit}/{s.last_index}, "
        f"connected to {[peer.node for peer in s.peers if peer.is_connected]}"
        for s in node_statuses
    )


def _bound_to_us() -> list[str]:
    """Whatever happens to the test's process, the node does not outlive it."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
