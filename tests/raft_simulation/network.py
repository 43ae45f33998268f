"""Simulated network: messages are lost, duplicated, reordered, delayed or partitioned."""

import heapq
import random
from collections.abc import Iterable

from tests.raft_simulation.weather import Weather

from paceline.coordinator.raft.types import Message, NodeId

MOST_IN_FLIGHT = 400  # a network that is full loses what comes on top


class Network:
    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self._rng, self.weather = rng, weather
        self.in_flight: list[Message] = []
        self.late: list[tuple[int, int, Message]] = []  # a heap: when it arrives, a number, what
        self._number = 0
        self.cut: set[tuple[NodeId, NodeId]] = set()  # (from, to) that loses everything
        self.now = 0

    def send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.weather.late and self._rng.random() < self.weather.late:
                self._hold_back(message)
            elif len(self.in_flight) < MOST_IN_FLIGHT:
                self.in_flight.append(message)

    def wake(self, now: int) -> None:
        """What was held back until now goes on."""
        self.now = now
        while self.late and self.late[0][0] <= now:
            self.in_flight.append(heapq.heappop(self.late)[2])

    def take(self) -> Message | None:
        """The message that arrives now; None: it was lost. Mostly in order, but any may be overtaken."""
        rng = self._rng
        place = rng.randrange(len(self.in_flight)) if rng.random() < self.weather.reorder else 0
        message = self.in_flight[place]
        if rng.random() >= self.weather.duplicate:
            del self.in_flight[place]
        elif self.weather.late:
            self._hold_back(message)
        if (message.sender, message.to) in self.cut or rng.random() < self.weather.drop:
            return None
        return message

    def isolate(self, island: Iterable[NodeId], rest: Iterable[NodeId], *, hears: bool, speaks: bool) -> None:
        """Cut the island off from the rest, perhaps only one way."""
        rest = list(rest)
        for inside in island:
            for outside in rest:
                if not speaks:
                    self.cut.add((inside, outside))
                if not hears:
                    self.cut.add((outside, inside))

    def heal(self, node: NodeId | None = None) -> None:
        """All nodes, or one, reach the others again."""
        self.cut = set() if node is None else {pair for pair in self.cut if node not in pair}

    def clear(self) -> None:
        self.heal()
        self.in_flight += [message for _, _, message in sorted(self.late)]
        self.late.clear()

    def _hold_back(self, message: Message) -> None:
        self._number += 1
        due = self.now + 1 + self._rng.randrange(self.weather.latest)
        heapq.heappush(self.late, (due, self._number, message))
