"""A worker's way into the world of each generation: in shared memory, or over TCP; and into torch's group.

For worlds over TCP the worker opens one listening socket, and publishes its address, and beyond loopback its
certificate, when it joins the run. In a new generation it reads those of the others from the coordinator.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import ActiveTimeout, SystemClock
from paceline.core.errors import PeerLostError, SilenceError
from paceline.core.ids import Rank
from paceline.plan.plan import Transport
from paceline.transport.generation.listener import MeshListener
from paceline.transport.generation.memory_world import enter_memory_world
from paceline.transport.generation.network_world import NetworkGeneration, enter_network_world
from paceline.transport.generation.ports import EnterWorld, TrainingWorld
from paceline.transport.handshake import Dialer, Member, PeerTls
from paceline.transport.tcp_store import LOOPBACK
from paceline.worker.context import WorkerContext
from paceline.worker.elastic.membership import Membership

CERTIFICATE = "certificate"  # the fact with a worker's own
READ_TIMEOUT_S = 1.0
RETRY_S = 0.05


def open_listener(context: WorkerContext, name: str) -> MeshListener | None:
    """The listening socket of a worker, from its start to its end; None: its run shares memory."""
    if context.plan.transport is not Transport.TCP:
        return None
    assert context.coordinator is not None, "an elastic run has a coordinator"
    run = context.coordinator.run
    return MeshListener(context.host, run=run, name=name, token=context.token, tls=peer_tls(context))


def peer_tls(context: WorkerContext) -> PeerTls | None:
    """A certificate of this participant's own, and the trust in others'; None: all is on loopback."""
    if context.host in LOOPBACK:
        return None
    from paceline.worker.tls import client_tls_context, server_tls_context  # slow to import

    server, certificate = server_tls_context(context.host)
    return PeerTls(server, certificate, client_tls_context)


def open_dialer(context: WorkerContext) -> Dialer:
    """By which a participant connects to parameter servers."""
    assert context.coordinator is not None, "an elastic run has a coordinator"
    trusting = None
    if context.host not in LOOPBACK:
        from paceline.worker.tls import client_tls_context  # slow to import

        trusting = client_tls_context
    return Dialer(run=context.coordinator.run, token=context.token, trusting=trusting)


def address_of(listener: MeshListener | None) -> str:
    return "" if listener is None else f"{listener.host}:{listener.port}"


def facts_of(certificate: str) -> dict[str, str]:
    return {CERTIFICATE: certificate} if certificate else {}


def enter_world(context: WorkerContext, listener: MeshListener | None, membership: Membership) -> EnterWorld:
    """How the worker enters the world of each generation."""
    timeout_s = context.plan.timeout_s
    if listener is not None:
        return NetworkEntry(listener, membership, timeout_s)
    folder = context.run_dir / "generations"

    def enter(number: int, names: Sequence[str], rank: int, is_over: Callable[[], bool]) -> TrainingWorld:
        return enter_memory_world(
            folder, number, rank=rank, parties=len(names), timeout_s=timeout_s, is_over=is_over
        )

    return enter


class TorchGroup(Protocol):
    """Torch's default process group in this process, for one generation."""

    def why_lost(self, error: RuntimeError) -> str:
        """Why a collective failed with this error of torch; empty: not because of a peer."""
        ...

    def cut(self) -> None:
        """End the present collective, and all later ones. Called from any thread."""
        ...

    def leave(self) -> None: ...


def enter_group(
    world: TrainingWorld, store: Path, *, timeout_s: float, is_over: Callable[[], bool]
) -> TorchGroup:
    """The group of the world's members; `store`: a file by which those of one host find each other.

    PeerLostError if the generation ends before all are connected.
    """
    # torch.distributed is slow to import, and most modes do not need it.
    if isinstance(world, NetworkGeneration):
        from paceline.transport.generation.mesh_group import MeshGroup

        return MeshGroup(world, timeout_s)
    from paceline.transport.torch_dist import AbortableGroup

    return AbortableGroup(str(store), Rank(world.rank), world.parties, timeout_s, is_over=is_over)


class NetworkEntry:
    """Enters the world of a generation over the network."""

    def __init__(self, listener: MeshListener, membership: Membership, timeout_s: float) -> None:
        self._listener = listener
        self._membership = membership
        self._timeout_s = timeout_s

    def __call__(
        self, number: int, names: Sequence[str], rank: int, is_over: Callable[[], bool]
    ) -> NetworkGeneration:
        self._membership.when_over(self._listener.wake)
        members = self._members(number, names, is_over)
        return enter_network_world(
            self._listener, number, members, rank, timeout_s=self._timeout_s, is_over=is_over
        )

    def _members(self, number: int, names: Sequence[str], is_over: Callable[[], bool]) -> list[Member]:
        """All members by rank; read again until the coordinator answers and has all of them."""
        timeout = ActiveTimeout(self._timeout_s)
        why = "the coordinator did not answer"
        while not is_over():
            try:
                living = {worker.worker: worker for worker in self._membership.workers(READ_TIMEOUT_S)}
                missing = [name for name in names if name not in living or not living[name].address]
                if not missing:
                    return [member_of(living[name]) for name in names]
                why = f"the coordinator has no address of {', '.join(missing)}"
            except (RefusedError, UnreachableError, TimeoutError) as error:
                why = f"the coordinator did not answer: {error}"
            if not timeout.next_s():
                raise SilenceError(f"{why}, for {self._timeout_s:g} s", "check `paceline coordinator status`")
            SystemClock().sleep(RETRY_S)
        raise PeerLostError(
            f"generation {number} ended before it started", "the run continues in the next one"
        )


def member_of(worker: pb.Worker) -> Member:
    """A participant with the address and the certificate that it has published."""
    host, _, port = worker.address.rpartition(":")
    return Member(worker.worker, worker.incarnation, host, int(port), worker.facts.get(CERTIFICATE, ""))
