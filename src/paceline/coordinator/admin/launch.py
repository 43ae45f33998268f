"""Local coordinators: run a group of nodes as processes, or write a Docker Compose file for it.

The group lives in one folder: the addresses of its nodes (cluster.json) and the data of each
node. A later `up` in the same folder starts the same group. No node outlives this process: each
reads from a pipe that this process holds, and stops when the pipe closes.

In the Compose file each container mounts its own certificate and key, read-only, and never the
authority's key. Its data is on a volume of its own.
"""

import asyncio
import fcntl
import os
import random
import secrets
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.coordinator.admin import status
from paceline.coordinator.admin.status import StatusReport
from paceline.coordinator.client import nodes_file
from paceline.coordinator.client.aio import UnreachableError
from paceline.coordinator.client.endpoints import EndpointOptions, Endpoints, find_endpoints, user_token_file
from paceline.coordinator.client.nodes_file import NodesFile, pid_file
from paceline.core import environ
from paceline.core.errors import (
    CannotWriteError,
    ClusterOptionError,
    ExitCode,
    InUseError,
    NotReadyError,
    PacelineError,
    PortError,
    Problem,
)

if TYPE_CHECKING:
    from paceline.plan.codec import Json


DEFAULT_NODES = 3
# Below the ports that systems give to outgoing connections, so that they are still free the next time.
PORTS = range(20_000, 32_768)
STOP_S = 10.0
STATUS_TIMEOUT_S = 1.0
POLL_S = 0.05

OnMessage = Callable[[str], None]
OnReady = Callable[[StatusReport], None]


class AllEndedError(PacelineError):
    """All nodes have ended."""

    exit_code = ExitCode.DEGRADED
    code = "E507"


def run_nodes(
    folder: Path, nodes: int | None, token_file: Path | None, notify: OnMessage, on_ready: OnReady
) -> None:
    """Run until Ctrl-C or SIGTERM, or until no node is left (AllEndedError)."""
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(folder):
        asyncio.run(_LocalGroup(folder, plan_nodes(folder, nodes), token_file, notify, on_ready).run())


def plan_nodes(folder: Path, nodes: int | None) -> NodesFile:
    """The group of this folder; a new one on free ports if there is none."""
    if (folder / nodes_file.FILE_NAME).exists():
        existing = nodes_file.read_nodes_file(folder)
        if nodes is not None and nodes != len(existing.nodes):
            message = f"{folder} holds a cluster of {len(existing.nodes)} nodes, not {nodes}"
            raise ClusterOptionError(
                [Problem(message, "leave out --nodes, or give another --dir", "--nodes")]
            )
        return existing
    ports = free_ports(nodes or DEFAULT_NODES)
    created = NodesFile(
        # A unique name: if another group gets its ports later, the nodes ignore each other.
        cluster=f"local-{secrets.token_hex(4)}",
        nodes={number: f"127.0.0.1:{port}" for number, port in enumerate(ports, start=1)},
    )
    created.write(folder)
    return created


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens right now."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise PortError(
        f"this machine has no {count} free ports from {PORTS[0]} to {PORTS[-1]}",
        "stop a process that listens on one of them",
    )


def start_command(
    number: int, cluster: NodesFile, data_dir: str, flags: Sequence[str] = (), *, listen: str | None = None
) -> list[str]:
    """The arguments of `paceline` that start one node of a group."""
    peers = ",".join(f"{node}={address}" for node, address in cluster.nodes.items())
    command = ["coordinator", "start", "--id", str(number), "--peers", peers, "--data-dir", data_dir]
    command += ["--cluster", cluster.cluster]
    return [*command, *(() if listen is None else ("--listen", listen)), *flags]


