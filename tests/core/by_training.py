"""Provocations of E4, a run that fails while it trains, and of E5, a coordinator."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import torch
from tests.core.provoked import Codes, Provocation, printed_codes, raised

from paceline.compression.codecs import Cast
from paceline.coordinator.admin import operations
from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.admin.verify import verify
from paceline.coordinator.client.aio import UnreachableError, refused
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.tls import init_pki, parse_node
from paceline.core.clock import unix_now_s
from paceline.core.disk import read_private
from paceline.core.errors import HopelessError
from paceline.core.ids import Rank
from paceline.strategies.allreduce import non_finite_error
from paceline.transport import tcp_wire
from paceline.transport.in_process import CollectiveState, InProcessCollective

NODE = "127.0.0.1:1"


class _Never:
    """Turns that no other worker ever takes."""

    def now_ns(self) -> int:
        return 0

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float) -> bool:
        return is_true()


def _hopeless(_folder: Path) -> Codes:
    """Only kinds of it are raised, which have codes of their own."""

    def body() -> None:
        raise HopelessError("the same would happen again", "look at the log")

    return raised(body)


def _receive(words: bytes) -> Codes:
    """What we make of what another process sends before it hangs up."""
    mine, theirs = socket.socketpair()
    with mine:
        with theirs:
            theirs.sendall(words)
        return raised(lambda: tcp_wire.receive(mine))


def _not_finite(_folder: Path) -> Codes:
    def body() -> None:
        raise non_finite_error(12, "worker-1")

    return raised(body)


def _missing_peer(_folder: Path) -> Codes:
    alone = InProcessCollective(CollectiveState(2), Rank(0), turns=_Never(), timeout_s=0.0)
    vector = alone.allocate(4, torch.float32)
    return raised(lambda: alone.all_reduce_mean(vector))


def _answered(status: grpc.StatusCode, why: str = "") -> Codes:
    """What a client makes of what a node answered."""
    facts = grpc.aio.Metadata(("paceline-why", why)) if why else grpc.aio.Metadata()

    def body() -> None:
        raise refused(grpc.aio.AioRpcError(status, grpc.aio.Metadata(), facts, "no\nbecause"))

    return raised(body)


class _Node:
    """A client whose leader never does it, and whose nodes say this about themselves."""

    def __init__(self, *statuses: pb.NodeStatus) -> None:
        self.statuses = statuses

    async def of_node(self, address: str, _method: str, _request: object) -> pb.NodeStatus:
        return self.statuses[int(address.rpartition(":")[2]) - 1]

    async def manage(self, _method: str, _change: object) -> pb.NodeStatus:
        raise UnreachableError("no leader answered", "wait")


class _Cluster:
    def __init__(self, *statuses: pb.NodeStatus) -> None:
        self.addresses = (NODE,)
        self._node = _Node(*statuses)

    @asynccontextmanager
    async def client(self, _patience_s: float) -> AsyncIterator[_Node]:
        yield self._node


def _changed(change: Callable[[Any], Any], *statuses: pb.NodeStatus) -> Codes:  # Any: a stand-in cluster
    cluster = _Cluster(*statuses)
    return raised(lambda: asyncio.run(change(cluster)))


def _no_leader(_folder: Path) -> Codes:
    alone = pb.NodeStatus(node=1, role="follower", peers=[pb.PeerStatus(node=1, address=NODE, is_voter=True)])
    return _changed(lambda cluster: operations.step_down(cluster, None, patience_s=0.1), alone)


def _still_reads(_folder: Path) -> Codes:
    peers = [
        pb.PeerStatus(node=1, address=NODE, is_voter=True),
        pb.PeerStatus(node=2, address="127.0.0.1:2", lag=9),
    ]
    leader = pb.NodeStatus(node=1, role="leader", term=1, peers=peers)
    new = pb.NodeStatus(node=2, role="follower", term=1)
    return _changed(
        lambda cluster: operations.add_node(cluster, 2, "127.0.0.1:2", patience_s=0.1), leader, new
    )


def _no_answer(folder: Path) -> Codes:
    """With a token of its own: whether this machine has one is not what is asked."""
    path = folder / "token"
    path.write_text("t" * 40)
    path.chmod(0o600)
    words = ("--at", NODE, "--timeout-s", "0.2", "--token-file", str(path))
    return printed_codes(folder, "coordinator", "status", *words)


def _without_tls(folder: Path) -> Codes:
    """A client with certificates at a node that uses tokens."""
    init_pki(folder / "pki", [parse_node("1=127.0.0.1")], now_s=unix_now_s())
    with EmbeddedNode(folder) as node:
        words = ("--at", node.address, "--tls-dir", str(folder / "pki"))
        return printed_codes(folder, "coordinator", "status", *words)


def _shown_secret(folder: Path) -> Codes:
    path = folder / "token"
    path.write_text("t" * 40)
    path.chmod(0o644)
    return raised(lambda: read_private(path))


def _empty_node_folder(folder: Path) -> Codes:
    (folder / "wal-00000001.log").write_bytes(os.urandom(64))
    return raised(lambda: verify(folder))


PROVOCATIONS: dict[str, Provocation] = {
    "E400": lambda _: raised(lambda: Cast(torch.float16).encode(torch.tensor([1e30]))),
    "E401": _hopeless,
    "E402": lambda _: _receive(b""),
    "E403": _not_finite,
    "E404": lambda _: _receive(struct.pack("!IIQQqQ", 7, 0, 0, 0, 0, 0)),
    "E405": _missing_peer,
    "E501": _no_answer,
    "E502": lambda _: _answered(grpc.StatusCode.FAILED_PRECONDITION, "NOT_FOUND"),
    "E503": lambda _: _answered(grpc.StatusCode.UNAUTHENTICATED),
    "E504": lambda _: _answered(grpc.StatusCode.FAILED_PRECONDITION, "NOT_NOW"),
    "E505": _no_leader,
    "E506": _still_reads,
    "E508": _empty_node_folder,
    "E510": _shown_secret,
    "E511": _without_tls,
}
