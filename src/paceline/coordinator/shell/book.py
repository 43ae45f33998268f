"""Where is each node? What the cluster has written down, else what this node was started with."""

from collections.abc import Mapping

from paceline.coordinator.raft.types import NodeId
from paceline.coordinator.shell.node import Node
from paceline.coordinator.state import view


class Book:
    def __init__(self, node: Node, started_with: Mapping[NodeId, str]) -> None:
        self._node, self._started_with = node, dict(started_with)

    def is_at(self, node: NodeId, address: str) -> None:
        """It was started without an address of its own, and has found one."""
        self._started_with[node] = address

    def address(self, node: NodeId) -> str:
        return view.addresses(self._node.state).get(node) or self._started_with.get(node, "")

    def leader_address(self) -> str:
        leader = self._node.raft.leader
        return "" if leader is None else self.address(leader)

    def others(self) -> dict[NodeId, str]:
        """Those to talk to: everybody who takes part, as far as we know where they are."""
        raft = self._node.raft
        found = {other: self.address(other) for other in raft.membership.everybody - {self._node.me}}
        if raft.leader is not None and raft.leader not in found and raft.leader != self._node.me:
            found[raft.leader] = self.address(raft.leader)  # it leads us while we learn who takes part
        return {other: address for other, address in found.items() if address}
