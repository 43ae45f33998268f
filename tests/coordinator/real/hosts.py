"""A cluster of coordinator nodes on hosts of their own, with certificates and nothing shared."""

import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.coordinator.real.cluster import PATIENCE_S, Cluster
from tests.fixtures.hosts import hosts

from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.tls import Certificate, init_pki, parse_node
from paceline.coordinator.server.tokens import Token
from paceline.core.clock import unix_now_s
from paceline.faults.hosts.host import HostProcess
from paceline.faults.hosts.network import HostNetwork

PORT = 7400


class HostCluster(Cluster):
    """Node n runs on host n, whose disk is `folder/host-n`. Clients call from outside of the hosts."""

    network: HostNetwork

    def __init__(self, folder: Path, nodes: int = 3, *, more_hosts: int = 0) -> None:
        """`more_hosts`: hosts without a node, numbered after the nodes."""
        super().__init__(folder, nodes)
        self._hosts = nodes + more_hosts
        self._hosted: dict[int, HostProcess] = {}
        self._undo = ExitStack()

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            self.network = stack.enter_context(hosts(self._hosts, self.folder))
            self.addresses = {node: f"{self.network.host(node).address}:{PORT}" for node in self.addresses}
            await super().__aenter__()
            self._undo = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._undo:
            await super().__aexit__(kind, error, trace)

    def make_secrets(self) -> None:
        """Each host gets only its own certificate and key."""
        pki = self.folder / "pki"
        node_hosts = [self.network.host(node) for node in self.addresses]
        init_pki(pki, [parse_node(f"{h.number}={h.address}") for h in node_hosts], now_s=unix_now_s())
        for host in node_hosts:
            own = host.folder / "pki"
            own.mkdir()
            for name in ("ca.crt", f"node-{host.number}.crt", f"node-{host.number}.key"):
                shutil.copy(pki / name, own)

    def access(self, role: Role = Role.ADMIN) -> Token | Certificate:
        return security.client_access(tls_dir=self.folder / "pki", tls_name=role.value)

    def start(self, node: int) -> None:
        peers = ",".join(f"{other}={address}" for other, address in self.addresses.items())
        command = [sys.executable, "-m", "paceline", "coordinator", "start", "--id", str(node)]
        command += ["--peers", peers, "--data-dir", "data", "--tls-dir", "pki"]
        self._hosted[node] = self.network.host(node).start(command, log=self.log(node))
        self.processes[node] = self._hosted[node].process

    def kill(self, node: int) -> None:
        self._hosted[node].kill()

    def lose_host(self, node: int) -> None:
        self.network.lose(node)

    def restart_host(self, node: int) -> None:
        self.network.restart(node)
        self.start(node)

    def terminate(self, node: int) -> int:
        self._hosted[node].signal(signal.SIGTERM)
        return self._hosted[node].wait(PATIENCE_S)

    def data_dir(self, node: int) -> Path:
        return self.network.host(node).folder / "data"

    def silence(self, speakers: list[int], listeners: list[int]) -> None:
        """Nothing that these send reaches those any more."""
        for speaker in speakers:
            for listener in listeners:
                self.network.cut_one_way(speaker, listener)

    def heal(self) -> None:
        self.network.heal()
