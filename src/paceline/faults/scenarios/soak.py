"""Soak test: many random faults from one seed; checks lost work, goodput and leaks."""

import random
import re
import signal
import statistics
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from paceline.core.errors import ConfigError, Problem
from paceline.events.read import History
from paceline.faults.scenarios.coordinator_nodes import CoordinatorNodes, nodes
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, at_most, exactly, not_judged
from paceline.faults.scenarios.measurements import (
    applied_ns,
    backup,
    is_guarded,
    longest_pause_s,
    primary,
    proofs,
    updates,
)
from paceline.faults.scenarios.training import (
    TrainingRun,
    commits_ns,
    default_plan,
    events_of,
    newest_full,
    training,
)
from paceline.plan.catalog import MODES, Channel, server_names
from paceline.plan.plan import Plan

# The faults depend on the seed alone, not on the speed of the machine: all random numbers of a fault are
# drawn before the run is observed.

RECOVERY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class FaultDraw:
    """The random numbers of one fault."""

    wait_s: float  # before the fault
    order: tuple[int, ...]  # of the workers: the first ones are the victims
    lasts_s: float  # of a freeze or a partition; may be longer or shorter than a lease
    which: float  # selects a coordinator node, from 0 to 1


def draw_fault(rng: random.Random, workers: int) -> FaultDraw:
    wait_s = rng.uniform(0.05, 0.25)
    order = tuple(rng.sample(range(workers), workers))
    return FaultDraw(wait_s, order, rng.uniform(0.1, 4.0), rng.random())


