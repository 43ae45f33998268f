"""Simulated clients: they send requests to any node that claims to lead, and record the answers."""

import random
from dataclasses import dataclass, field

from tests.raft_simulation.linearizability import NEVER, Operation
from tests.raft_simulation.node import Node

LETTERS = ("a", "b", "c")
ERA = 45  # operations until clients turn to fresh registers, so that checking each stays quick
MOST_OPEN = 5  # writes of one register without an answer; each doubles what a checker must try


@dataclass(slots=True)
class Clients:
    rng: random.Random
    history: list[Operation] = field(default_factory=list)
    _open: dict[str, list[Operation]] = field(default_factory=dict)
    _next_read: int = 0

    @property
    def answered(self) -> int:
        return sum(operation.answered < NEVER for operation in self.history)

    def ask(self, node: Node, now: int, *, reads: float) -> None:
        """A read or a write of some register; or a client loses patience, and will never know."""
        if node.waiting and self.rng.random() < 0.1:
            node.waiting.pop(self.rng.choice(list(node.waiting)))
        key = f"{self.rng.choice(LETTERS)}{len(self.history) // ERA}"
        if self.rng.random() < reads:
            self._read(node, Operation(key, False, "", now))
        else:
            self._write(node, Operation(key, True, f"{now}", now))

    def _write(self, node: Node, operation: Operation) -> None:
        mine = [o for o in self._open.get(operation.key, ()) if o.answered == NEVER]
        self._open[operation.key] = mine
        if len(mine) >= MOST_OPEN:
            return
        place = node.raft_up.propose(f"{operation.key}={operation.value}".encode())
        if place is not None:
            node.waiting[place] = operation
            self.history.append(operation)
            mine.append(operation)

    def _read(self, node: Node, operation: Operation) -> None:
        self._next_read += 1
        if node.raft_up.read(self._next_read):
            node.reading[self._next_read] = operation, node.checks.newest_acknowledged
            self.history.append(operation)
