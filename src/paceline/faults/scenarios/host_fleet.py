"""Hosts that train: a coordinator node and an agent on each, the command on one of its own, nothing shared.

Host n has the coordinator's node n and an agent. `paceline train --launcher agents` runs on the
host after those, whose disk has the run folder.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.coordinator.client.endpoints import open_coordinators
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import TrainingError
from paceline.events.follow import LogFollower
from paceline.events.read import History, read_history
from paceline.faults.hosts.host import HostProcess
from paceline.faults.scenarios.host_nodes import HostNodes, copy_certificate, host_nodes
from paceline.faults.scenarios.training import LIVE_ROWS, MAX_WAIT_S, POLL_S, newest_full
from paceline.launchers.agents.agent import list_agents

PACELINE = (sys.executable, "-m", "paceline")
STOP_S = 180.0
ASK_S = 10.0


@dataclass(slots=True)
class HostFleet:
    nodes: HostNodes
    command_host: int
    slots: int = 1  # of each agent
    agents: dict[int, HostProcess] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        return self.nodes.network.host(self.command_host).folder / "run"

    @property
    def train_flags(self) -> list[str]:
        """For a command on its host, besides what is trained."""
        addresses = ",".join(self.nodes.addresses.values())
        access = ["--coordinator", addresses, "--tls-dir", "pki"]
        return ["--elastic", "--launcher", "agents", "--run-dir", "run", *access]

    def log_of(self, name: str) -> Path:
        return self.nodes.folder / f"{name}.log"

    def start_agent(self, number: int) -> None:
        host = self.nodes.network.host(number)
        copy_certificate(self.nodes.folder / "pki", host, "worker")
        joined = ["--join", ",".join(self.nodes.addresses.values()), "--tls-dir", "pki"]
        command = [*PACELINE, "agent", *joined, "--tls-name", "worker", "--slots", str(self.slots)]
        self.agents[number] = host.start(command, log=self.log_of(f"agent-{number}"))

    def joined(self) -> list[str]:
        """The names of the agents that have joined."""
        endpoints = open_coordinators(self.nodes.coordinators)
        return [row.name for row in asyncio.run(list_agents(endpoints, patience_s=ASK_S))]

    def restart(self, number: int) -> None:
        """A lost host comes back with its node and its agent."""
        self.nodes.restart(number)
        self.start_agent(number)

    def start_training(self, *args: str, env: Mapping[str, str] | None = None) -> "FleetRun":
        """Start `paceline train` with these options on the command's host."""
        host = self.nodes.network.host(self.command_host)
        command = host.start(
            [*PACELINE, "train", *args, *self.train_flags], log=self.log_of("train"), env=env
        )
        return FleetRun(fleet=self, command=command, run_dir=self.run_dir, said=self.log_of("train"))


@dataclass(slots=True, kw_only=True)
class HostRun:
    """A run that is observed through its event log, from outside of the hosts."""

    command: HostProcess
    run_dir: Path
    said: Path  # the command's output
    log: LogFollower = field(init=False)
    _clock: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.log = LogFollower(self.run_dir / "events.jsonl", rows=LIVE_ROWS)

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def wait(self, duration_s: float) -> None:
        self._clock.sleep(duration_s)

    def output(self) -> str:
        return self.said.read_text(errors="replace")

    def until(self, is_true: Callable[[History], bool], description: str) -> None:
        deadline_s = monotonic_s() + MAX_WAIT_S
        while not is_true(self.log.read()):
            if self.command.has_ended():
                raise TrainingError(
                    f"the run ended before {description}: {self.output()[-2000:]}",
                    f"see {self.run_dir}",
                )
            if monotonic_s() > deadline_s:
                raise TrainingError(
                    f"waited {MAX_WAIT_S:g} s in vain for: {description}", f"see {self.run_dir}"
                )
            self.wait(POLL_S)

    def until_in(self, workers: int, after: int) -> int:
        """Wait until so many workers train in one generation after `after`; returns its number."""
        self.until(lambda history: newest_full(history, workers) > after, f"{workers} workers train together")
        return newest_full(self.log.read(), workers)

    def stop(self) -> History:
        """In good order, as by Ctrl-C; returns its history."""
        self.command.signal(signal.SIGINT)
        self.command.wait(STOP_S)
        return read_history(self.run_dir / "events.jsonl")


@dataclass(slots=True, kw_only=True)
class FleetRun(HostRun):
    fleet: HostFleet


@contextmanager
def host_fleet(folder: Path, count: int, *, more_hosts: int = 0, slots: int = 1) -> Iterator[HostFleet]:
    """`count` hosts with a node and an agent each, one for the command, and hosts with nothing on them."""
    with host_nodes(folder, count, more_hosts=1 + more_hosts) as nodes:
        fleet = HostFleet(nodes, count + 1, slots)
        for name in ("admin", "worker"):
            copy_certificate(folder / "pki", nodes.network.host(fleet.command_host), name)
        for number in range(1, count + 1):
            fleet.start_agent(number)
        deadline_s = monotonic_s() + MAX_WAIT_S
        while len(fleet.joined()) < count:
            if monotonic_s() > deadline_s:
                raise TrainingError(f"not all of {count} agents have joined", f"see the logs in {folder}")
        yield fleet
