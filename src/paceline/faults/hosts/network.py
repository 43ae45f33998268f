"""A switch with test hosts, and faults of its links: cut, one way or both, down, slow, lossy.

    with host_network(3, folder) as network:
        network.host(1).start(["paceline", "coordinator", "start", …])
        network.cut_one_way(source=1, target=2)

The switch is a bridge in a network namespace, each host another, linked by a pair of interfaces. This
process reaches all hosts, and they reach it, by an interface of its own (`observer`). Everything has a name
with the pid of its owner, so that `remove_stale` finds what an owner that was killed has left.

A cut drops packets where they arrive: the sender notices nothing, as on a real network. Impairments hold for
packets towards a host; give them to both ends for a round trip.
"""

import fcntl
import ipaddress
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.processes import kill_each, started_ticks
from paceline.faults.hosts.host import Host, HostProcess
from paceline.faults.hosts.requirements import (
    NoHostsError,
    can_make_hosts,
    cannot_delay,
    cannot_limit_rate,
    cannot_lose_packets,
    clock_library,
    has_netem,
    require,
)

PREFIX = "paceline-hosts-"
OBSERVER_PREFIX = "plh"  # an interface name has at most 15 characters
MAX_HOSTS = 50
ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")  # reserved for tests of networks (RFC 2544)
OBSERVER_NUMBER = 254
_NAMESPACES = Path("/run/netns")
_LOCK = Path("/run/paceline-hosts.lock")
_NAME = re.compile(rf"{PREFIX}(?P<pid>\d+)\.(?P<started>\d+)\.(?P<serial>\d+)(-.*)?")
_CUTS = "PACELINE-CUTS"
_IMPAIRMENTS = "PACELINE-IMPAIR"
_serial = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """What happens to packets on their way to a host."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # each is delayed by up to this much more or less; order is kept
    loss_share: float = 0.0
    rate_mbit_s: float | None = None


@dataclass(slots=True)
class HostNetwork:
    name: str
    observer: str  # address of this process in the hosts' network
    hosts: dict[int, Host]
    _delay_lines: dict[int, HostProcess] = field(default_factory=dict)

    def host(self, number: int) -> Host:
        return self.hosts[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    def others(self, number: int) -> list[int]:
        return [other for other in self.hosts if other != number]

    def cut(self, one: int, other: int) -> None:
        """No packet passes between two hosts, in either direction."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, source: int, target: int) -> None:
        """Packets from `source` do not reach `target`; the other direction works."""
        rule = f"iptables --wait --append {_CUTS} --source {self.hosts[source].address} --jump DROP"
        _in(self.hosts[target].network_namespace, rule)

    def mute(self, number: int) -> None:
        """Other hosts receive nothing from this one, which receives everything."""
        for other in self.others(number):
            self.cut_one_way(number, other)

    def deafen(self, number: int) -> None:
        """This host receives nothing from the others, which receive everything of it."""
        for other in self.others(number):
            self.cut_one_way(other, number)

    def isolate(self, number: int) -> None:
        """No packet passes between this host and the others. This process still reaches it."""
        self.mute(number)
        self.deafen(number)

    def heal(self) -> None:
        """Undo all cuts, and set the links up of hosts that are up."""
        for host in self:
            _in(host.network_namespace, f"iptables --wait --flush {_CUTS}")
            if host.is_up:
                self.link_up(host.number)

    def link_down(self, number: int) -> None:
        """Pull its cable: also this process does not reach it."""
        _ip(f"-n {self.name}-switch link set port-{number} down")

    def link_up(self, number: int) -> None:
        _ip(f"-n {self.name}-switch link set port-{number} up")

    def lose(self, number: int) -> None:
        """It vanishes: its link first, so that none of its connections is closed, then all its processes."""
        self.link_down(number)
        self.hosts[number].power_off()
        self._delay_lines.pop(number, None)

    def restart(self, number: int) -> None:
        """A lost host comes back with its disk, no process and an unimpaired link."""
        self.hosts[number].boot()
        self.impair(number, Impairment())
        self.link_up(number)

    def impair(self, number: int, impairment: Impairment) -> None:
        """From now on; raises NoHostsError, and changes nothing, for what this machine cannot do."""
        if impairment.delay_s or impairment.jitter_s:
            require(cannot_delay, "packets cannot be delayed")
        if impairment.loss_share:
            require(cannot_lose_packets, "packets cannot be lost at random")
        if impairment.rate_mbit_s is not None:
            require(cannot_limit_rate, "the rate of a link cannot be limited")
        if has_netem():
            self._impair_by_netem(number, impairment)
        else:
            self._impair_without_netem(number, impairment)

    def _impair_by_netem(self, number: int, impairment: Impairment) -> None:
        self._shape(number, None)
        if impairment == Impairment():
            return
        delay = f"delay {impairment.delay_s * 1e6:.0f}us {impairment.jitter_s * 1e6:.0f}us"
        rate = "" if impairment.rate_mbit_s is None else f"rate {impairment.rate_mbit_s:g}mbit"
        self._shape(number, f"netem limit 100000 {delay} loss {impairment.loss_share:.4%} {rate}")

    def _impair_without_netem(self, number: int, impairment: Impairment) -> None:
        host = self.hosts[number]
        _in(host.network_namespace, f"iptables --wait --flush {_IMPAIRMENTS}")
        if number in self._delay_lines:
            self._delay_lines.pop(number).kill()
        rate = impairment.rate_mbit_s
        self._shape(number, None if rate is None else f"tbf rate {rate:g}mbit burst 128kb latency 200ms")
        append = f"iptables --wait --append {_IMPAIRMENTS} --in-interface eth0"
        if impairment.loss_share:
            match = f"--match statistic --mode random --probability {impairment.loss_share:.6f}"
            _in(host.network_namespace, f"{append} {match} --jump DROP")
        if impairment.delay_s or impairment.jitter_s:
            self._delay_lines[number] = _start_delay_line(host, impairment)
            _in(host.network_namespace, f"{append} --jump NFQUEUE --queue-num 1 --queue-bypass")

    def _shape(self, number: int, discipline: str | None) -> None:
        """Replace what orders the packets that leave the switch towards a host."""
        port = f"dev port-{number} root"
        shown = _in(f"{self.name}-switch", f"tc qdisc show dev port-{number}")
        if " tbf " in f" {shown}" or " netem " in f" {shown}":
            _in(f"{self.name}-switch", f"tc qdisc del {port}")
        if discipline is not None:
            _in(f"{self.name}-switch", f"tc qdisc add {port} {discipline}")


