"""What test hosts need of this machine, each with a reason in words where it is missing.

Hosts need root, iproute2, iptables and util-linux on Linux. Delay, loss and rate are `tc netem` where the
kernel has it; without it loss is an iptables match and rate a token bucket, both of the kernel, and delay is
an iptables queue that `delay_line.py` serves. A wall clock can be stepped where libfaketime is installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from paceline.core.errors import NotReadyError

TOOLS = ("ip", "iptables", "tc", "unshare", "nsenter", "mount")
PACKAGES = "iproute2 iptables util-linux"
HIDDEN_FOLDER = Path("/tmp")
_FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


class NoHostsError(NotReadyError):
    """Test hosts, or a fault of them, are not possible on this machine."""

    code = "E211"


def can_make_hosts() -> str | None:
    """Why test hosts cannot be made here; None if they can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root, and this is another user"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing; install {PACKAGES}"
    for folder in (Path(sys.prefix), Path(__file__)):
        if folder.resolve().is_relative_to(HIDDEN_FOLDER):
            return f"{folder} is in {HIDDEN_FOLDER}, which a host does not see; install elsewhere"
    return _namespaces_missing()


@cache
def _namespaces_missing() -> str | None:
    """Tried in a process of its own, which leaves nothing."""
    attempts = {
        "namespaces for network, mounts, processes and clocks": (
            *("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--time", "--monotonic", "1"),
            *("--fork", "--mount-proc", "true"),
        ),
        "bridges": ("unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"),
        "pairs of linked interfaces": ("unshare", "--net", "ip", "link", "add", "probe", "type", "veth"),
        "packet filters": ("unshare", "--net", "iptables", "--append", "INPUT", "--jump", "DROP"),
    }
    for what, command in attempts.items():
        refusal = _refusal(command)
        if refusal is not None:
            return f"this machine does not allow {what}: {refusal}"
    return None


@cache
def has_netem() -> bool:
    """Whether the kernel has netem, by which all link conditions are set."""
    return _refusal(_in_new_network("tc qdisc add dev lo root netem delay 1ms")) is None


@cache
def cannot_lose_packets() -> str | None:
    """Why packets cannot be lost at random here; None if they can."""
    if has_netem():
        return None
    return _refusal(_in_new_network("iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP"))


@cache
def cannot_limit_rate() -> str | None:
    """Why the rate of a link cannot be limited here; None if it can."""
    if has_netem():
        return None
    return _refusal(_in_new_network("tc qdisc add dev lo root tbf rate 1mbit burst 64kb latency 100ms"))


@cache
def cannot_delay() -> str | None:
    """Why packets cannot be delayed here; None if they can."""
    if has_netem():
        return None
    return _refusal(_in_new_network("iptables -A INPUT -j NFQUEUE --queue-num 1"))


def clock_library() -> Path | None:
    """The library that gives the processes of a host a wall clock of their own; None if it is missing."""
    places = (path for pattern in _FAKETIME for path in sorted(Path("/").glob(pattern[1:])))
    return next(places, None)


def require(reason: Callable[[], str | None], what: str) -> None:
    """Raises NoHostsError with the reason, if there is one."""
    missing = reason()
    if missing is not None:
        raise NoHostsError(f"{what}: {missing}", f"run as root on Linux with {PACKAGES}")


def _in_new_network(command: str) -> tuple[str, ...]:
    return ("unshare", "--net", *command.split())


def _refusal(command: Sequence[str]) -> str | None:
    """What the command prints when it fails; None if it succeeds."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, cwd=tempfile.gettempdir()
    )
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"{' '.join(command)} fails with exit code {done.returncode}"
