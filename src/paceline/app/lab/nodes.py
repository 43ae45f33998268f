"""How does an experiment get coordinator nodes that it may kill? As processes, on this machine."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline import environ
from paceline.app.cluster_up import free_ports, start_command
from paceline.app.elastic import Coordinators
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.cluster_file import ClusterFile
from paceline.coordinator.shell import tokens
from paceline.coordinator.shell.identity import Role


@dataclass(slots=True)
class Nodes:
    folder: Path
    addresses: dict[int, str]
    client: BlockingClient
    _processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def place(self) -> Coordinators:
        return Coordinators(tuple(self.addresses.values()), self.folder / tokens.FILE_NAME)

    def start(self, node: int) -> None:
        cluster = ClusterFile(cluster="lab", nodes=self.addresses)
        more = ["--token-file", str(self.folder / tokens.FILE_NAME), "--stop-with-stdin"]
        command = start_command(node, cluster, str(self.folder / f"node-{node}"), more)
        with (self.folder / f"node-{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "paceline", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ.for_child(),
            )

    def leader(self) -> int:
        """As a majority confirms."""
        address = self.client.find_leader()
        return next(node for node, found in self.addresses.items() if found == address)

    def kill(self, node: int) -> None:
        self._processes[node].send_signal(signal.SIGKILL)
        self._processes.pop(node).wait()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


@contextmanager
def nodes(folder: Path, count: int) -> Iterator[Nodes]:
    folder.mkdir(parents=True, exist_ok=True)
    proof = tokens.load_or_create_tokens(folder / tokens.FILE_NAME)
    addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), start=1)}
    with BlockingClient(list(addresses.values()), proof.of(Role.ADMIN), patience_s=30) as client:
        found = Nodes(folder, addresses, client)
        try:
            for node in addresses:
                found.start(node)
            found.leader()
            yield found
        finally:
            found.close()
