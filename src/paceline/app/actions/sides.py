"""Who stands on which side of a cut, what does each node do for it, and who would be left? Pure.

Those who are named (`node-1,worker-0`) are on one side, together; all others are on the
other. A worker that is cut off reaches no node of the other side; what workers send each other stays
as it is. Of both sides the other one must be able to go on, unless somebody forces it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"(node|worker)-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Sides:
    """Those who are cut off."""

    nodes: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"node-{node}" for node in self.nodes), *self.workers)


@dataclass(frozen=True, slots=True)
class Order:
    """What one node is asked to do: whom it does not hear."""

    nodes: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    others: bool = False  # all but those processes


def sides_in(target: str) -> Sides | None:
    """None: it names somebody who is neither a node nor a worker, or nobody."""
    found = [_NAME.fullmatch(name.strip()) for name in target.split(",")]
    if not all(found):
        return None
    named = [(match[1], int(match[2])) for match in found if match is not None]
    nodes = sorted({number for kind, number in named if kind == "node"})
    workers = sorted({number for kind, number in named if kind == "worker"})
    return Sides(tuple(nodes), tuple(f"worker-{number}" for number in workers))


def why_not_cut(sides: Sides, pids: Collection[str]) -> str:
    """As far as is known without the coordinator."""
    if missing := [worker for worker in sides.workers if worker not in pids]:
        there = ", ".join(sorted(pids)) or "nobody"
        return f"there is no worker {missing[0]!r}; there are: {there}"
    return ""


def why_not_left(
    sides: Sides,
    *,
    voters: Collection[int],
    answering: Collection[int],
    workers: Collection[str],
    fewest: int,
) -> str:
    """Why too few would be left on the other side, in words; empty: enough."""
    left = [node for node in answering if node in voters and node not in sides.nodes]
    needed = len(voters) // 2 + 1
    if sides.nodes and len(left) < needed:
        return (
            f"the quorum would be lost: {len(left)} of {len(voters)} nodes would be left together, "
            f"and {needed} are needed"
        )
    staying = [name for name in workers if name not in sides.workers]
    if sides.workers and len(staying) < fewest:
        return f"{len(staying)} workers would be left, and the run needs {fewest}"
    return ""


def orders(sides: Sides, nodes: Collection[int], pids: Mapping[str, int]) -> dict[int, Order]:
    """By node. A node that is cut off hears only those who are with it."""
    mine = tuple(pids[worker] for worker in sides.workers)
    found: dict[int, Order] = {}
    for node in nodes:
        if node in sides.nodes:
            others = tuple(other for other in nodes if other not in sides.nodes)
            found[node] = Order(others, mine, others=True)
        elif mine:
            found[node] = Order(pids=mine)
    return found
