"""Where is each coordinator node? Said by the leader when one is added or moves."""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import refuse
from paceline.coordinator.state.turn import Turn

MOST_NODES = 100


def name_node(turn: Turn, said: pb.NodeAddress) -> pb.NodeAddress | pb.Refusal:
    nodes = turn.state.nodes
    if said.node == 0:
        return refuse.invalid("a node was named without its number", "number nodes from 1 on")
    if said.node not in nodes and len(nodes) >= MOST_NODES:
        return refuse.not_now(f"{MOST_NODES} nodes have an address", "forget those that were removed")
    found = pb.NodeAddress(node=said.node, address=said.address)
    known = nodes.get(said.node)
    if said.address != ("" if known is None else known.address):
        turn.changed(found)
    if said.address:
        nodes[said.node] = found
    else:
        nodes.pop(said.node, None)
    return found
