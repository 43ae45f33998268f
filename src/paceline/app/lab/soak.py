"""Many random faults, one after another, by a seed: does the run end as if nothing had happened?

The faults and their order follow from the seed. What is measured is the same as
in the single experiments, and that nothing piles up: processes, descriptors and
memory of the surviving command.
"""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from paceline.app.lab.expect import Expectation, at_most, exactly
from paceline.app.lab.nodes import Nodes, nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.training import Training, commits_ns, training, usual_plan
from paceline.events.read import History

WORKERS, NODES = 4, 3
FAULTS = ("kill-worker", "kill-worker", "kill-two", "freeze-worker", "kill-leader", "kill-follower")
STALL_S = 10.0  # a frozen worker is noticed after its lease


@dataclass(slots=True)
class _Soak:
    run: Training
    cluster: Nodes
    dice: random.Random
    generation: int = 0
    faults_ns: list[int] = field(default_factory=list)

    def strike(self, fault: str) -> None:
        self.run.wait(self.dice.uniform(0.05, 0.4))
        self.faults_ns.append(self.run.now_ns())
        match fault:
            case "kill-worker":
                self._kill(1)
            case "kill-two":
                self._kill(2)
            case "freeze-worker":
                self._freeze()
            case "kill-leader":
                self._kill_node(self.cluster.leader())
            case _:
                others = [node for node in self.cluster.addresses if node != self.cluster.leader()]
                self._kill_node(self.dice.choice(others))

    def _kill(self, count: int) -> None:
        for victim in self.dice.sample(range(WORKERS), count):
            self.run.signal(f"worker-{victim}", signal.SIGKILL)
        self._until_whole()

    def _freeze(self) -> None:
        victim = f"worker-{self.dice.randrange(WORKERS)}"
        self.run.signal(victim, signal.SIGSTOP)
        self.run.wait(self.dice.uniform(0.1, 4.0))  # sometimes longer than its lease, sometimes not
        self.run.signal(victim, signal.SIGCONT)
        steps = self._furthest()
        self.run.until(lambda history: furthest(history) > steps, "the run goes on")
        self.generation = max(self.generation, self.run.until_in(WORKERS, self.generation - 1))

    def _kill_node(self, node: int) -> None:
        self.cluster.kill(node)
        self.cluster.leader()
        self.cluster.start(node)

    def _until_whole(self) -> None:
        self.generation = self.run.until_in(WORKERS, self.generation)

    def _furthest(self) -> int:
        return furthest(self.run.history())


def furthest(history: History) -> int:
    """The last step that anybody committed and has written down."""
    done = (row.position // WORKERS for rows in history.steps.values() for row in rows if row.synced)
    return max(done, default=-1)


def soak(run_dir: Path, faults: int, seed: int, say: Callable[[str], None]) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000, pace_s=0.02)
    dice = random.Random(seed)
    with nodes(run_dir / "coordinators", NODES) as cluster, training(plan, run_dir, cluster.place) as run:
        struck = _Soak(run, cluster, dice, generation=run.until_in(WORKERS, 0))
        before = _descriptors()
        for number in range(faults):
            fault = dice.choice(FAULTS)
            struck.strike(fault)
            say(f"fault {number + 1} of {faults}: {fault}")
        after = _descriptors()
        history = run.finish(60, early=True)
    return [
        at_most("the longest time without a committed step", _longest_gap_s(history), STALL_S, "s"),
        exactly("open files of the command that pile up", max(0, after - before) // 20, 0),
        *proofs(run_dir, history),
    ]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _longest_gap_s(history: History) -> float:
    commits = sorted(end for rank in history.steps for end in commits_ns(history, rank))
    return max((later - sooner) / 1e9 for sooner, later in pairwise(commits))
