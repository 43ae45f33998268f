"""A whole cluster from one seed: nodes, disks, a network that loses things, clients, and faults.

One event at a time is drawn: a message arrives, a node's clock ticks, a client
asks, something breaks or heals.
"""

import random
from collections.abc import Callable
from itertools import accumulate

from tests.raft_simulation.clients import Clients
from tests.raft_simulation.faults import Faults
from tests.raft_simulation.invariants import Invariants, ViolationError
from tests.raft_simulation.linearizability import is_linearizable
from tests.raft_simulation.network import Network
from tests.raft_simulation.node import Node, Surroundings, timing
from tests.raft_simulation.weather import draw

from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.types import Membership, NodeId, Term
from paceline.coordinator.raft.validate import why_impossible, why_malformed

SYNC, DELIVER = 0.05, 0.63  # of all events; what is left are ticks
BACKLOG = 3  # messages for each node


class World:
    def __init__(self, seed: int, *, make: Callable[..., Raft] = Raft, climate: str | None = None) -> None:
        self.rng = rng = random.Random(seed)
        weather = draw(rng, climate)
        self.network, self.checks = Network(rng, weather), Invariants()
        first = Membership(frozenset(NodeId(n) for n in range(1, weather.nodes + 1)))
        self.around = Surroundings(rng, weather, self.network, self.checks, first, make)
        spare = 2 if weather.change else 0
        self.nodes = {NodeId(n): Node(NodeId(n), self.around) for n in range(1, weather.nodes + spare + 1)}
        self.faults = Faults(self.around, self.nodes)
        self.clients = Clients(rng)
        self._plan()
        for node in self.nodes.values():
            node.start()

    @property
    def now(self) -> int:
        return self.around.now

    def run(self, events: int) -> None:
        for _ in range(events):
            self.event()

    def event(self) -> None:
        self.around.now += 1
        self.network.wake(self.now)
        self.faults.wake()
        drawn = self.rng.random()
        for limit, act in self._acts:
            if drawn < limit:
                act()
                return
        if len(self.network.in_flight) > BACKLOG * len(self.nodes):
            self._deliver()  # a network that only ever fell behind would be no network
        else:
            self._tick()

    def _plan(self) -> None:
        weather = self.around.weather
        shares: list[tuple[float, Callable[[], None]]] = [
            (weather.crash, self.faults.crash_or_restart),
            (weather.partition, self.faults.cut_or_heal),
            (weather.change, self.faults.change_something),
            (weather.asks, self._ask),
            (SYNC, self._sync_one),
            (DELIVER, self._deliver),
        ]
        limits = accumulate(share for share, _ in shares)
        self._acts = [(limit, act) for limit, (_, act) in zip(limits, shares, strict=True)]

    def _tick(self) -> None:
        node = self.nodes[self.rng.choice(list(self.nodes))]
        if node.raft is not None and self.rng.random() < node.pace * node.slowness:
            before = node.raft.term
            node.raft.tick()
            self._check_alone(node, before)
            node.carry_out()

    def _check_alone(self, node: Node, before: Term) -> None:
        """A node that receives nothing neither raises its term nor leads for long (9.6, 6.2)."""
        raft = node.raft_up
        others = raft.membership.voters - {node.id}
        if not others or not all((other, node.id) in self.network.cut for other in others):
            node.ticks_alone = 0
            return
        node.ticks_alone += 1
        patience = 4 * raft.timing.election
        if node.ticks_alone > patience and raft.term > before:
            raise ViolationError(f"node {node.id} receives nothing and raised its term to {raft.term}")
        if node.ticks_alone > patience and raft.is_leader:
            raise ViolationError(f"node {node.id} receives nothing and still leads")

    def _sync_one(self) -> None:
        slow = [node for node in self.nodes.values() if node.syncing]
        if slow:
            self.rng.choice(slow).finish_syncing()

    def _deliver(self) -> None:
        if not self.network.in_flight:
            self._tick()
            return
        message = self.network.take()
        if message is None:
            return
        node = self.nodes[message.to]
        if node.raft is not None:
            node.ticks_alone = 0
            if (why := why_malformed(message) or why_impossible(node.raft, message)) is not None:
                raise ViolationError(f"node {message.sender} said what no node should say: {why}")
            node.raft.step(message)
            node.carry_out()

    def _ask(self) -> None:
        leaders = self.around.leaders()
        if leaders:
            node = self.nodes[self.rng.choice(leaders).me]
            self.clients.ask(node, self.now, reads=self.around.weather.reads)
            node.carry_out()

    # A fine day.

    def heal(self, events: int = 3000) -> None:
        """Everything works again: the cluster must come to one mind and answer."""
        self.around.weather = self.network.weather = self.around.weather.cleared()
        self.network.clear()
        self.faults.clear()
        self._plan()
        for node in self.nodes.values():
            if node.raft is None:
                node.start()
            node.pace = node.slowness = 1.0
            node.raft_up.timing = timing(self.around.weather)
            node.finish_syncing()
        for _ in range(events):
            self.event()
            if self._has_settled():
                return
        raise ViolationError("the cluster did not come to one mind after everything was healed")

    def _has_settled(self) -> bool:
        leader = self.faults.leader()
        if leader is None:
            return False
        log, nodes = leader.raft_up.log, leader.raft_up.membership.nodes
        if log.commit < self.checks.newest_acknowledged or log.term(log.commit) != leader.raft_up.term:
            return False
        members = [self.nodes[n] for n in nodes]
        return all(m.applied >= log.commit and m.raft_up.term == leader.raft_up.term for m in members)

    def check_end(self) -> None:
        """Nothing acknowledged is lost, all nodes are in the same state, and the history is linearizable."""
        leader = self.faults.leader()
        assert leader is not None, "healed before"
        self.checks.check_nothing_lost(leader.raft_up)
        for node in self.nodes.values():
            if node.state != self.checks.replayed(node.applied):
                raise ViolationError(f"node {node.id} is not in the state that the log leads to")
        if not is_linearizable(self.clients.history):
            raise ViolationError("the clients' history is not linearizable")

    def check_return(self) -> None:
        """A node that was cut off and comes back does not depose a leader that is well (9.6)."""
        rounds = 3 * self.around.weather.election
        leader = self._steady_leader(rounds)
        term, members = leader.raft_up.term, leader.raft_up.membership
        lost = self.rng.choice(sorted(set(self.nodes) - {leader.id}))
        if len(members.voters - {lost}) < members.quorum:
            return  # no node can lead without it
        self.network.isolate([lost], sorted(set(self.nodes) - {lost}), hears=False, speaks=False)
        self._pass_quietly(rounds)
        self.network.heal()
        self._pass_quietly(rounds)
        if not (leader.raft_up.is_leader and leader.raft_up.term == term):
            raise ViolationError(f"node {lost} came back and deposed leader {leader.id} of term {term}")

    def _steady_leader(self, rounds: int) -> Node:
        """One that has led for so many quiet rounds."""
        for _ in range(10):
            before = self.faults.leader()
            self._pass_quietly(rounds)
            if before is not None and before is self.faults.leader():
                return before
        raise ViolationError("no node leads for long, though nothing is wrong")

    def _pass_quietly(self, rounds: int) -> None:
        """All clocks tick as one, and every message arrives in between."""
        for _ in range(rounds):
            self.around.now += 1
            for node in self.nodes.values():
                node.raft_up.tick()
                node.carry_out()
            while self.network.in_flight:
                message = self.network.take()
                if message is not None:
                    self.nodes[message.to].raft_up.step(message)
                    self.nodes[message.to].carry_out()
