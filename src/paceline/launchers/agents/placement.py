"""On which host of an elastic run a participant is started, and what brings hosts to the run.

Workers spread over the hosts. A parameter server avoids the host of another server, so that a primary and its
backup are not lost together. A participant avoids a host that lost it before, where another has room.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.core.errors import PacelineError
from paceline.launchers.agents.wire import Message


@dataclass(slots=True)
class HostRoom:
    """What one host offers, and what of this run it has."""

    name: str
    free: int  # slots that no run uses
    participants: set[str] = field(default_factory=set)
    is_draining: bool = False
    machine: str = ""  # that it shares with other hosts of this name; empty: with none
    lost: Mapping[str, int] = field(default_factory=dict)  # how often it lost each participant


@dataclass(slots=True)
class Host:
    room: HostRoom
    name: str  # of the agent
    scratch: str
    is_usable: bool = True  # False: it refused the plan
    is_over: bool = False
    is_new: bool = True  # its free slots were not offered to the supervisor yet
    has_lost_lines: bool = False  # of its participants' logs
    alive: int = 0
    loss: float | None = None
    refusal: PacelineError | None = None  # why it is not
    sent_checkpoints: set[str] = field(default_factory=set)

    def take_progress(self, message: Message) -> dict[int, int]:
        """Returns the steps of its workers, by number of the worker."""
        self.alive = int(str(message["alive"]))
        self.loss = float(str(message["loss"])) if message["loss"] is not None else None
        steps = message["steps"]
        assert isinstance(steps, list), "progress has the steps of every worker"
        return {
            index: int(str(count))
            for index, count in enumerate(steps)
            if f"worker-{index}" in self.room.participants
        }


@dataclass(slots=True)
class Placed:
    """A participant that was ordered to start, or runs."""

    host: str
    pid: int = 0
    first_steps: int = 0  # its count when it was started


def choose_host(participant: str, hosts: Collection[HostRoom]) -> str | None:
    """The host to start it on; None: no host has a free slot."""
    open_hosts = [host for host in hosts if host.free > 0 and not host.is_draining]
    if not open_hosts:
        return None
    occupied = machines_of_servers(hosts) if is_server(participant) else set()
    return min(open_hosts, key=lambda host: _cost(participant, host, occupied)).name


def host_apart(server: str, current: HostRoom, hosts: Collection[HostRoom]) -> str | None:
    """Where a server moves that shares its machine with the other one; None: it stays."""
    here = machine_of(current)
    neighbours = [who for host in hosts if machine_of(host) == here for who in host.participants]
    if sum(map(is_server, neighbours)) < 2:
        return None
    return choose_host(server, [host for host in hosts if machine_of(host) != here])


def describe_hosts(hosts: Collection[Host]) -> str:
    """The room that they have, for a message."""
    if not hosts:
        return "no host is connected"
    return ", ".join(
        f"{host.name} has {host.room.free} free slots" + (" and is draining" if host.room.is_draining else "")
        for host in hosts
    )


def mean_loss(hosts: Collection[Host]) -> float | None:
    """Of all living workers, as their hosts reported it."""
    losses = [(host.loss, host.alive) for host in hosts if host.loss is not None and host.alive]
    weight = sum(alive for _, alive in losses)
    return sum(loss * alive for loss, alive in losses) / weight if weight else None


def have_trained(placed: Mapping[str, Placed], steps: Sequence[int]) -> bool:
    """Whether a living worker has trained: then a new one gets the state from its memory."""
    return any(
        one.pid and steps[int(who.removeprefix("worker-"))] > one.first_steps
        for who, one in placed.items()
        if who.startswith("worker-")
    )


def shares_a_machine(participant: str, room: HostRoom, rooms: Collection[HostRoom]) -> bool:
    """Whether it is a server that would be on the machine of another one."""
    return is_server(participant) and machine_of(room) in machines_of_servers(rooms)


def machines_of_servers(hosts: Collection[HostRoom]) -> set[str]:
    return {machine_of(host) for host in hosts if any(map(is_server, host.participants))}


def machine_of(host: HostRoom) -> str:
    return host.machine or host.name


def is_server(participant: str) -> bool:
    return participant.startswith("server-")


def _cost(participant: str, host: HostRoom, occupied: Collection[str]) -> tuple[bool, int, int, str]:
    return (machine_of(host) in occupied, host.lost.get(participant, 0), -host.free, host.name)


class HostSource(Protocol):
    """What brings hosts to a run."""

    hint: str  # how a user brings more
    start_s: float  # how long a host may take to start

    def arrived(self, host: str, hello: Message) -> None: ...

    def update(self, wanted: int, rooms: Mapping[str, HostRoom]) -> None:
        """So many participants run or wait for a slot; bring hosts, and end those that are not needed."""
        ...