@contextmanager
def host_network(
    count: int, folder: Path | None = None, *, has_wall_clocks: bool = False
) -> Iterator[HostNetwork]:
    """`count` hosts that reach each other; nothing of them is left afterwards but files in `folder`.

    Raises NoHostsError where hosts cannot be made. The hosts' disks are in `folder`, or temporary without it.
    """
    require(can_make_hosts, "test hosts cannot be made here")
    if has_wall_clocks and clock_library() is None:
        raise NoHostsError("hosts cannot have wall clocks: libfaketime is missing", "install libfaketime")
    assert 1 <= count <= MAX_HOSTS, f"1 to {MAX_HOSTS} hosts, not {count}"
    name = f"{PREFIX}{os.getpid()}.{started_ticks(os.getpid())}.{next(_serial)}"
    with ExitStack() as stack:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
            stack.callback(shutil.rmtree, folder)
        stack.callback(_remove_namespaces, name)
        with _exclusively():
            remove_stale()
            network = _make_network(name, count, folder, has_wall_clocks=has_wall_clocks)
        for host in network:
            stack.callback(host.power_off)
            host.boot()
        yield network


def remove_stale() -> list[str]:
    """Remove what owners that have ended left behind; returns the names."""
    stale = [name for name in _namespaces() if (match := _NAME.fullmatch(name)) and not _has_owner(match)]
    for name in stale:
        _remove_namespace(name)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        match = _NAME.fullmatch(folder.name)
        if match and not _has_owner(match):
            shutil.rmtree(folder)
            stale.append(folder.name)
    return stale


def _has_owner(match: re.Match[str]) -> bool:
    return started_ticks(int(match["pid"])) == int(match["started"])


