"""Systems of benchmarks/hosts.py on hosts that share nothing: they start workers, and report commits."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.hosts_worker import BATCH, LAYERS
from paceline.events.follow import LogFollower
from paceline.faults.hosts.host import MONOTONIC_STEP_S, HostProcess
from paceline.faults.hosts.network import HostNetwork, Impairment, host_network
from paceline.faults.scenarios.host_fleet import FleetRun, HostFleet, host_fleet
from paceline.faults.scenarios.training import commits_ns, events_of

WORKERS = 4
ROOT = Path(__file__).parent.parent
LIGHTHOUSE_PORT, RENDEZVOUS_PORT = 29510, 29500
RAY_PORT, STORE_PORT = 6380, 5000
KEPT_ROWS = 1_000_000
# Ray's workers have a niceness of 15 otherwise, and starve on a busy machine.
RAY_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "PYTHONPATH": str(ROOT),
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class System(Protocol):
    """Workers that train, one on each of the hosts 1 to 4."""

    network: HostNetwork

    def commits(self) -> dict[int, list[int]]:
        """By host: when its worker committed a step, on this machine's monotonic clock, in order."""
        ...

    def kill_worker(self, number: int) -> None: ...

    def replace(self, number: int, *, has_vanished: bool) -> None:
        """Start what is missing on that host, where the system does not do that itself."""
        ...


@dataclass
class Paceline:
    fleet: HostFleet
    run: FleetRun
    network: HostNetwork

    def commits(self) -> dict[int, list[int]]:
        history = self.run.log.read()
        offset_ns = self.fleet.command_host * MONOTONIC_STEP_S * 1_000_000_000  # times are of its clock
        placed: dict[int, int] = {}
        for event in events_of(history, "worker_started"):
            rank = int(event.who.removeprefix("worker-"))
            placed[rank] = int(str(event.fields["node"]).removeprefix("host-"))
        return {
            placed[rank]: [at_ns - offset_ns for at_ns in commits_ns(history, rank)]
            for rank in history.steps
            if rank in placed
        }

    def kill_worker(self, number: int) -> None:
        started = events_of(self.run.log.read(), "worker_started")
        newest = [event for event in started if event.fields["node"] == f"host-{number}"][-1]
        self.network.host(number).signal(int(str(newest.fields["pid"])), signal.SIGKILL)

    def replace(self, number: int, *, has_vanished: bool) -> None:
        if has_vanished:
            self.fleet.restart(number)


@contextmanager
def paceline(folder: Path, mode: str, hidden: int, pace_s: float, link: Impairment) -> Iterator[Paceline]:
    with host_fleet(folder, WORKERS) as fleet:
        shape = [
            "--mode",
            mode,
            "--num-workers",
            str(WORKERS),
            "--batch-size",
            str(BATCH),
            "--steps",
            "100000000",
        ]
        shape += ["--task", "xor", "--task-option", f"hidden={hidden}", "--task-option", f"layers={LAYERS}"]
        shape += ["--lr", "0.01", "--max-replacements", "1000", *(["--pace", f"{pace_s}s"] if pace_s else [])]
        _impair(fleet.nodes.network, link)
        run = fleet.start_training(*shape)
        run.log = LogFollower(run.run_dir / "events.jsonl", rows=KEPT_ROWS)
        try:
            yield Paceline(fleet, run, fleet.nodes.network)
        finally:
            run.command.kill()


