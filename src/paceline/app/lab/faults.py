"""Which faults does a soak strike with, and how? Drawn by a seed; each returns once the run is whole again.

What is struck depends on the seed alone, never on how fast the machine is: all
dice of a fault are thrown before anything is looked at.
"""

import random
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from paceline.app.lab.nodes import Nodes
from paceline.app.lab.served import backup, is_guarded, primary, updates
from paceline.app.lab.training import Training, events_of, newest_full
from paceline.events.read import History
from paceline.plan.catalog import server_names

WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Dice:
    """All that is drawn for one fault."""

    wait_s: float  # before it strikes
    order: tuple[int, ...]  # of the workers: the first ones are the victims
    lasts_s: float  # a freeze or a cut; sometimes longer than a lease, sometimes not
    which: float  # of several coordinator nodes, from 0 to 1


def throw(dice: random.Random, workers: int) -> Dice:
    wait_s = dice.uniform(0.05, 0.25)
    order = tuple(dice.sample(range(workers), workers))
    return Dice(wait_s, order, dice.uniform(0.1, 4.0), dice.random())


@dataclass(slots=True)
class Striker:
    run: Training
    cluster: Nodes
    workers: int
    by_name: dict[str, Callable[[Dice], str]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {
            "kill-worker": lambda dice: self._kill(dice.order[:1]),
            "kill-two": lambda dice: self._kill(dice.order[:2]),
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

    def strike(self, fault: str, dice: Dice) -> str:
        """Who was struck, in words. The run is whole before, and again when this returns."""
        self.run.wait(dice.wait_s)
        who = self.by_name[fault](dice)
        self.until_whole()
        return who

    def until_whole(self) -> None:
        """Until all train together in the newest generation, or behind two servers, and get further."""
        self.run.until(self._is_whole, "all train together", WITHIN_S)
        done = self._done(self.run.live())
        self.run.until(lambda history: self._done(history) > done, "the run goes on", WITHIN_S)

    def _done(self, history: History) -> int:
        plan = self.run.plan
        return updates(history) if server_names(plan) else furthest(history, plan.num_workers)

    def _is_whole(self, history: History) -> bool:
        if server_names(self.run.plan):
            return is_guarded(history)
        entered = [int(str(e.fields["number"])) for e in events_of(history, "generation_entered")]
        return bool(entered) and newest_full(history, self.workers) == max(entered)

    def _kill(self, victims: Collection[int]) -> str:
        return self._kill_names([f"worker-{victim}" for victim in victims])

    def _kill_primary_and_worker(self, dice: Dice) -> str:
        return self._kill_names([primary(self.run.live()), f"worker-{dice.order[0]}"])

    def _kill_names(self, names: Sequence[str]) -> str:
        before = self.run.pids()
        for name in names:
            self.run.signal(name, signal.SIGKILL)
        self.run.until(
            lambda _: all(self.run.pids()[name] != before[name] for name in names),
            f"{' and '.join(names)} are replaced",
            WITHIN_S,
        )
        return " and ".join(names)

    def _freeze(self, dice: Dice) -> str:
        victim = f"worker-{dice.order[0]}"
        self.run.signal(victim, signal.SIGSTOP)
        self.run.wait(dice.lasts_s)
        self.run.signal(victim, signal.SIGCONT)
        return f"{victim} for {dice.lasts_s:.1f} s"

    def _kill_leader(self, dice: Dice) -> str:
        return self._kill_node(self.cluster.leader())

    def _kill_follower(self, dice: Dice) -> str:
        others = self.cluster.others(self.cluster.leader())
        return self._kill_node(others[int(dice.which * len(others))])

    def _kill_both(self, dice: Dice) -> str:
        node = self.cluster.leader()
        self._until_all_nodes()
        self.cluster.kill(node)
        who = self._kill(dice.order[:1])
        self.cluster.start(node)
        return f"node {node} and {who}"

    def _kill_node(self, node: int) -> str:
        self._until_all_nodes()  # two of three at once would be another fault
        self.cluster.kill(node)
        self.cluster.leader()
        self.cluster.start(node)
        return f"node {node}"

    def _cut_worker(self, dice: Dice) -> str:
        victim = f"worker-{dice.order[0]}"
        return self._cut([self.run.pids()[victim]], list(self.cluster.addresses), victim, dice)

    def _cut_leader(self, dice: Dice) -> str:
        """From the other nodes and from all workers; the others elect another one."""
        self._until_all_nodes()
        node = self.cluster.leader()
        others, lines = self.cluster.others(node), self.cluster.lines
        assert lines is not None, "there are doors"
        lines.cut([self.cluster.pid(node)], others)
        callers = [*(self.cluster.pid(other) for other in others), *self.run.pids().values()]
        return self._cut(callers, [node], f"node {node}", dice)

    def _cut(self, pids: list[int], nodes: list[int], who: str, dice: Dice) -> str:
        lines = self.cluster.lines
        assert lines is not None, "there are doors"
        lines.cut(pids, nodes)
        self.run.wait(dice.lasts_s)
        lines.mend()
        return f"{who} for {dice.lasts_s:.1f} s"

    def _until_all_nodes(self) -> None:
        nodes = self.cluster.addresses
        self.run.until(lambda _: all(map(self.cluster.is_up_to_date, nodes)), "all nodes take part", WITHIN_S)


def furthest(history: History, shards: int) -> int:
    """The last step that anybody committed and has written down."""
    done = (row.position // shards for rows in history.steps.values() for row in rows if row.synced)
    return max(done, default=-1)