class _LocalGroup:
    def __init__(
        self, folder: Path, cluster: NodesFile, token_file: Path | None, notify: OnMessage, on_ready: OnReady
    ) -> None:
        self._folder = folder
        self._file = cluster
        self._token_file = token_file
        self._notify = notify
        self._on_ready = on_ready
        self._processes: dict[int, Process] = {}

    async def run(self) -> None:
        stop = asyncio.Event()
        for number in environ.stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        for node in self._file.nodes:
            self._processes[node] = await self._start(node)
        forwarding = [asyncio.create_task(self._forward_output(node)) for node in self._processes]
        all_ended = asyncio.gather(*forwarding)
        stopping = asyncio.create_task(stop.wait())
        ready = asyncio.create_task(self._wait_until_ready())
        waiting: set[asyncio.Future[Any]] = {stopping, all_ended, ready}  # Any: their results differ
        try:
            while not (stopping.done() or all_ended.done()):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what went wrong
        finally:
            ready.cancel()
            stopping.cancel()
            await self._stop()
            await all_ended
        if not stop.is_set():
            raise AllEndedError("all nodes have ended", "see their output above; their logs are kept")

    async def _start(self, node: int) -> Process:
        flags = ["--stop-with-stdin"]
        flags += [] if self._token_file is None else ["--token-file", str(self._token_file)]
        command = start_command(node, self._file, str(self._folder / f"node-{node}"), flags)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline", *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops them in order
        )
        pid_file(self._folder, node).write_text(f"{process.pid}\n", encoding="utf-8")
        self._notify(f"node {node}: {self._file.nodes[node]} pid {process.pid}")
        return process

    async def _forward_output(self, node: int) -> None:
        """Forward the output of a node, and report its end."""
        process = self._processes[node]
        assert process.stdout is not None, "its output is piped to us"
        async for line in process.stdout:
            self._notify(f"node {node} | {line.decode(errors='replace').rstrip()}")
        code = await process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        left = sum(other.returncode is None for other in self._processes.values())
        self._notify(f"node {node} {how}; {left} of {len(self._processes)} are running")

    async def _wait_until_ready(self) -> None:
        token_file = self._token_file or user_token_file()  # that of the nodes, regardless of PACELINE_TOKEN
        options = EndpointOptions(usual_folder=self._folder, folder=self._folder, token_file=token_file)
        while True:
            try:
                report = await status.fetch_status(self._find_endpoints(options), patience_s=STATUS_TIMEOUT_S)
            except UnreachableError:
                report = None  # they have only just been started
            if report is not None and self._is_ready(report):
                self._on_ready(report)
                return
            await asyncio.sleep(POLL_S)

    def _is_ready(self, report: StatusReport) -> bool:
        """There is a leader, and every node that still runs is connected."""
        living = {node for node, process in self._processes.items() if process.returncode is None}
        return report.leader is not None and living.isdisjoint(report.missing)

    def _find_endpoints(self, options: EndpointOptions) -> Endpoints:
        try:
            return find_endpoints(options)
        except NotReadyError as error:  # the first node has not made its tokens yet
            raise UnreachableError(error.what, error.hint) from error

    async def _stop(self) -> None:
        living = [process for process in self._processes.values() if process.returncode is None]
        for process in living:
            process.terminate()
        waiting = [asyncio.create_task(process.wait()) for process in living]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=STOP_S)
            for process, wait in zip(living, waiting, strict=True):
                if wait in late:
                    self._notify(
                        f"process {process.pid} does not stop, and is killed; acknowledged writes are on disk"
                    )
                    process.kill()
            await asyncio.gather(*waiting)


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    fd = os.open(folder / "up.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(
                f"the cluster in {folder} is already running",
                "stop the other `up`, or give another folder with --dir",
            ) from error
        yield
    finally:
        os.close(fd)


COMPOSE_PORT = 7400
DATA = "/data"
PKI = "/pki"
_HEADER = """\
# Written by `paceline coordinator up --compose`. Start it with `docker compose -f {name} up -d`.
# The image needs `paceline` on its path, and a user that may write to {data} and read the keys below.
"""


def write_compose(path: Path, nodes: int, image: str, tls_dir: Path) -> None:
    import yaml

    text = _HEADER.format(name=path.name, data=DATA)
    text += yaml.safe_dump(compose_config(path.parent, nodes, image, tls_dir), sort_keys=False, width=200)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWriteError(
            f"cannot write {path}: {error.strerror}", "name a file where this user may write"
        ) from error


def pki_command(nodes: int, tls_dir: Path) -> str:
    """The command that creates the certificates that the file mounts."""
    node_flags = " ".join(f"--node {number}={_name(number)}" for number in range(1, nodes + 1))
    return f"paceline coordinator init-pki --out {tls_dir} {node_flags}"


def compose_config(base: Path, nodes: int, image: str, tls_dir: Path) -> dict[str, "Json"]:
    """The file's content; paths in it are relative to `base`."""
    numbers = range(1, nodes + 1)
    cluster = NodesFile(cluster="paceline", nodes={n: f"{_name(n)}:{COMPOSE_PORT}" for n in numbers})
    keys = Path(os.path.relpath(tls_dir, base))
    services: dict[str, Json] = {_name(n): _service(n, cluster, image, keys) for n in numbers}
    volumes: dict[str, Json] = {f"data-{n}": {} for n in numbers}
    return {"name": cluster.cluster, "services": services, "volumes": volumes}


def _service(number: int, cluster: NodesFile, image: str, keys: Path) -> "Json":
    start = start_command(number, cluster, DATA, ["--tls-dir", PKI], listen=f"0.0.0.0:{COMPOSE_PORT}")
    status = ["coordinator", "status", "--only", "--at", cluster.nodes[number], "--tls-dir", PKI]
    mounts: list[Json] = [{"type": "volume", "source": f"data-{number}", "target": DATA}]
    for name in ("ca.crt", f"{_name(number)}.crt", f"{_name(number)}.key"):
        mounts.append(_mount(keys / name, f"{PKI}/{name}"))
    health: dict[str, Json] = {
        "test": ["CMD", "paceline", *status, "--tls-name", _name(number)],
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": "10s",
    }
    return {
        "image": image,
        "hostname": _name(number),
        "entrypoint": ["paceline"],
        "command": list(start),
        "restart": "unless-stopped",
        "stop_grace_period": "15s",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "volumes": mounts,
        "healthcheck": health,
    }


def _mount(source: Path, target: str) -> "Json":
    text = str(source) if source.is_absolute() else f"./{source}"
    bind: dict[str, Json] = {"create_host_path": False}  # a missing key is an error, not an empty folder
    return {"type": "bind", "source": text, "target": target, "read_only": True, "bind": bind}


def _name(number: int) -> str:
    return f"node-{number}"
