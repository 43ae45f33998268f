"""How do several parts make one checkpoint, and one model? Part 0 asks the others for what they hold.

It asks when everything that it has done itself is safe, and begins nothing new
meanwhile. Every share that part 0 has is in every part by then. A part may have
more: shares whose workers have not come to part 0 yet. They are done again after
such a checkpoint, and left out by the parts that have them. So this is a
consistent cut, and nobody has to stop for it.
"""

from collections.abc import Set as AbstractSet
from typing import Protocol

import torch

from paceline.checkpoints.store import Snapshot, from_bytes
from paceline.clock import SystemClock, monotonic_s
from paceline.errors import PeerLostError, ProtocolError, TrainingError
from paceline.ids import Version
from paceline.plan.plan import Plan
from paceline.tasks.port import Task
from paceline.transport import elastic_wire as wire
from paceline.transport.elastic_wire import Frame, Say
from paceline.transport.server_line import CONNECT_S, SIDE
from paceline.worker.elastic_server import ElasticServer
from paceline.worker.place_membership import PlaceRoute, Places
from paceline.worker.replica import Replica
from paceline.worker.sliced_replica import Cuts

ANSWER_S = 5.0  # without a sign of life; one that is frozen has been succeeded by then
AGAIN_S = 0.01


class OtherParts(Protocol):
    def states(self) -> list[Snapshot]:
        """Of part 1 and those after it."""
        ...


class Gathering:
    """Asks the primaries of the other parts."""

    def __init__(self, membership: Places, *, parts: int, token: bytes, timeout_s: float) -> None:
        self._membership, self._parts = membership, parts
        self._token, self._timeout_s = token, timeout_s

    def states(self) -> list[Snapshot]:
        return [self._state(part) for part in range(1, self._parts)]

    def _state(self, part: int) -> Snapshot:
        until_s = monotonic_s() + self._timeout_s
        while True:
            try:
                return self._ask(part)
            except (OSError, PeerLostError) as error:
                if monotonic_s() > until_s:
                    raise TrainingError(
                        f"part {part} did not say what it holds within {self._timeout_s:g} s: {error}",
                        "look at the logs of its servers",
                    ) from error
                SystemClock().sleep(AGAIN_S)

    def _ask(self, part: int) -> Snapshot:
        place = PlaceRoute(self._membership, part, self._timeout_s).primary()
        if place is None:
            raise PeerLostError(f"the servers of part {part} have ended", "look at their logs")
        with wire.connect(
            place.host, place.port, token=self._token, side=SIDE, timeout_s=CONNECT_S
        ) as connection:
            connection.settimeout(ANSWER_S)
            wire.send(connection, Frame(Say.GATHER))
            frame = wire.receive(connection)
            if frame.say is not Say.STATE:
                raise ProtocolError(f"part {part} answered with {frame.say.name}", "look at its log")
            return from_bytes(bytes(wire.receive_bytes(connection, frame)))


class Together:
    """All parts as one, for checkpoints and for the final model."""

    def __init__(self, plan: Plan, task: Task, server: ElasticServer, others: OtherParts) -> None:
        assert plan.elastic is not None, "the run is elastic"
        self._server, self._others = server, others
        parts = plan.elastic.servers
        self.model = Replica(plan, task, torch.device("cpu"), SystemClock())
        self._cuts = [Cuts.of(self.model.arena.layout, part, parts) for part in range(parts)]

    @property
    def version(self) -> Version:
        return self._server.version

    @property
    def applied(self) -> AbstractSet[int]:
        return self._server.applied

    def snapshot(self) -> Snapshot:
        """The whole model by its own names, and what each part needs besides; `model` then holds it too."""
        mine = self._server.snapshot()
        saved = [mine, *self._others.states()]
        tensors: dict[str, torch.Tensor] = {}
        for part, (cuts, found) in enumerate(zip(self._cuts, saved, strict=True)):
            cuts.put_into(self.model.arena, found)
            rest = {name: tensor for name, tensor in found.tensors.items() if name not in cuts.named}
            tensors |= {_name(part, name): tensor for name, tensor in rest.items()}
        facts = {**mine.facts, "parts": [found.facts for found in saved]}
        return Snapshot({**self.model.arena.named_state(), **tensors}, facts)

    def live(self) -> Snapshot:
        """Nobody changes what was gathered."""
        return self.snapshot()


def part_of(saved: Snapshot, part: int, cuts: Cuts) -> Snapshot:
    """What this part needs of a checkpoint of all."""
    prefix = _name(part, "")
    rest = {n.removeprefix(prefix): t for n, t in saved.tensors.items() if n.startswith(prefix)}
    return Snapshot({**rest, **cuts.cut_from(saved.tensors)}, saved.facts["parts"][part])


def _name(part: int, name: str) -> str:
    return f"part-{part}.{name}"