def _make_network(name: str, count: int, folder: Path, *, has_wall_clocks: bool) -> HostNetwork:
    subnet = _free_subnet()
    addresses = {number: str(subnet[number]) for number in range(1, count + 1)}
    folder.mkdir(parents=True, exist_ok=True)
    names_file = folder / "etc-hosts"
    lines = [f"{address} host-{number}" for number, address in addresses.items()]
    names_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]), encoding="ascii")
    observer = str(subnet[OBSERVER_NUMBER])
    _make_switch(name, observer)
    hosts = {}
    for number, address in addresses.items():
        namespace = f"{name}-host-{number}"
        _make_port(name, namespace, number, address)
        hosts[number] = Host(
            name=f"host-{number}",
            number=number,
            address=address,
            network_namespace=namespace,
            folder=folder / f"host-{number}",
            names_file=names_file,
            has_wall_clock=has_wall_clocks,
        )
    return HostNetwork(name, observer, hosts)


def _make_switch(name: str, observer: str) -> None:
    interface = _observer_interface(name)
    switch = f"{name}-switch"
    _ip(f"netns add {switch}")
    _ip(f"-n {switch} link add switch type bridge stp_state 0 forward_delay 0")
    _ip(f"-n {switch} link set switch up")
    _ip(f"link add {interface} type veth peer name port-0 netns {switch}")
    _ip(f"-n {switch} link set port-0 master switch up")
    _ip(f"address add {observer}/24 dev {interface}")
    _ip(f"link set {interface} up")


def _observer_interface(name: str) -> str:
    match = _NAME.fullmatch(name)
    assert match is not None, f"{name} is the name of a network"
    return f"{OBSERVER_PREFIX}{match['pid']}-{int(match['serial']) % 1000}"


def _make_port(name: str, namespace: str, number: int, address: str) -> None:
    switch = f"{name}-switch"
    port = f"port-{number}"
    _ip(f"netns add {namespace}")
    _ip(f"-n {switch} link add {port} type veth peer name eth0 netns {namespace}")
    _ip(f"-n {switch} link set {port} master switch up")
    _ip(f"-n {namespace} address add {address}/24 dev eth0")
    _ip(f"-n {namespace} link set lo up")
    _ip(f"-n {namespace} link set eth0 up")
    for chain in (_CUTS, _IMPAIRMENTS):
        _in(namespace, f"iptables --wait --new-chain {chain}")
        _in(namespace, f"iptables --wait --append INPUT --jump {chain}")


def _start_delay_line(host: Host, impairment: Impairment) -> HostProcess:
    module = "paceline.faults.hosts.delay_line"
    command = [sys.executable, "-m", module, str(impairment.delay_s), str(impairment.jitter_s)]
    process = host.start(command)
    assert process.process.stdout is not None, "its output is piped"
    said = process.process.stdout.readline().strip()
    if said != "ready":
        process.kill()
        raise NoHostsError(f"packets cannot be delayed: {said}", "see the message")
    return process


def _free_subnet() -> "ipaddress.IPv4Network":
    """The first subnet, from one that the pid chooses, of which this machine has no address."""
    taken = _ip("-4 -oneline address show")
    subnets = list(ADDRESSES.subnets(new_prefix=24))
    start = os.getpid() % len(subnets)
    for subnet in [*subnets[start:], *subnets[:start]]:
        if f" {subnet[OBSERVER_NUMBER]}/" not in taken:
            return subnet
    raise NoHostsError(f"all subnets of {ADDRESSES} are taken", "end other processes with test hosts")


def _namespaces() -> list[str]:
    return sorted(path.name for path in _NAMESPACES.glob(f"{PREFIX}*")) if _NAMESPACES.exists() else []


def _remove_namespaces(name: str) -> None:
    interface = _observer_interface(name)
    if f" {interface}@" in _ip("-oneline link show"):  # else it would stay until the kernel gets to it
        _ip(f"link delete {interface}")
    for namespace in _namespaces():
        if namespace.startswith(f"{name}-"):
            _remove_namespace(namespace)


def _remove_namespace(namespace: str) -> None:
    """Interfaces go with their namespace, and with them their peers."""
    kill_each([int(pid) for pid in _ip(f"netns pids {namespace}").split()])
    _ip(f"netns delete {namespace}")


@contextmanager
def _exclusively() -> Iterator[None]:
    """Two owners do not choose the same subnet."""
    fd = os.open(_LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _in(namespace: str, command: str) -> str:
    return _ip(f"netns exec {namespace} {command}")


def _ip(arguments: str) -> str:
    command = ["ip", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise NoHostsError(f"`{' '.join(command)}` fails: {done.stderr.strip()}", "see the system's message")
    return done.stdout
