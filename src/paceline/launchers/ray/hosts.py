"""Hosts of an elastic run that Ray starts: one actor for each participant, on any node with room.

An actor reserves the CPUs of one participant, and connects to the command as an agent does (host.py); the
rest is the same code as with agents (launchers/agents). An actor that ends, or whose connection ends, is
replaced while a participant needs its slot: Ray places it on a node with room, and until there is one it is
pending, which an autoscaler answers. A node that joins the cluster gets as many further actors as it has
room for, up to --max-workers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.core.clock import monotonic_s
from paceline.core.errors import MissingPackageError, TrainingError
from paceline.launchers.agents.hub import Hub
from paceline.launchers.agents.placement import HostRoom, HostSource
from paceline.launchers.local import Message
from paceline.launchers.ray.client import START_TIMEOUT_S, ActorLost, Handle, Pending, RayClient
from paceline.launchers.ray.host import RayHost, build_order
from paceline.plan.catalog import server_names
from paceline.plan.plan import Placement, Plan

NODES_S = 2.0  # between two looks at the cluster's nodes
IDLE_S = 60.0  # a slot without a participant is kept for its replacement, which starts faster there
END_S = 5.0  # for actors to end by themselves when the run is over
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 15.0  # between two attempts, when actors end before they have connected
MAX_FAILED_STARTS = 5  # in a row


@dataclass(slots=True, eq=False)
class Slot:
    number: str
    actor: Handle
    pending: Pending  # its call, which returns when it has ended
    host: str = ""  # as the group knows it, once it has connected
    idle_since_s: float | None = None


class RayHosts:
    hint = "add nodes to the Ray cluster"
    start_s = START_TIMEOUT_S

    def __init__(self, plan: Plan, ray: RayClient, order: str, note: Callable[[str], None]) -> None:
        assert plan.elastic is not None, "only elastic runs have hosts"
        self._plan = plan
        servers = len(server_names(plan))
        # With servers one more: the backup can leave the node of its primary.
        self._max_slots = plan.elastic.max_workers + servers + (servers > 0)
        self._is_spread = plan.ray is None or plan.ray.placement is not Placement.PACK
        self._ray = ray
        self._order = order
        self._note = note
        self._slots: list[Slot] = []
        self._ending: list[Slot] = []  # killed; Ray has not reported their end yet
        self._nodes = {node.id for node in ray.nodes()}
        self._started = 0
        self._looked_s = monotonic_s()
        self._failed_starts = 0
        self._retry_s = 0.0

    def arrived(self, host: str, hello: Message) -> None:
        self._failed_starts = 0
        for slot in self._slots:
            if slot.number == hello["slot"]:
                slot.host = host

    def update(self, wanted: int, rooms: Mapping[str, HostRoom]) -> None:
        self._take_ended()
        for slot in list(self._slots):
            room = rooms.get(slot.host)
            is_lost = bool(slot.host) and room is None
            if is_lost or (room is not None and room.is_draining and not room.participants):
                self._end(slot)
            else:
                self._release_idle(slot, room, wanted)
        kept = [slot for slot in self._slots if not (slot.host and rooms[slot.host].is_draining)]
        missing = wanted - len(kept)
        if missing <= 0:
            missing = min(self._new_room(), self._max_slots - len(kept))
        if monotonic_s() >= self._retry_s:
            for _ in range(missing):
                self._start()

    def close(self) -> None:
        """Wait for the actors of a run that is over, then end what is left."""
        until_s = monotonic_s() + END_S
        slots = [*self._slots, *self._ending]
        self._slots = []
        self._ending = []
        try:
            pending = [slot.pending for slot in slots if slot.host]
            while pending and monotonic_s() < until_s:
                ended = self._ray.wait(pending, 0.1)
                pending = [call for call in pending if call not in ended]
        finally:
            for slot in slots:
                self._ray.kill(slot.actor)

    def _start(self) -> None:
        number = str(self._started)
        self._started += 1
        actor = self._ray.start_anywhere(
            RayHost,
            (number,),
            cpus=self._plan.threads_per_worker,
            is_spread=self._is_spread,
        )
        self._slots.append(Slot(number, actor, self._ray.call(actor, "serve", self._order)))

    def _end(self, slot: Slot) -> None:
        self._slots.remove(slot)
        self._ending.append(slot)
        self._ray.kill(slot.actor)

    def _take_ended(self) -> None:
        by_pending = {slot.pending: slot for slot in (*self._slots, *self._ending)}
        if not by_pending:
            return
        for done in self._ray.wait(list(by_pending), 0.0):
            slot = by_pending[done]
            try:
                why = str(self._ray.take(done))
            except ActorLost as lost:
                why = lost.why
                if slot.host and slot not in self._ending:
                    self._note(f"Ray reports the loss of an actor: {why}")
            if slot in self._ending:
                self._ending.remove(slot)
                continue
            self._slots.remove(slot)
            self._ray.kill(slot.actor)
            if not slot.host:
                self._failed_to_start(why)

    def _failed_to_start(self, why: str) -> None:
        if "No module named 'paceline'" in why:
            raise MissingPackageError(
                "a worker could not be started: paceline is not installed on its node",
                "install the same version on every node, or name a runtime environment that has it",
            )
        self._failed_starts += 1
        if self._failed_starts == MAX_FAILED_STARTS:
            raise TrainingError(
                f"{MAX_FAILED_STARTS} Ray actors in a row ended before they reached this command: {why}",
                "check that the nodes reach this machine, and have the same version of paceline",
            )
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self._failed_starts)
        self._retry_s = monotonic_s() + pause_s
        self._note(f"a Ray actor ended before it reached this command, and is started again: {why}")

    def _release_idle(self, slot: Slot, room: HostRoom | None, wanted: int) -> None:
        """Give the CPUs of a slot back that no participant has needed for long."""
        if (room is not None and room.participants) or len(self._slots) <= wanted:
            slot.idle_since_s = None
        elif slot.idle_since_s is None:
            slot.idle_since_s = monotonic_s()
        elif monotonic_s() - slot.idle_since_s > IDLE_S:
            self._end(slot)

    def _new_room(self) -> int:
        """For how many more slots the nodes have room that have joined since the last look."""
        if monotonic_s() - self._looked_s < NODES_S:
            return 0
        nodes = self._ray.nodes()
        self._looked_s = monotonic_s()
        new = [node for node in nodes if node.id not in self._nodes]
        self._nodes = {node.id for node in nodes}
        pending = sum(not slot.host for slot in self._slots)  # Ray places these first
        return max(0, sum(int(node.cpus // self._plan.threads_per_worker) for node in new) - pending)


@contextmanager
def ray_hosts(
    plan: Plan,
    hub: Hub,
    endpoint: CoordinatorEndpoint,
    note: Callable[[str], None],
    *,
    ray: RayClient,
    host: str | None,
) -> Iterator[HostSource]:
    """Actors for the participants of a run, while it runs."""
    hosts = RayHosts(plan, ray, build_order(hub, endpoint, host=host), note)
    try:
        yield hosts
    finally:
        hosts.close()
