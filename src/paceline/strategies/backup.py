"""Backup workers: of N gradients the first K = N - b make the update, and late workers abandon theirs.

An update takes as long as the K-th fastest worker, and nothing is stale: all K gradients were computed
on the current version (Chen 2016, arXiv 1604.00981). The share of an abandoned step is returned and done
by the next free worker. So every sample is applied exactly once, also a slow worker's; only the worker
that computes it changes. With b = 0 no worker is late, and the result equals ps bit by bit.
"""

from collections.abc import Set as AbstractSet

from paceline.plan.plan import Plan
from paceline.strategies.port import Links
from paceline.strategies.push_pull import PushPull
from paceline.sync.admission import FirstArrivals, Rule
from paceline.sync.assignment import Assignment, FirstCome
from paceline.transport.ports import Revocable


class Backup(PushPull):
    def __init__(self, plan: Plan, links: Links) -> None:
        super().__init__(plan, links)
        assert isinstance(links.store, Revocable), "a late worker must be notified that it is late"
        self._signal: Revocable = links.store

    def is_obsolete(self) -> bool:
        return self._signal.is_obsolete()

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return self._signal.wait_unless_obsolete(duration_s)

    def abandon_step(self) -> None:
        self._signal.again()

    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return FirstArrivals(plan.gradients_per_update)

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        return FirstCome(plan.total_gradients, done)
