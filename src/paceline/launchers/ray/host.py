"""Ray actor that is a host of an elastic run: what `paceline agent` is on a host without Ray.

An actor has one slot. Its order arrives as an argument of a method, which only the actor's process receives;
arguments of its constructor and variables of its runtime environment would be stored by Ray's head and shown
in its dashboard. The order has the secret of the run and the credentials of a worker at the coordinator,
which the actor keeps in a folder that only its user can read.

The actor never imports torch: its helper process does. The kernel closes its connections when it dies, and
the helper then ends the worker.
"""

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import CoordinatorEndpoint, Coordinators, TlsFolder, TokenFile
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.server.tls import Certificate
from paceline.core.disk import write_private
from paceline.core.errors import PeerLostError
from paceline.launchers.agents.hosted_run import Helper, HostedRun, Slots
from paceline.launchers.agents.hub import Hub
from paceline.plan.codec import Json

Message = dict[str, Json]
DRAIN_POLL_S = 1.0
_PREFIX = "paceline-ray-host-"
_TOKEN = "token"


def build_order(hub: Hub, endpoint: CoordinatorEndpoint, *, host: str | None) -> str:
    """What an actor needs to serve this run; it is secret.

    `host`: the address at which workers listen; None: that of their node.
    """
    return json.dumps(
        {
            "run": endpoint.run,
            "address": hub.address,
            "certificate": hub.certificate,
            "secret": hub.secret.hex(),
            "coordinators": ",".join(endpoint.coordinators.addresses),
            "credentials": worker_credentials(endpoint.coordinators),
            "host": host,
            "cwd": str(Path.cwd()),
        }
    )


def worker_credentials(coordinators: Coordinators) -> dict[str, Json]:
    """The files that a worker needs to call the coordinator, by name; none of a more powerful role."""
    access = open_coordinators(coordinators, Role.WORKER).access
    if not isinstance(access, Certificate):
        return {_TOKEN: access.text}
    name = access.identity.name
    files = {"ca.crt": access.authority, f"{name}.crt": access.chain, f"{name}.key": access.key}
    return {file: data.decode() for file, data in files.items()}


def coordinators_with(addresses: str, credentials: Mapping[str, Json], folder: Path) -> Coordinators:
    """The coordinators, with these credentials written into this folder."""
    folder.mkdir(mode=0o700)
    for file, text in credentials.items():
        write_private(folder / file, str(text).encode())
    access = TokenFile(folder / _TOKEN) if _TOKEN in credentials else TlsFolder(folder)
    return Coordinators(addresses=tuple(addresses.split(",")), credentials=access)


class RayHost:
    """The actor's class. It has no coroutines: Ray would run its methods in an event loop of its own."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        _remove_stale()

    def serve(self, order: str) -> str:
        """Until the run is over or the connection ends; returns why."""
        from paceline.launchers.ray.client import own_address

        fields = json.loads(order)
        with suppress(OSError):  # user tasks are imported from there, as without Ray
            os.chdir(str(fields["cwd"]))
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        try:
            asyncio.run(_serve(fields, folder, str(fields["host"] or own_address()), self._slot))
        except (OSError, PeerLostError) as error:
            return str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return "the run is over"


async def _serve(order: Message, folder: Path, address: str, slot: str) -> None:
    credentials = order["credentials"]
    assert isinstance(credentials, dict), "credentials are files by name"
    coordinators = coordinators_with(str(order["coordinators"]), credentials, folder / "credentials")
    is_draining = asyncio.Event()
    hosted = HostedRun(
        offer=pb.OfferRun(
            run=str(order["run"]),
            address=str(order["address"]),
            certificate=str(order["certificate"]),
            secret=bytes.fromhex(str(order["secret"])),
        ),
        name=socket.gethostname(),
        folder=folder / "run",
        take_helper=Helper,
        slots=Slots(1),
        coordinator=coordinators.to_dict(),
        address=address,
        note=print,
        is_draining=is_draining.is_set,
        slot=slot,
    )
    watching = asyncio.create_task(_watch_node(hosted, is_draining))
    try:
        await hosted.run()
    finally:
        watching.cancel()


async def _watch_node(hosted: HostedRun, is_draining: asyncio.Event) -> None:
    """A node that Ray drains, because it will be preempted or removed, is left in order."""
    from paceline.launchers.ray.client import is_node_draining

    while not await asyncio.to_thread(is_node_draining):
        await asyncio.sleep(DRAIN_POLL_S)
    is_draining.set()
    hosted.announce_drain()


def _remove_stale() -> None:
    """Remove what actors that were killed on this node have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
