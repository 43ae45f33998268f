"""Scenarios with workers on hosts: lose-worker-host and cut-worker-host.

Every host has a coordinator node and an agent, so the leader's host may be the one that is struck. The
survivors go on, and the host's worker trains again once the host is back.
"""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from paceline.events.read import History
from paceline.faults.scenarios.expectations import (
    Expectation,
    ScenarioReporter,
    at_most,
    not_judged,
)
from paceline.faults.scenarios.host_fleet import FleetRun, HostFleet, host_fleet
from paceline.faults.scenarios.hosts import HOSTS, Body
from paceline.faults.scenarios.measurements import run_proofs
from paceline.faults.scenarios.training import commits_ns

LOSE_TIMES = 2
CUT_TIMES = 2  # once in each direction
# A lease of 2 s or an agent that is silent for 5 s; then an election, and the next generation.
MAX_PAUSE_S = 10.0
MAX_BACK_S = 60.0
PACE = "20ms"

Strike = Callable[[HostFleet, FleetRun, int, int], str]


def lose_worker_host(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _lose)


def cut_worker_host(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _cut)


def _lose(fleet: HostFleet, run: FleetRun, number: int, generation: int) -> str:
    struck = number % len(fleet.nodes.addresses) + 1
    others = len(fleet.nodes.addresses) - 1
    fleet.nodes.lose(struck)
    run.until_in(others, generation)
    fleet.restart(struck)
    return f"host {struck} was lost, and is back"


def _cut(fleet: HostFleet, run: FleetRun, number: int, generation: int) -> str:
    struck = number % len(fleet.nodes.addresses) + 1
    others = len(fleet.nodes.addresses) - 1
    is_mute = number % 2 == 0
    if is_mute:
        fleet.nodes.network.mute(struck)
    else:
        fleet.nodes.network.deafen(struck)
    run.until_in(others, generation)
    fleet.nodes.network.heal()
    return f"host {struck} {'sent' if is_mute else 'received'} nothing for a while"


def _scenario(hosts: int, strike: Strike) -> Body:
    def body(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
        back_s: list[float] = []
        with host_fleet(run_dir.with_name(f"{run_dir.name}-hosts"), hosts) as fleet:
            workers = ["--num-workers", str(hosts), "--steps", "1000000", "--pace", PACE]
            run = fleet.start_training("--task", "digits", "--mode", "ssgd", *workers)
            generation = run.until_in(hosts, 0)
            began_ns = _newest_ns(run.log.read())
            for number in range(times):
                struck_ns = run.now_ns()
                happened = strike(fleet, run, number, generation)
                generation = run.until_in(hosts, generation)
                back_s.append((run.now_ns() - struck_ns) / 1e9)
                reporter(f"{number + 1} of {times}: {happened}; all train after {back_s[-1]:.1f} s")
            history = run.stop()
            shutil.copytree(fleet.run_dir, run_dir)
        expectations = [
            not_judged("hosts that share only their network", str(hosts)),
            at_most(
                "the other hosts commit steps, longest pause", _pause_s(history, began_ns), MAX_PAUSE_S, "s"
            ),
            at_most("all workers train together again, maximum", max(back_s), MAX_BACK_S, "s"),
        ]
        return [*reporter.settled(expectations), *run_proofs(run_dir, reporter)]

    return body


def _newest_ns(history: History) -> int:
    """When a step was committed last, by the clock of the command's host; this process has another."""
    return max((at for rank in history.steps for at in commits_ns(history, rank)), default=0)


def _pause_s(history: History, since_ns: int) -> float:
    """The longest time without a step of any worker."""
    ends = sorted(at for rank in history.steps for at in commits_ns(history, rank) if at > since_ns)
    return max(((later - sooner) / 1e9 for sooner, later in pairwise(ends)), default=float("inf"))
