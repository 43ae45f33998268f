"""Soak test on hosts: random faults of processes, hosts and links from one seed; nothing may be lost.

Every host has a coordinator node and an agent, so a host that is struck may have the leader, a worker or a
server. The faults depend on the seed alone: all random numbers of a fault are drawn before the run is
observed. Each fault is undone, and the next one strikes when all participants train together again.
"""

import random
import shutil
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from paceline.core.errors import ConfigError, Problem
from paceline.events.read import History, PlainEvent
from paceline.faults.hosts.network import Impairment
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, exactly, not_judged
from paceline.faults.scenarios.host_fleet import FleetRun, HostFleet, host_fleet
from paceline.faults.scenarios.measurements import (
    applied_ns,
    backup,
    is_guarded,
    primary,
    run_proofs,
    updates,
    verify_proofs,
)
from paceline.faults.scenarios.training import DEFAULT_ROUND_STEPS, commits_ns, events_of, newest_full
from paceline.plan.catalog import MODES, Channel
from paceline.plan.schedule import ROUND_MODES

MAX_LASTS_S = 8.0  # longer than the leases of a worker and of a host, and often shorter
FLAP_S = 0.5
LOST = Impairment(loss_share=0.05)
SERVER_SLOTS = 2  # of each host in modes with servers: also without one host there is a slot for everyone
STOPPED = 130  # the exit code of a command that Ctrl-C has ended
SHAPE = ("--task", "digits", "--steps", "1000000", "--pace", "20ms", "--checkpoint-every", "50")

FAULTS = (
    *("kill-worker", "kill-worker", "freeze-worker", "kill-agent", "lose-host"),
    *("cut-host", "mute-host", "deafen-host", "flap-link", "bad-links"),
)
SERVER_FAULTS = (*FAULTS, "kill-primary", "kill-backup")


@dataclass(frozen=True, slots=True)
class HostFaultDraw:
    """The random numbers of one fault."""

    fault: str
    wait_s: float  # before the fault
    host: int
    worker: int
    lasts_s: float


def draw_host_fault(rng: random.Random, faults: Sequence[str], hosts: int, workers: int) -> HostFaultDraw:
    return HostFaultDraw(
        fault=rng.choice(faults),
        wait_s=rng.uniform(0.05, 0.5),
        host=rng.randrange(hosts) + 1,
        worker=rng.randrange(workers),
        lasts_s=rng.uniform(0.1, MAX_LASTS_S),
    )


@dataclass(slots=True)
class HostFaultInjector:
    fleet: HostFleet
    run: FleetRun
    workers: int
    has_servers: bool
    by_name: dict[str, Callable[[HostFaultDraw], str]] = field(init=False)

    def __post_init__(self) -> None:
        network = self.fleet.nodes.network
        self.by_name = {
            "kill-worker": lambda draw: self._kill(f"worker-{draw.worker}"),
            "kill-primary": lambda _: self._kill(primary(self.run.log.read())),
            "kill-backup": lambda _: self._kill(backup(self.run.log.read())),
            "freeze-worker": self._freeze,
            "kill-agent": self._kill_agent,
            "lose-host": self._lose,
            "cut-host": lambda draw: self._cut(draw, network.isolate),
            "mute-host": lambda draw: self._cut(draw, network.mute),
            "deafen-host": lambda draw: self._cut(draw, network.deafen),
            "flap-link": self._flap,
            "bad-links": self._impair,
        }

    def strike(self, draw: HostFaultDraw) -> str:
        """Inject the fault, undo it, and wait for recovery; returns a description of the victims."""
        self.run.wait(draw.wait_s)
        victim = self.by_name[draw.fault](draw)
        self.until_whole()
        return victim

    def until_whole(self) -> None:
        """Wait until all train together, make progress, and all coordinator nodes follow one leader."""
        self.run.until(self._is_whole, "all train together")
        done = self._done(self.run.log.read())
        self.run.until(lambda history: self._done(history) > done, "the run continues")
        self.run.until(lambda _: self.fleet.nodes.agree(), "all nodes follow one leader")

    def _is_whole(self, history: History) -> bool:
        if self.has_servers:
            return is_guarded(history)
        entered = [int(str(event.fields["number"])) for event in events_of(history, "generation_entered")]
        return bool(entered) and newest_full(history, self.workers) == max(entered)

    def _done(self, history: History) -> int:
        """When something was committed last, or the number of updates: it grows with every step."""
        if self.has_servers:
            return updates(history)
        return max((at for rank in history.steps for at in commits_ns(history, rank)), default=0)

    def _kill(self, name: str) -> str:
        newest = self._newest_start(name)
        self._signal(newest, signal.SIGKILL)
        self._until_replaced([newest])
        return f"{name} on {newest.fields['node']}"

    def _freeze(self, draw: HostFaultDraw) -> str:
        newest = self._newest_start(f"worker-{draw.worker}")
        self._signal(newest, signal.SIGSTOP)
        self.run.wait(draw.lasts_s)
        self._signal(newest, signal.SIGCONT)
        return f"{newest.who} for {draw.lasts_s:.1f} s"

    def _kill_agent(self, draw: HostFaultDraw) -> str:
        there = self._on_host(draw.host)
        self.fleet.agents[draw.host].kill()
        self.fleet.start_agent(draw.host)
        self._until_replaced(there)
        return f"host {draw.host}"

    def _lose(self, draw: HostFaultDraw) -> str:
        there = self._on_host(draw.host)
        self.fleet.nodes.lose(draw.host)
        self.run.wait(draw.lasts_s)
        self.fleet.restart(draw.host)
        self._until_replaced(there)
        return f"host {draw.host} for {draw.lasts_s:.1f} s"

    def _cut(self, draw: HostFaultDraw, cut: Callable[[int], None]) -> str:
        cut(draw.host)
        self.run.wait(draw.lasts_s)
        self.fleet.nodes.network.heal()
        return f"host {draw.host} for {draw.lasts_s:.1f} s"

    def _flap(self, draw: HostFaultDraw) -> str:
        self.fleet.nodes.network.link_down(draw.host)
        self.run.wait(FLAP_S)
        self.fleet.nodes.network.link_up(draw.host)
        return f"host {draw.host}"

    def _impair(self, draw: HostFaultDraw) -> str:
        network = self.fleet.nodes.network
        for impairment in (LOST, Impairment()):
            for host in network:
                network.impair(host.number, impairment)
            if impairment == LOST:
                self.run.wait(draw.lasts_s)
        return f"{LOST.loss_share:.0%} of all packets are lost for {draw.lasts_s:.1f} s"

    def _newest_start(self, name: str) -> PlainEvent:
        return [event for event in events_of(self.run.log.read(), "worker_started") if event.who == name][-1]

    def _on_host(self, number: int) -> list[PlainEvent]:
        """The newest starts of the participants whose newest process is on this host."""
        newest = {event.who: event for event in events_of(self.run.log.read(), "worker_started")}
        return [event for event in newest.values() if event.fields["node"] == f"host-{number}"]

    def _until_replaced(self, starts: Collection[PlainEvent]) -> None:
        self.run.until(
            lambda _: all(self._newest_start(event.who) != event for event in starts),
            f"{', '.join(event.who for event in starts)} are replaced",
        )

    def _signal(self, start: PlainEvent, number: signal.Signals) -> None:
        host = int(str(start.fields["node"]).removeprefix("host-"))
        with suppress(ProcessLookupError):  # the fault before has ended it, and it is replaced
            self.fleet.nodes.network.host(host).signal(int(str(start.fields["pid"])), number)


