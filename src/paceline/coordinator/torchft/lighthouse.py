"""Lighthouses of torchft jobs: serve a proxy, list the jobs, forget one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from paceline.coordinator.admin import status
from paceline.coordinator.admin.serve import run_until_stopped, shutdown_event
from paceline.coordinator.client.endpoints import Endpoints
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.torchft.proxy import LeaderLink, Proxy
from paceline.core.errors import ConfigError, Problem

DEFAULT_JOB = "torchft"
DEFAULT_LISTEN = "127.0.0.1:29510"  # the default port of torchft's own lighthouse
PATIENCE_S = 10.0
# Reconnect at once: the next leader may be a node that was down a moment ago.
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # time limit for establishing a connection
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    listen: str = DEFAULT_LISTEN
    job: str = DEFAULT_JOB
    min_replicas: int | None = None  # this and the next two, None: as the job has it, or the default
    join_timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None
    is_open_to_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A proxy that listens."""

    url: str
    lighthouse: pb.Lighthouse
    nodes: tuple[str, ...]


LogFunction = Callable[[str], None]
OnReady = Callable[[Serving], None]


def serve(
    cluster: Endpoints,
    settings: ProxySettings,
    notify: LogFunction,
    on_ready: OnReady,
    *,
    stops_with_stdin: bool = False,
) -> None:
    """Run until a signal, or until the coordinator refuses the job."""
    _check_listen(settings)
    asyncio.run(_serve(cluster, settings, notify, on_ready, stops_with_stdin))


async def _serve(
    cluster: Endpoints,
    settings: ProxySettings,
    notify: LogFunction,
    on_ready: OnReady,
    stops_with_stdin: bool,
) -> None:
    stop = shutdown_event(also_by_stdin=stops_with_stdin)
    lighthouse = await _open_lighthouse(cluster, settings)
    addresses = await _all_addresses(cluster)
    async with Proxy(settings.job, _open_link(cluster, addresses, notify), settings.listen) as proxy:
        on_ready(Serving(url=f"http://{proxy.address}", lighthouse=lighthouse, nodes=addresses))
        await run_until_stopped(stop, proxy.ended())


async def jobs(cluster: Endpoints, *, patience_s: float) -> list[pb.LighthouseState]:
    async with cluster.client(patience_s) as client:
        listed = await client.read("Lighthouses.List", pb.ListLighthouses(), pb.LighthouseList)
        return list(listed.lighthouses)


async def forget(cluster: Endpoints, job: str, *, patience_s: float) -> pb.Lighthouse:
    async with cluster.client(patience_s) as client:
        return await client.write("Lighthouses.Forget", pb.ForgetLighthouse(job=job), pb.Lighthouse)


def _check_listen(settings: ProxySettings) -> None:
    host = security.host_of(settings.listen)
    if int(settings.listen.rpartition(":")[2]) > security.LAST_PORT:
        message = f"{settings.listen!r} is not an address"
        raise ConfigError(
            [Problem(message, f"write HOST:PORT, the port up to {security.LAST_PORT}", "--listen")]
        )
    if not security.is_loopback(host) and not settings.is_open_to_network:
        message = (
            f"{settings.listen} can be reached from other machines, and torchft uses neither tokens nor "
            "TLS: any client could join the job or stop it"
        )
        hint = (
            "run a proxy on every machine that has workers, and listen on 127.0.0.1; "
            "on a trusted network, add --open-to-network"
        )
        raise ConfigError([Problem(message, hint, "--listen")])


async def _open_lighthouse(cluster: Endpoints, settings: ProxySettings) -> pb.Lighthouse:
    request = pb.OpenLighthouse(
        job=settings.job,
        min_replicas=settings.min_replicas or 0,
        join_timeout_ms=_ms(settings.join_timeout_s),
        heartbeat_timeout_ms=_ms(settings.heartbeat_timeout_s),
    )
    async with cluster.client(PATIENCE_S) as client:
        return await client.write("Lighthouses.Open", request, pb.Lighthouse)


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, round(seconds * 1000))


async def _all_addresses(cluster: Endpoints) -> tuple[str, ...]:
    """Addresses of all nodes: the given one may be down later."""
    report = await status.fetch_status(cluster, patience_s=PATIENCE_S)
    known = [line.address for line in report.nodes]
    return tuple(dict.fromkeys((*known, *cluster.addresses)))


def _open_link(cluster: Endpoints, addresses: tuple[str, ...], notify: LogFunction) -> LeaderLink:
    return LeaderLink(
        addresses,
        lambda address: security.open_channel(address, cluster.access, _OPTIONS),
        security.call_metadata(cluster.access),
        lambda address: notify(f"event=leader address={address}"),
    )
