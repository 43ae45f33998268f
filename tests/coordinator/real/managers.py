"""Fake torchft managers: real sockets, and the calls that torchft makes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import grpc.aio
from tests.coordinator.real.cluster import PATIENCE_S, Cluster

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.torchft.proxy import LeaderLink, Proxy

BEAT_S = 0.1
SERVICE = "/torchft.LighthouseService"


class FakeManager:
    """`async with FakeManager(name, address) as manager:` gives signs of life until it falls silent."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.step, self.failures = name, 0, 0
        self._channel = grpc.aio.insecure_channel(address)
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fall_silent()
        await self._channel.close()

    async def fall_silent(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None

    async def ask(self, *, within_s: float = PATIENCE_S) -> bytes:
        """The answer as it is on the wire."""
        member = torchft.QuorumMember(
            replica_id=self.name,
            address=f"http://{self.name}:1",
            store_address=f"{self.name}:2",
            step=self.step,
            world_size=1,
            commit_failures=self.failures,
        )
        request = torchft.LighthouseQuorumRequest(requester=member).SerializeToString()
        return await self._method("Quorum")(request, timeout=within_s)

    async def _beat(self) -> None:
        request = torchft.LighthouseHeartbeatRequest(replica_id=self.name).SerializeToString()
        while True:
            await self._method("Heartbeat")(request)
            await asyncio.sleep(BEAT_S)

    def _method(self, name: str) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        method = self._channel.unary_unary(f"{SERVICE}/{name}", None, None)
        return method


def quorum(answer: bytes) -> torchft.Quorum:
    return torchft.LighthouseQuorumResponse.FromString(answer).quorum


def names(answer: bytes) -> list[str]:
    return [member.replica_id for member in quorum(answer).participants]


async def open_job(
    cluster: Cluster, job: str = "job", *, min_replicas: int = 1, heartbeat_timeout_ms: int = 0
) -> pb.Lighthouse:
    command = pb.OpenLighthouse(job=job, min_replicas=min_replicas, heartbeat_timeout_ms=heartbeat_timeout_ms)
    async with cluster.client(role=Role.WORKER) as client:
        return await client.write("Lighthouses.Open", command, pb.Lighthouse)


@asynccontextmanager
async def proxy_to(cluster: Cluster, job: str = "job") -> AsyncIterator[Proxy]:
    """As a worker of this cluster would have it."""
    access = cluster.access(Role.WORKER)
    link = LeaderLink(
        list(cluster.addresses.values()),
        lambda address: security.open_channel(address, access),
        security.call_metadata(access),
    )
    async with Proxy(job, link, "127.0.0.1:0") as proxy:
        yield proxy
