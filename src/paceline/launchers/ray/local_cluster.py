"""Local Ray cluster for tests and teaching: one `ray start` for each node, on one machine.

Every node is a raylet of its own with CPUs of its own, all on 127.0.0.1; to lose a node is to kill its
raylet. The processes are recorded in a folder, so that `up` can be repeated and `down` finds all of them.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.disk import write_durably
from paceline.core.errors import DamagedRecordError, InUseError
from paceline.launchers.ray.client import RayStartError, check_version
from paceline.launchers.torchrun import began

STOP_TIMEOUT_S = 15.0
_FILE = "cluster.json"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_STARTED = "Ray runtime started"
# A lost node is detected in seconds; Ray's default of half a minute suits unstable networks.
_HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
# For ray:// the head starts a process for each client, with a default timeout of half a minute: on a busy
# machine importing Ray may take that long.
_PATIENCE = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "180", "TIMEOUT_FOR_SPECIFIC_SERVER_S": "180"}


@dataclass(frozen=True, slots=True)
class NodeProcess:
    pid: int  # of `ray start --block`, which leads its own session
    began: str  # a pid alone is used again
    cpus: int

    @property
    def is_up(self) -> bool:
        return _session_of(self.pid) != 0 and began(self.pid) == self.began

    def pids(self) -> list[int]:
        """Everything of this node that runs."""
        return [pid for pid in _processes() if _session_of(pid) == self.pid]


@dataclass(frozen=True, slots=True)
class LocalCluster:
    address: str  # for --address
    client: str  # the same from other machines' point of view, ray://
    dashboard: str  # for jobs; empty without a dashboard
    temp: str
    nodes: tuple[NodeProcess, ...]

    @property
    def is_up(self) -> bool:
        return all(node.is_up for node in self.nodes)


def default_folder() -> Path:
    return environ.state_folder() / "ray"


def read_cluster(folder: Path) -> LocalCluster | None:
    """The cluster recorded in this folder, running or not."""
    try:
        record = json.loads((folder / _FILE).read_text())
        nodes = tuple(NodeProcess(**node) for node in record.pop("nodes"))
        return LocalCluster(nodes=nodes, **record)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRecordError(f"{folder / _FILE} is damaged: {error}", f"remove {folder}") from error


def start_cluster(folder: Path, *, nodes: int, cpus: int, has_dashboard: bool) -> tuple[LocalCluster, bool]:
    """The cluster, and whether it was started just now."""
    check_version()
    before = read_cluster(folder)
    if before is not None and before.is_up:
        if [node.cpus for node in before.nodes] == [cpus] * nodes:
            return before, False
        has = f"{len(before.nodes)} nodes with {before.nodes[0].cpus} CPUs each"
        raise InUseError(
            f"a cluster is up at {before.address} with {has}", "stop it first: paceline ray down"
        )
    stop_cluster(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _make_token()
    environ.prepare_ray()
    # Directly under /tmp: the names of Ray's sockets must stay shorter than 108 characters.
    temp = Path(tempfile.mkdtemp(prefix="paceline-ray-", dir="/tmp"))
    port, client, board = _free_ports(3)
    address = f"127.0.0.1:{port}"
    dashboard = f"http://127.0.0.1:{board}" if has_dashboard else ""
    started: list[NodeProcess] = []
    head = [
        "--head",
        f"--port={port}",
        f"--ray-client-server-port={client}",
        f"--include-dashboard={str(has_dashboard).lower()}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={board}",
        f"--temp-dir={temp}",
        f"--system-config={json.dumps(_HEALTH)}",
    ]
    try:
        for number in range(nodes):
            role = head if number == 0 else [f"--address={address}"]
            started.append(_start(role, cpus, folder / f"node-{number}.log"))
            cluster = LocalCluster(address, f"ray://127.0.0.1:{client}", dashboard, str(temp), tuple(started))
            write_durably(folder / _FILE, [json.dumps(asdict(cluster)).encode()])
            if number == 0:  # a node that starts before the head is ready fails at once
                _await(started[0], folder / "node-0.log")
        for number, node in enumerate(started):
            _await(node, folder / f"node-{number}.log")
    except BaseException:
        stop_cluster(folder)
        raise
    return cluster, True


def stop_cluster(folder: Path) -> int:
    """End every node; how many were there."""
    cluster = read_cluster(folder)
    if cluster is None:
        return 0
    ended = 0
    # The head last: the other nodes would search for it.
    for node in reversed(cluster.nodes):
        ended += node.is_up
        _end(node)
    shutil.rmtree(cluster.temp, ignore_errors=True)
    (folder / _FILE).unlink(missing_ok=True)
    return ended


def _make_token() -> None:
    """A secret for this user's clusters, as Ray itself makes one; else anybody here could use them."""
    file = environ.ray_token_file()
    if file is None or file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), os.fdopen(os.open(file, _NEW, 0o600), "w") as opened:
        opened.write(secrets.token_hex(32))


def _start(role: list[str], cpus: int, log: Path) -> NodeProcess:
    agent, environments = _free_ports(2)
    common = [
        f"--num-cpus={cpus}",
        "--num-gpus=0",
        "--node-ip-address=127.0.0.1",
        "--disable-usage-stats",
        # Several nodes on one host must not count through the same ports.
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--dashboard-agent-listen-port={agent}",
        f"--runtime-env-agent-port={environments}",
        "--block",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *common],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**environ.for_child_with_our_python(), **_PATIENCE},  # jobs begin with `python -m paceline`
        )
    return NodeProcess(process.pid, began(process.pid), cpus)


def _await(node: NodeProcess, log: Path) -> None:
    end_s = monotonic_s() + environ.ray_start_s()
    while _STARTED not in log.read_text():
        _check_up(node, end_s, log)
        SystemClock().sleep(0.1)


def _check_up(node: NodeProcess, end_s: float, log: Path) -> None:
    if not node.is_up or monotonic_s() > end_s:
        how = "ended while it started" if not node.is_up else f"was not up after {environ.ray_start_s()} s"
        hint = f"see {log}; on a busy machine wait longer: {environ.RAY_START}=600"
        raise RayStartError(f"a node of Ray {how}", hint)


def _end(node: NodeProcess) -> None:
    """End a node in an orderly way if possible, then kill its remaining processes."""
    if node.is_up:
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGTERM)
    end_s = monotonic_s() + STOP_TIMEOUT_S
    while node.pids() and monotonic_s() < end_s:
        SystemClock().sleep(0.05)
    for pid in node.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int:
    """0 for one that has ended, also if it is not reaped yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[3])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for each in sockets:
        each.close()
    return ports
