"""Network partitions of real nodes: each node in a network namespace of its own, on one bridge.

The addresses are not loopback, so the nodes use TLS with certificates of their own. A blackhole
route cuts the way from one node to another, in that direction, and leaves the way from the test to
both.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.coordinator.real.cluster import Cluster

from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.tls import Certificate, init_pki, parse_node
from paceline.coordinator.server.tokens import Token
from paceline.core.clock import unix_now_s


class CannotError(Exception):
    """This machine does not let us make networks."""


class SeparateCluster(Cluster):
    def __init__(self, folder: Path, nodes: int = 3, *, more_hosts: int = 0) -> None:
        """`more_hosts`: namespaces without a node, numbered after the nodes."""
        super().__init__(folder, nodes)
        self._name = f"pl{os.getpid() % 100_000}"  # names of interfaces are short
        self._net = f"10.213.{os.getpid() % 250}"
        self.addresses = {node: f"{self._net}.{node}:7400" for node in range(1, nodes + 1)}
        self._hosts = range(1, nodes + more_hosts + 1)
        self._undo = ExitStack()
        self._is_cut: set[tuple[int, int]] = set()

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            self._make_network(stack)
            await super().__aenter__()
            self._undo = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        self._undo.close()

    def command(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", self._space(node)]

    def make_secrets(self) -> None:
        nodes = [parse_node(f"{node}={self._net}.{node}") for node in self.addresses]
        init_pki(self.folder / "pki", nodes, now_s=unix_now_s())

    def secrets_flags(self) -> list[str]:
        return ["--tls-dir", str(self.folder / "pki")]

    def access(self, role: Role = Role.ADMIN) -> Token | Certificate:
        return security.client_access(tls_dir=self.folder / "pki", tls_name=role.value)

    def silence(self, speakers: list[int], listeners: list[int]) -> None:
        """Nothing that these send reaches those any more."""
        for a in speakers:
            for b in listeners:
                self._is_cut.add((a, b))
                _ip("-n", self._space(a), "route", "add", "blackhole", f"{self._net}.{b}/32")

    def heal(self) -> None:
        for a, b in self._is_cut:
            _ip("-n", self._space(a), "route", "del", "blackhole", f"{self._net}.{b}/32")
        self._is_cut.clear()

    def _space(self, node: int) -> str:
        return f"{self._name}-{node}"

    def _make_network(self, stack: ExitStack) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise CannotError("network namespaces need root and the command `ip`")
        _ip("link", "add", self._name, "type", "bridge")
        stack.callback(_ip, "link", "del", self._name)
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for node in self._hosts:
            space, line = self._space(node), f"{self._name}v{node}"
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", line, "master", self._name, "up")
            _ip("-n", space, "addr", "add", f"{self._net}.{node}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")


def _ip(*args: str) -> None:
    result = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if result.returncode:
        raise CannotError(f"`ip {' '.join(args)}` failed: {result.stderr.strip()}")
