"""Fault injection: nodes and links fail, and above all leaders that were just elected."""

from dataclasses import dataclass, field

from tests.raft_simulation.node import Node, Surroundings

from paceline.coordinator.raft.core import Raft
from paceline.coordinator.raft.types import NO_TERM, Membership, NodeId


@dataclass(slots=True)
class Faults:
    around: Surroundings
    nodes: dict[NodeId, Node]
    _strikes: list[tuple[int, Node]] = field(default_factory=list)
    _returns: list[tuple[int, Node]] = field(default_factory=list)

    def wake(self) -> None:
        """Look for new leaders, and do what was planned for now."""
        now = self.around.now
        if self.around.weather.strike:
            for raft in self.around.leaders():
                self._plan_strike(self.nodes[raft.me])
        for due, node in [strike for strike in self._strikes if strike[0] <= now]:
            self._strikes.remove((due, node))
            is_struck = any(lost is node for _, lost in self._returns)
            if node.raft is not None and node.raft.is_leader and not is_struck:
                self._strike(node)
        for due, node in [result for result in self._returns if result[0] <= now]:
            self._returns.remove((due, node))
            self._bring_back(node)

    def clear(self) -> None:
        """Nothing more is planned."""
        self._strikes.clear()
        self._returns.clear()

    def crash_or_restart(self) -> None:
        rng = self.around.rng
        # A crash hurts most where the disk has not yet said that it is done.
        writing = [node for node in self.nodes.values() if node.syncing]
        is_cruel = bool(writing) and rng.random() < 0.6
        down = [node for node in self.nodes.values() if node.raft is None]
        if down and rng.random() < 0.5:
            node = rng.choice(down)
        else:
            node = rng.choice(writing if is_cruel else list(self.nodes.values()))
        if node.raft is None:
            node.start()
        else:
            node.crash()
            if rng.random() < 0.5:
                node.start()  # back before anybody has noticed

    def cut_or_heal(self) -> None:
        rng, network = self.around.rng, self.around.network
        if network.cut and rng.random() < 0.6:
            network.heal()
            return
        ids = list(self.nodes)
        leader = self.leader()
        if leader is not None and rng.random() < 0.4:
            island = {leader.id}
        else:
            island = set(rng.sample(ids, rng.randrange(1, len(ids))))
        hears, speaks = rng.choice(((False, False), (False, False), (True, False), (False, True)))
        network.isolate(sorted(island), sorted(set(ids) - island), hears=hears, speaks=speaks)

    def change_something(self) -> None:
        """Compaction anywhere; a handover or another membership, by the leader."""
        rng = self.around.rng
        drawn = rng.random()
        if drawn < 0.4:
            node = self.nodes[rng.choice(list(self.nodes))]
            if node.raft is not None:
                node.compact()
            return
        leaders = self.around.leaders()
        if not leaders:
            return
        raft = rng.choice(leaders)  # also one that was deposed and does not know it
        if drawn < 0.6:
            raft.transfer(rng.choice(sorted(raft.membership.voters)))
        else:
            self._change_membership(raft)
        self.nodes[raft.me].carry_out()

    def leader(self) -> Node | None:
        """The one of the newest term."""
        newest = max(self.around.leaders(), key=lambda raft: raft.term, default=None)
        return None if newest is None else self.nodes[newest.me]

    def _change_membership(self, raft: Raft) -> None:
        now, node = raft.membership, self.around.rng.choice(list(self.nodes))
        if node in now.learners:
            raft.change(Membership(now.voters | {node}, now.learners - {node}))
        elif node in now.voters:
            raft.change(Membership(now.voters - {node}, now.learners))
        else:
            raft.change(Membership(now.voters, now.learners | {node}))

    def _plan_strike(self, node: Node) -> None:
        raft, rng = node.raft_up, self.around.rng
        if node.led != raft.term:
            node.led = raft.term
            delay = 1 + int(rng.randrange(30) / self.around.weather.strike)
            self._strikes.append((self.around.now + delay, node))

    def _bring_back(self, node: Node) -> None:
        self.around.network.heal()
        node.slowness = 1.0
        node.led = NO_TERM  # if it still leads it is struck again
        if node.raft is None:
            node.start()

    def _strike(self, node: Node) -> None:
        """Lose the leader with entries that few others have; a node that was lost before may be back."""
        rng, network = self.around.rng, self.around.network
        if rng.random() < 0.85:
            for _, lost in self._returns:
                self._bring_back(lost)
            self._returns.clear()
        others = sorted(set(self.nodes) - {node.id})
        node.slowness = self.around.weather.stall
        drawn = rng.random()
        if drawn < 0.25:
            node.crash()
        elif drawn < 0.5 or (drawn < 0.8 and len(self.nodes) < 4):
            network.isolate([node.id], others, hears=False, speaks=False)
        elif drawn < 0.8:
            # With one other: what it says there may be lost, or may not, if it is said to no majority.
            island = [node.id, rng.choice(others)]
            network.isolate(island, [n for n in others if n not in island], hears=False, speaks=False)
        else:
            network.isolate([node.id], others, hears=drawn < 0.9, speaks=drawn >= 0.9)
        elections = 20 * self.around.weather.election * len(self.nodes)  # events: time for one, or for two
        self._returns.append((self.around.now + 20 + rng.randrange(elections), node))
