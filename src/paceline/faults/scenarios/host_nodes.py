"""Coordinator nodes on hosts of their own: certificates, no shared file, and links that can be broken.

Node n runs on host n. This process, and the run that it trains, call the nodes from outside of the hosts.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from paceline.coordinator.admin.launch import start_command
from paceline.coordinator.client.aio import UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.client.nodes_file import NodesFile
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, TlsFolder
from paceline.coordinator.server import tls
from paceline.core import clock
from paceline.faults.hosts.host import Host, HostProcess
from paceline.faults.hosts.network import HostNetwork, host_network

PORT = 7400
PATIENCE_S = 60.0
MAX_LAG = 10  # entries that may be in flight
CERTIFICATE_DAYS = 2
ASK_S = 1.5  # how long requests to a minority are retried


@dataclass(slots=True)
class HostNodes:
    folder: Path
    network: HostNetwork
    addresses: dict[int, str]
    client: BlockingClient
    _processes: dict[int, HostProcess] = field(default_factory=dict)

    @property
    def coordinators(self) -> Coordinators:
        return _coordinators(self.folder, self.addresses)

    def start(self, node: int) -> None:
        command = start_command(
            node, NodesFile(cluster="lab", nodes=self.addresses), "data", ["--tls-dir", "pki"]
        )
        self._processes[node] = self.network.host(node).start(
            [sys.executable, "-m", "paceline", *command], log=self.folder / f"node-{node}.log"
        )

    def others(self, node: int) -> list[int]:
        return [other for other in self.addresses if other != node]

    def lose(self, node: int) -> None:
        self.network.lose(node)

    def restart(self, node: int) -> None:
        self.network.restart(node)
        self.start(node)

    def leader(self) -> int:
        """The leader that a majority confirms."""
        address = self.client.find_leader()
        return next(node for node, known in self.addresses.items() if known == address)

    def status(self, node: int) -> pb.NodeStatus:
        return self.client.of_node(self.addresses[node], "Status", pb.StatusRequest())

    def agree(self) -> bool:
        """Whether all nodes follow one leader, with nearly all entries applied."""
        try:
            statuses = [self.status(node) for node in self.addresses]
        except grpc.aio.AioRpcError:
            return False  # one of them is starting, or cut off
        leaders = {status.leader for status in statuses}
        newest = max(status.commit for status in statuses)
        return len(leaders) == 1 and all(newest - status.applied < MAX_LAG for status in statuses)

    def answers_alone(self, node: int) -> bool:
        """Whether it confirms a write when it is the only node that is asked."""
        alone = _coordinators(self.folder, {node: self.addresses[node]})
        with open_coordinators(alone).blocking_client(ASK_S) as client:
            try:
                client.write("Runs.Create", pb.CreateRun(run=f"asked-of-{node}", min_workers=1), pb.Run)
            except UnreachableError:
                return False
            return True


@contextmanager
def host_nodes(folder: Path, count: int, *, more_hosts: int = 0) -> Iterator[HostNodes]:
    """Running nodes, each on a host, and hosts without one; raises NoHostsError where none can be made."""
    with host_network(count + more_hosts, folder) as network:
        addresses = {node: f"{network.host(node).address}:{PORT}" for node in range(1, count + 1)}
        _make_certificates(folder, network, addresses)
        with open_coordinators(_coordinators(folder, addresses)).blocking_client(PATIENCE_S) as client:
            nodes = HostNodes(folder, network, addresses, client)
            for node in addresses:
                nodes.start(node)
            nodes.leader()
            yield nodes


def _coordinators(folder: Path, addresses: dict[int, str]) -> Coordinators:
    return Coordinators(addresses=tuple(addresses.values()), credentials=TlsFolder(folder / "pki"))


def _make_certificates(folder: Path, network: HostNetwork, nodes: Iterable[int]) -> None:
    """Each node gets only its own certificate and key; a client's is copied to hosts that need one."""
    pki = folder / "pki"
    holders = [tls.parse_node(f"{node}={network.host(node).address}") for node in nodes]
    tls.init_pki(pki, holders, now_s=clock.unix_now_s(), days=CERTIFICATE_DAYS)
    for node in nodes:
        copy_certificate(pki, network.host(node), f"node-{node}")


def copy_certificate(pki: Path, host: Host, name: str) -> None:
    """Into the host's folder `pki`, with the authority's certificate."""
    own = host.folder / "pki"
    own.mkdir(exist_ok=True)
    for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
        shutil.copy(pki / file, own)