@dataclass(slots=True)
class FaultInjector:
    run: TrainingRun
    cluster: CoordinatorNodes
    workers: int
    by_name: dict[str, Callable[[FaultDraw], str]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {
            "kill-worker": lambda draw: self._kill(draw.order[:1]),
            "kill-two": lambda draw: self._kill(draw.order[:2]),
            "freeze-worker": self._freeze,
            "kill-leader": self._kill_leader,
            "kill-follower": self._kill_follower,
            "kill-leader-and-worker": self._kill_both,
            "cut-worker": self._cut_worker,
            "cut-leader": self._cut_leader,
            "kill-primary": lambda _: self._kill_names([primary(self.run.live())]),
            "kill-backup": lambda _: self._kill_names([backup(self.run.live())]),
            "kill-primary-and-worker": self._kill_primary_and_worker,
        }

    def strike(self, fault: str, draw: FaultDraw) -> str:
        """Inject the fault and wait for recovery; returns a description of the victims."""
        self.run.wait(draw.wait_s)
        victim = self.by_name[fault](draw)
        self.until_whole()
        return victim

    def until_whole(self) -> None:
        """Wait until all train together in the newest generation, or with two servers, and make progress."""
        self.run.until(self._is_whole, "all train together", RECOVERY_TIMEOUT_S)
        done = self._done(self.run.live())
        self.run.until(lambda history: self._done(history) > done, "the run goes on", RECOVERY_TIMEOUT_S)

    def _done(self, history: History) -> int:
        plan = self.run.plan
        return updates(history) if server_names(plan) else last_step(history, plan.num_workers)

    def _is_whole(self, history: History) -> bool:
        if server_names(self.run.plan):
            return is_guarded(history)
        entered = [int(str(e.fields["number"])) for e in events_of(history, "generation_entered")]
        return bool(entered) and newest_full(history, self.workers) == max(entered)

    def _kill(self, victims: Collection[int]) -> str:
        return self._kill_names([f"worker-{victim}" for victim in victims])

    def _kill_primary_and_worker(self, draw: FaultDraw) -> str:
        return self._kill_names([primary(self.run.live()), f"worker-{draw.order[0]}"])

    def _kill_names(self, names: Sequence[str]) -> str:
        before = self.run.pids()
        for name in names:
            self.run.signal(name, signal.SIGKILL)
        self.run.until(
            lambda _: all(self.run.pids()[name] != before[name] for name in names),
            f"{' and '.join(names)} are replaced",
            RECOVERY_TIMEOUT_S,
        )
        return " and ".join(names)

    def _freeze(self, draw: FaultDraw) -> str:
        victim = f"worker-{draw.order[0]}"
        self.run.signal(victim, signal.SIGSTOP)
        self.run.wait(draw.lasts_s)
        self.run.signal(victim, signal.SIGCONT)
        return f"{victim} for {draw.lasts_s:.1f} s"

    def _kill_leader(self, draw: FaultDraw) -> str:
        return self._kill_node(self.cluster.leader())

    def _kill_follower(self, draw: FaultDraw) -> str:
        followers = self.cluster.others(self.cluster.leader())
        return self._kill_node(followers[int(draw.which * len(followers))])

    def _kill_both(self, draw: FaultDraw) -> str:
        node = self.cluster.leader()
        self._until_all_nodes()
        self.cluster.kill(node)
        victim = self._kill(draw.order[:1])
        self.cluster.start(node)
        return f"node {node} and {victim}"

    def _kill_node(self, node: int) -> str:
        self._until_all_nodes()  # two of three at once would be another fault
        self.cluster.kill(node)
        self.cluster.leader()
        self.cluster.start(node)
        return f"node {node}"

    def _cut_worker(self, draw: FaultDraw) -> str:
        victim = f"worker-{draw.order[0]}"
        return self._cut([self.run.pids()[victim]], list(self.cluster.addresses), victim, draw)

    def _cut_leader(self, draw: FaultDraw) -> str:
        """Partition it from the other nodes and all workers; the others elect a new leader."""
        self._until_all_nodes()
        node = self.cluster.leader()
        followers = self.cluster.others(node)
        links = self.cluster.links
        assert links is not None, "the nodes have proxies"
        links.cut([self.cluster.pid(node)], followers)
        callers = [*(self.cluster.pid(other) for other in followers), *self.run.pids().values()]
        return self._cut(callers, [node], f"node {node}", draw)

    def _cut(self, pids: list[int], nodes: list[int], victim: str, draw: FaultDraw) -> str:
        links = self.cluster.links
        assert links is not None, "the nodes have proxies"
        links.cut(pids, nodes)
        self.run.wait(draw.lasts_s)
        links.heal()
        return f"{victim} for {draw.lasts_s:.1f} s"

    def _until_all_nodes(self) -> None:
        nodes = self.cluster.addresses
        self.run.until(
            lambda _: all(map(self.cluster.is_up_to_date, nodes)), "all nodes take part", RECOVERY_TIMEOUT_S
        )


def last_step(history: History, shards: int) -> int:
    """The last recorded step that any worker committed."""
    done = (row.position // shards for rows in history.steps.values() for row in rows if row.synced)
    return max(done, default=-1)


MAX_GROWTH_MB = 24.0  # between the end of the warm-up and the end
MAX_WORLDS = 2  # generations that a worker may have mapped: the one it is in, and the one it leaves


@dataclass(slots=True)
class LeakCheck:
    """Memory, files, threads and shared memory, sampled after every fault."""

    command: list[float] = field(default_factory=list)  # MB
    helper: list[float] = field(default_factory=list)
    workers: dict[int, list[float]] = field(default_factory=dict)  # by process
    files: list[int] = field(default_factory=list)
    helper_files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    worlds: int = 0  # most generations that one worker had mapped at once
    _names_before: frozenset[str] = field(default_factory=lambda: _shared_names())

    def sample(self, helper: int, workers: dict[str, int]) -> None:
        self.command.append(memory_mb("self"))
        self.helper.append(memory_mb(helper))
        self.files.append(_files("self"))
        self.helper_files.append(_files(helper))
        self.threads.append(threading.active_count())
        for pid in workers.values():
            if (used := memory_mb(pid)) > 0:
                self.workers.setdefault(pid, []).append(used)
                self.worlds = max(self.worlds, _worlds(pid))

    def expectations(self) -> list[Expectation]:
        left = sorted(_shared_names() - self._names_before)
        return [
            _flat("memory of the command", self.command),
            _flat("memory of the process that starts the workers", self.helper),
            self._workers_flat(),
            at_most("a worker has few generations mapped at once", self.worlds, MAX_WORLDS, "generations"),
            at_most("open files of the command do not accumulate", _growth(self.files), 2, "files"),
            at_most("open files of its helper do not accumulate", _growth(self.helper_files), 2, "files"),
            at_most("threads of the command do not accumulate", _growth(self.threads), 0, "threads"),
            exactly("no named shared memory is left behind", left, []),
        ]

    def _workers_flat(self) -> Expectation:
        """Growth of workers that survived several faults, between their second and last sample."""
        survivors = [samples for samples in self.workers.values() if len(samples) >= 4]
        if not survivors:
            return not_judged("memory of the workers", "none lived through four faults")
        growth = max(samples[-1] - samples[1] for samples in survivors)
        maximum = max(map(len, survivors))
        promise = (
            f"growth of a worker's memory (of {len(survivors)} that lived through 4 to {maximum} faults)"
        )
        return at_most(promise, growth, MAX_GROWTH_MB, "MB")


def _flat(promise: str, seen: list[float]) -> Expectation:
    """Median after a warm-up of a quarter, against the median at the end."""
    early = _early(seen)
    late = _late(seen)
    return Expectation(
        promise,
        f"grows by at most {MAX_GROWTH_MB:g} MB",
        f"{early:.1f} MB after the first quarter, {late:.1f} MB at the end",
        late - early <= MAX_GROWTH_MB,
    )


def _growth(seen: list[int]) -> float:
    """Growth by the minimum at the end: a leak persists, and momentarily open connections do not count.

    Frozen or partitioned processes reconnect, so connections come and go by the dozen.
    """
    return max(0.0, min(seen[-max(8, len(seen) // 4) :]) - _early(seen))


def _early(seen: "list[int] | list[float]") -> float:
    quarter = len(seen) // 4
    return statistics.median(seen[quarter : quarter + max(1, len(seen) // 8)])


def _late(seen: "list[int] | list[float]") -> float:
    return statistics.median(seen[-max(1, len(seen) // 8) :])


def memory_mb(pid: int | str) -> float:
    """Anonymous memory, its own or inherited by the fork, without files; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(kb) for kb in re.findall(r"^RssAnon:\s+(\d+)", status, re.M)) / 1024


def _files(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _worlds(pid: int) -> int:
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return len(set(re.findall(r"/memfd:paceline-(\d+)", mapped)))


def _shared_names() -> frozenset[str]:
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return frozenset(name for name in names if name.startswith(("paceline", "torch_")))


WORKERS = 4
NODES = 3
PACE_S = 0.02
STALL_S = 10.0  # a frozen worker is noticed after its lease
_OF_WORKERS = ("kill-worker", "kill-worker", "kill-worker", "kill-two", "freeze-worker")
_OF_NODES = ("kill-leader", "kill-follower", "kill-leader-and-worker", "cut-worker", "cut-leader")
# Faults by mode; frequent ones are repeated. A mode that is not listed is refused.
_OF_SERVERS = ("kill-primary", "kill-primary", "kill-backup", "kill-primary-and-worker")
_BY_CHANNEL = {
    Channel.COLLECTIVE: _OF_WORKERS + _OF_NODES,
    Channel.STORE: _OF_WORKERS + _OF_NODES + _OF_SERVERS,
}
FAULTS: Mapping[str, tuple[str, ...]] = {
    mode.name: _BY_CHANNEL[mode.channel]
    for mode in MODES.values()
    if mode.is_elastic and mode.channel in _BY_CHANNEL
}


def soak_plan(mode: str, shards: int | None) -> Plan:
    """Plan that is trained during the faults; ConfigError for a mode that does not survive them yet."""
    if mode not in FAULTS:
        hint = f"use --mode {' or '.join(FAULTS)}"
        raise ConfigError([Problem(f"mode {mode} is not soaked yet", hint, "--mode")])
    if shards is not None and shards < WORKERS:
        message = f"{WORKERS} workers would share {shards} shards, and some would have nothing to do"
        raise ConfigError([Problem(message, f"use --shards {WORKERS} or more", "--shards")])
    return default_plan(workers=WORKERS, steps=1_000_000, pace_s=PACE_S, mode=mode, shards=shards)


def soak(run_dir: Path, faults: int, seed: int, plan: Plan, reporter: ScenarioReporter) -> list[Expectation]:
    rng = random.Random(seed)
    leaks = LeakCheck()
    with (
        nodes(run_dir / "coordinators", NODES, with_proxies=True) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        striker = FaultInjector(run, cluster, WORKERS)
        striker.until_whole()
        began_ns = run.now_ns()
        for number in range(faults):
            fault = rng.choice(FAULTS[plan.mode])
            drawn = draw_fault(rng, WORKERS)
            struck_ns = run.now_ns()
            victim = striker.strike(fault, drawn)
            leaks.sample(run.launcher.pid, run.pids())
            took_s = (run.now_ns() - struck_ns) / 1e9
            reporter(f"fault {number + 1} of {faults}: {fault} {victim}, whole again; {took_s:.1f} s")
        ended_ns = run.now_ns()
        history = run.finish(60, early=True)
    return [
        at_most(
            "steps are committed throughout, longest pause", longest_pause_s(history, began_ns), STALL_S, "s"
        ),
        not_judged(
            "goodput: committed steps at their usual pace, of the whole time; or updates",
            _goodput(history, plan),
        ),
        not_judged("faults a minute", f"{60e9 * faults / (ended_ns - began_ns):.1f}"),
        *leaks.expectations(),
        *proofs(run_dir, history, reporter),
    ]


def _goodput(history: History, plan: Plan) -> str:
    if updates := applied_ns(history):
        return f"{len(updates)} updates, {1e9 * len(updates) / (updates[-1] - updates[0]):.0f} a second"
    by_rank = [commits_ns(history, rank) for rank in history.steps]
    ends = sorted(end for times in by_rank for end in times)
    gaps_s = [(later - sooner) / 1e9 for times in by_rank for sooner, later in pairwise(times)]
    steps = {
        row.position // plan.num_workers for rows in history.steps.values() for row in rows if row.synced
    }
    whole_s = (ends[-1] - ends[0]) / 1e9
    usual_s = statistics.median(gaps_s)
    return f"{100 * len(steps) * usual_s / whole_s:.0f} % ({len(steps)} steps of {1000 * usual_s:.0f} ms)"
