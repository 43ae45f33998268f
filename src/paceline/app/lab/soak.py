"""Many random faults, one after the other, by a seed: is anything lost, in the end and on the way?"""

import random
import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from paceline.app.lab.delays import longest_pause_s
from paceline.app.lab.expect import Expectation, at_most, told
from paceline.app.lab.faults import Striker, throw
from paceline.app.lab.memory import Piles
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.served import applied_ns
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import commits_ns, training, usual_plan
from paceline.errors import ConfigError, Problem
from paceline.events.read import History
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Plan

WORKERS, NODES = 4, 3
PACE_S = 0.02
STALL_S = 10.0  # a frozen worker is noticed after its lease
_OF_WORKERS = ("kill-worker", "kill-worker", "kill-worker", "kill-two", "freeze-worker")
_OF_NODES = ("kill-leader", "kill-follower", "kill-leader-and-worker", "cut-worker", "cut-leader")
# By mode: what can strike it. Frequent ones are there several times. A mode that is not here is refused.
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
    """What is trained while faults strike; ConfigError for a mode that does not survive them yet."""
    if mode not in FAULTS:
        hint = f"use --mode {' or '.join(FAULTS)}"
        raise ConfigError([Problem(f"mode {mode} is not soaked yet", hint, "--mode")])
    if shards is not None and shards < WORKERS:
        what = f"{WORKERS} workers would share {shards} shards, and some would have nothing to do"
        raise ConfigError([Problem(what, f"use --shards {WORKERS} or more", "--shards")])
    return usual_plan(workers=WORKERS, steps=1_000_000, pace_s=PACE_S, mode=mode, shards=shards)


def soak(run_dir: Path, faults: int, seed: int, plan: Plan, say: Telling) -> list[Expectation]:
    dice, piles = random.Random(seed), Piles()
    with (
        nodes(run_dir / "coordinators", NODES, with_doors=True) as cluster,
        training(plan, run_dir, cluster.place) as run,
    ):
        striker = Striker(run, cluster, WORKERS)
        striker.until_whole()
        began_ns = run.now_ns()
        for number in range(faults):
            fault, drawn = dice.choice(FAULTS[plan.mode]), throw(dice, WORKERS)
            struck_ns = run.now_ns()
            who = striker.strike(fault, drawn)
            piles.look(run.launcher.pid, run.pids())
            took_s = (run.now_ns() - struck_ns) / 1e9
            say(f"fault {number + 1} of {faults}: {fault} {who}, whole again; {took_s:.1f} s")
        ended_ns = run.now_ns()
        history = run.finish(60, early=True)
    return [
        at_most(
            "the longest time without a committed step", longest_pause_s(history, began_ns), STALL_S, "s"
        ),
        told(
            "goodput: committed steps at their usual pace, of the whole time; or updates",
            _goodput(history, plan),
        ),
        told("faults a minute", f"{60e9 * faults / (ended_ns - began_ns):.1f}"),
        *piles.expectations(),
        *proofs(run_dir, history, say),
    ]


def _goodput(history: History, plan: Plan) -> str:
    if updates := applied_ns(history):
        return f"{len(updates)} updates, {1e9 * len(updates) / (updates[-1] - updates[0]):.0f} a second"
    by_rank = [commits_ns(history, rank) for rank in history.steps]
    ends = sorted(end for found in by_rank for end in found)
    gaps_s = [(later - sooner) / 1e9 for found in by_rank for sooner, later in pairwise(found)]
    steps = {
        row.position // plan.num_workers for rows in history.steps.values() for row in rows if row.synced
    }
    whole_s, usual_s = (ends[-1] - ends[0]) / 1e9, statistics.median(gaps_s)
    return f"{100 * len(steps) * usual_s / whole_s:.0f} % ({len(steps)} steps of {1000 * usual_s:.0f} ms)"
