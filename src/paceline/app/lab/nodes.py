"""How does an experiment get coordinator nodes that it may kill? As processes, on this machine."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from paceline import environ
from paceline.app.cluster_up import free_ports, start_command
from paceline.app.elastic import Coordinators
from paceline.app.lab.lines import Lines, lines
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.cluster_file import ClusterFile
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import tokens
from paceline.coordinator.shell.identity import Role
from paceline.coordinator.shell.tokens import Tokens

PATIENCE_S = 30.0
NEARLY = 10  # entries: others are being written just now


@dataclass(slots=True)
class Nodes:
    folder: Path
    addresses: dict[int, str]  # where each listens
    client: BlockingClient
    proof: Tokens
    lines: Lines | None = None  # between everybody and the nodes, if there are doors
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def known(self) -> dict[int, str]:
        """Where everybody else believes that they are."""
        return self.addresses if self.lines is None else self.lines.addresses

    @property
    def place(self) -> Coordinators:
        return Coordinators(tuple(self.known.values()), self.folder / tokens.FILE_NAME)

    def start(self, node: int) -> None:
        cluster = ClusterFile(cluster="lab", nodes=self.known)
        more = ["--token-file", str(self.folder / tokens.FILE_NAME), "--stop-with-stdin"]
        command = start_command(
            node,
            cluster,
            str(self.data_dir(node)),
            more,
            listen=None if self.lines is None else self.addresses[node],
        )
        with self.log_of(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "paceline", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ.for_child(),
            )

    def data_dir(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def log_of(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def pid(self, node: int) -> int:
        return self._processes[node].pid

    def others(self, node: int) -> list[int]:
        return [other for other in self.addresses if other != node]

    def leader(self) -> int:
        """As a majority confirms."""
        address = self.client.find_leader()
        places = [*self.addresses.items(), *self.known.items()]
        return next(node for node, found in places if found == address)

    def status(self, node: int) -> pb.NodeStatus:
        """As it says itself, over no line."""
        return self.client.of_node(self.addresses[node], "Status", pb.StatusRequest())

    def is_up_to_date(self, node: int) -> bool:
        """Does it follow the leader, or lead, and have nearly everything?"""
        try:
            leading, its = self.status(self.leader()), self.status(node)
        except grpc.aio.AioRpcError:
            return False  # it does not listen yet
        return its.leader == leading.node and leading.commit - its.applied < NEARLY

    def kill(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGKILL)
        self.wait(node)

    def stop(self, node: int) -> int:
        """In order; its exit code."""
        self._processes[node].send_signal(signal.SIGTERM)
        return self.wait(node)

    def has_ended(self, node: int) -> bool:
        return self._processes[node].poll() is not None

    def wait(self, node: int) -> int:
        process = self._processes.pop(node)
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return code

    def close(self) -> None:
        for node in list(self._processes):
            self.kill(node)


@contextmanager
def nodes(folder: Path, count: int, *, with_doors: bool = False) -> Iterator[Nodes]:
    """With doors the network between them, and to their callers, can be broken."""
    folder.mkdir(parents=True, exist_ok=True)
    proof = tokens.load_or_create_tokens(folder / tokens.FILE_NAME)
    addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), start=1)}
    with ExitStack() as stack:
        doors = stack.enter_context(lines(addresses)) if with_doors else None
        client = stack.enter_context(
            BlockingClient(list(addresses.values()), proof.of(Role.ADMIN), patience_s=PATIENCE_S)
        )
        found = Nodes(folder, addresses, client, proof, doors)
        stack.callback(found.close)
        for node in addresses:
            found.start(node)
        found.leader()
        yield found