def check_host_soak(mode: str) -> None:
    """ConfigError for a mode that has no elastic runs on hosts."""
    elastic = [name for name, row in MODES.items() if row.is_elastic]
    if mode not in elastic:
        hint = f"use --mode {' or '.join(elastic)}"
        raise ConfigError([Problem(f"mode {mode} is not soaked on hosts", hint, "--mode")])


def host_soak(
    run_dir: Path, faults: int, seed: int, mode: str, hosts: int, reporter: ScenarioReporter
) -> list[Expectation]:
    rng = random.Random(seed)
    has_servers = MODES[mode].channel is Channel.STORE
    workers = hosts - 1 if has_servers else hosts
    slots = SERVER_SLOTS if has_servers else 1
    folder = run_dir.with_name(f"{run_dir.name}-hosts")
    with host_fleet(folder, hosts, slots=slots) as fleet:
        run = fleet.start_training(*SHAPE, *_mode_flags(mode), "--num-workers", str(workers))
        injector = HostFaultInjector(fleet, run, workers, has_servers)
        injector.until_whole()
        for number in range(faults):
            drawn = draw_host_fault(rng, SERVER_FAULTS if has_servers else FAULTS, hosts, workers)
            struck_ns = run.now_ns()
            victim = injector.strike(drawn)
            took_s = (run.now_ns() - struck_ns) / 1e9
            reporter(f"fault {number + 1} of {faults}: {drawn.fault} {victim}, whole again; {took_s:.1f} s")
        history = run.stop()
        code = run.command.process.returncode
        shutil.copytree(fleet.run_dir, run_dir)
    prove = verify_proofs if MODES[mode].channel is Channel.TORCH else run_proofs
    return [
        not_judged("hosts that share only their network", str(hosts)),
        not_judged("longest time without a commit", f"{_longest_pause_s(history):.1f} s"),
        exactly("the command ends in order, with exit code", code, STOPPED),
        *prove(run_dir, reporter),
    ]


def _mode_flags(mode: str) -> list[str]:
    flags = ["--mode", mode, "--max-replacements", "3000"]
    if mode in (*ROUND_MODES, "fedavg", "adaptive"):
        flags += ["--sync-every", str(DEFAULT_ROUND_STEPS)]
    if mode == "backup":
        flags += ["--backup-workers", "1"]
    return flags


def _longest_pause_s(history: History) -> float:
    committed = [at for rank in history.steps for at in commits_ns(history, rank)]
    ends = sorted(applied_ns(history) or committed)
    return max(((later - sooner) / 1e9 for sooner, later in pairwise(ends)), default=float("inf"))
