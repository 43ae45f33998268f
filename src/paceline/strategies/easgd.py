"""Elastic averaging SGD: every worker trains its own copy, pulled towards a centre on the server.

After `sync_every` local steps a worker sends its state x to the server, which
holds the centre x̃ and computes, atomically: e = alpha·(x - x̃); x ← x - e;
x̃ ← x̃ + e (Zhang 2015, arXiv 1412.6651). alpha is `elasticity` divided by the
number of workers. No worker waits for another; work is assigned in blocks of
`sync_every` shares, first come, first served, so fast workers do more blocks.
Buffers are part of the state. Each worker keeps its own optimizer with its
momentum. The trained model is the centre.
"""

from collections.abc import Set as AbstractSet

from paceline.core.ids import Clock, Step
from paceline.plan.plan import Plan
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.strategies.push_pull import PushPull
from paceline.strategies.server_updates import ElasticExchange, Exchange
from paceline.sync.admission import Bounded, Rule
from paceline.sync.assignment import Assignment, FirstCome, WorkUnit
from paceline.sync.averaging import mean_weight


class Easgd(PushPull):
    def __init__(self, plan: Plan, links: Links) -> None:
        super().__init__(plan, links)
        self._elastic = ElasticExchange.of(plan)
        self._weights = [mean_weight(rank, plan.batch_sizes) for rank in range(plan.num_workers)]
        self._block: list[WorkUnit] = []  # shares left before the next exchange

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        own_gradients = replica.arena.gradients
        super().prepare(replica, clock)
        replica.arena.place_gradients(own_gradients)  # the state is pushed; gradients stay local

    def begin_step(self, step: Step) -> Begun | None:
        if self._block:
            return Begun(share=self._block[0])
        start = super().begin_step(step)
        if start is not None:
            shares = self._elastic.shares(start.share.position(self._num_workers))
            self._block = [WorkUnit.at(position, self._num_workers) for position in shares]
        return start

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        # With unequal batches a gradient counts by its batch, as in every mode.
        weight = self._weights[self._block.pop(0).rank]
        if weight != 1.0:
            self._arena.gradient_part.mul_(weight)
        apply_ns = self._replica.update()
        if self._block:
            return Outcome(apply_ns=apply_ns, version=self._version)
        self._slots.gradients.copy_(self._arena.state)
        traffic = self._store.push(wants_stop=wants_stop)
        return Outcome(traffic=traffic, apply_ns=apply_ns, version=self._version)

    @classmethod
    def rule(cls, plan: Plan) -> Rule:
        return Bounded(None)

    @classmethod
    def assignment(cls, plan: Plan, done: AbstractSet[int]) -> Assignment:
        return FirstCome(plan.total_gradients, done, every=plan.strategy.sync_every)

    @classmethod
    def exchange(cls, plan: Plan) -> Exchange | None:
        return ElasticExchange.of(plan)