@dataclass
class Peer:
    """torch DDP, torchrun, torchft or Ray Train, whose workers write their commits on their hosts."""

    kind: str
    network: HostNetwork
    folder: Path
    hidden: int
    pace_s: float
    _processes: dict[int, HostProcess] = field(default_factory=dict)

    def start(self) -> None:
        if self.kind == "torchft":
            program = shutil.which("torchft_lighthouse", path=str(Path(sys.executable).parent))
            assert program is not None, "torchft is installed"
            flags = ["--bind", f"0.0.0.0:{LIGHTHOUSE_PORT}", "--min_replicas", "1"]
            flags += ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "500"]
            self.network.host(WORKERS + 1).start([program, *flags], log=self.folder / "lighthouse.log")
        if self.kind == "ray":
            self._start_head()
        for number in range(1, WORKERS + 1):
            self.start_worker(number)

    def _start_head(self) -> None:
        """Ray's head, the driver, and the store of checkpoints that Ray Train needs."""
        head = self.network.host(WORKERS + 1)
        store = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(STORE_PORT)]
        head.start(store, log=self.folder / "store.log", env={"PYTHONWARNINGS": "ignore"})
        role = ["--head", f"--port={RAY_PORT}", "--num-cpus=0", "--include-dashboard=false"]
        self._start_raylet(WORKERS + 1, role)
        words = ["-m", "benchmarks.hosts_ray", str(self.hidden), str(self.pace_s), str(WORKERS)]
        places = [f"{head.address}:{RAY_PORT}", f"{head.address}:{STORE_PORT}"]
        log = self.folder / "ray-driver.log"
        head.start([sys.executable, *words, *places], log=log, env=RAY_VARIABLES)

    def _start_raylet(self, number: int, role: list[str]) -> None:
        host = self.network.host(number)
        size = [f"--node-ip-address={host.address}", "--num-gpus=0", "--object-store-memory=100000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *size, "--block"]
        log = self.folder / f"ray-{number}.log"
        self._processes[number] = host.start(command, log=log, env=RAY_VARIABLES)

    def start_worker(self, number: int) -> None:
        host = self.network.host(number)
        if self.kind == "ray":
            head = self.network.host(WORKERS + 1)
            self._start_raylet(number, [f"--address={head.address}:{RAY_PORT}", "--num-cpus=1"])
            return
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(ROOT)}
        # What libuv's server of the store listens on by default is IPv6, which hosts do not have.
        env |= {"USE_LIBUV": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        words = ["-m", "benchmarks.hosts_worker", self.kind, str(self.hidden), str(self.pace_s), host.name]
        if self.kind == "ddp":
            env |= {"MASTER_ADDR": "host-1", "MASTER_PORT": str(RENDEZVOUS_PORT)}
            env |= {"RANK": str(number - 1), "WORLD_SIZE": str(WORKERS)}
        elif self.kind == "torchrun":
            first = f"{self.network.host(1).address}:{RENDEZVOUS_PORT}"
            place = [f"--nnodes={WORKERS - 1}:{WORKERS}", "--nproc-per-node=1", "--max-restarts=100"]
            place += ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}", f"--local-addr={host.address}"]
            words = ["-m", "torch.distributed.run", *place, *words]
        else:
            env["TORCHFT_LIGHTHOUSE"] = f"http://host-{WORKERS + 1}:{LIGHTHOUSE_PORT}"
        log = self.folder / f"{self.kind}-{number}.log"
        self._processes[number] = host.start([sys.executable, *words], log=log, env=env)

    def commits(self) -> dict[int, list[int]]:
        found = {}
        for number in range(1, WORKERS + 1):
            offset_ns = number * MONOTONIC_STEP_S * 1_000_000_000
            lines = [
                line
                for path in self.network.host(number).folder.glob("commits-*.txt")
                for line in path.read_text().split("\n")[:-1]
            ]
            found[number] = sorted(int(line.split()[1]) - offset_ns for line in lines)
        return found

    def kill_worker(self, number: int) -> None:
        if self.kind not in ("torchrun", "ray"):
            self._processes[number].kill()
            return
        newest = max(self.network.host(number).folder.glob("commits-*.txt"), key=os.path.getmtime)
        pid = int(newest.stem.partition("-")[2])  # on its host
        self.network.host(number).signal(pid, signal.SIGKILL)

    def replace(self, number: int, *, has_vanished: bool) -> None:
        if has_vanished:
            self.network.restart(number)
        if has_vanished or self.kind == "torchft":
            self.start_worker(number)


@contextmanager
def peer(folder: Path, kind: str, hidden: int, pace_s: float, link: Impairment) -> Iterator[Peer]:
    with host_network(WORKERS + 1, folder) as network:
        _impair(network, link)
        started = Peer(kind, network, folder, hidden, pace_s)
        started.start()
        yield started


def _impair(network: HostNetwork, link: Impairment) -> None:
    for number in range(1, WORKERS + 1):
        network.impair(number, link)
