"""How does a worker use parameter servers in several parts? The other parts first, part 0 last.

A gradient goes to all other parts, and once each has confirmed its slice, to
part 0, which counts the share as done and hands out the next one. So whatever
part 0 has, every part has; and what a worker reads after part 0's answer is in
every part at least as new as that answer. A worker that dies in between has its
share done again by another; a part that has the share already leaves it out.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from paceline.core.clock import Clock
from paceline.core.errors import HopelessError, PeerLostError, ProtocolError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.arena import ALIGN, Layout, Piece
from paceline.transport.elastic_store import ElasticStore
from paceline.transport.elastic_wire import Frame, MessageKind, PrimaryConnection, Route
from paceline.transport.ports import PullResult, Slots, Traffic


class PartitionConnection(PrimaryConnection):
    """A worker's end of a part that hands out no shares."""

    def __init__(self, route: Route, rank: Rank, *, token: bytes, clock: Clock, timeout_s: float) -> None:
        self._rank = rank
        self._slots: Slots | None = None
        self._asked = Frame(MessageKind.PULL, rank)
        super().__init__(route, token=token, clock=clock, timeout_s=timeout_s)

    def use(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def nbytes(self) -> int:
        """Of what travels in one direction."""
        return 0 if self._slots is None else self._slots.gradients.nbytes

    def push(self, share: int, incarnation: int) -> None:
        self._say(Frame(MessageKind.PUSH, self._rank, incarnation, position=share))

    def pull(self, incarnation: int) -> None:
        self._say(Frame(MessageKind.PULL, self._rank, incarnation))

    def answer(self) -> MessageKind | None:
        """To what we asked last, by whoever is primary by then; None: all work is done."""
        assert self._slots is not None, "use() comes first"
        while True:
            try:
                connection = self._connected()
                if connection is None:
                    return None
                frame = wire.receive(connection)
                if frame.say is MessageKind.PARAMETERS:
                    wire.receive_payload(connection, frame, tcp_wire.bytes_of(self._slots.parameters))
                elif frame.say not in (MessageKind.APPLIED, MessageKind.FENCED):
                    raise ProtocolError(f"a part's server said {frame.say.name}", "look at its log")
                return frame.say
            except (OSError, PeerLostError) as error:
                self._lose(error)

    def _say(self, frame: Frame) -> None:
        self._asked = frame
        try:
            if self._connection is not None:
                self._ask(self._connection)
        except OSError:
            self._disconnect()  # answer() finds the next server, and asks it

    def _ask(self, connection: socket.socket) -> None:
        assert self._slots is not None, "use() comes first"
        pushes = self._asked.say is MessageKind.PUSH
        wire.send(connection, self._asked, tcp_wire.bytes_of(self._slots.gradients) if pushes else None)


class PartitionedStore:
    """A worker's end of all parts."""

    def __init__(
        self, head: ElasticStore, others: Sequence[PartitionConnection], slices: Sequence[slice]
    ) -> None:
        assert len(slices) == len(others) + 1, "each part has a slice"
        self._head = head
        self._others = others
        self._slices = slices
        self._share = 0

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        assert push_bytes is None, "what is pushed here is not compressed"
        slots = Slots.new(numel, dtype)
        first, *rest = (Slots(slots.parameters[where], slots.gradients[where]) for where in self._slices)
        self._head.use(first)
        for line, mine in zip(self._others, rest, strict=True):
            line.use(mine)
        return slots

    def join(self, clock: StepClock) -> None:
        self._head.join(clock)

    def push(self, *, wants_stop: bool) -> Traffic:
        for line in self._others:
            line.push(self._share, self._head.incarnation)
        answers = [line.answer() for line in self._others]
        if MessageKind.FENCED in answers:
            self._head.give_up()
            return self._bytes_out()
        return self._bytes_out() + self._head.push(wants_stop=wants_stop)

    def pull(self) -> PullResult:
        pulled = self._head.pull()
        if pulled.position is None:
            return pulled
        self._share = pulled.position
        for line in self._others:
            line.pull(self._head.incarnation)
        for line in self._others:
            line.answer()
        return PullResult(
            pulled.version, pulled.position, pulled.traffic + Traffic(bytes_in=self._others_bytes())
        )

    def leave(self) -> None:
        """Only part 0 knows who takes part."""
        self._head.leave()

    def close(self) -> None:
        for line in (self._head, *self._others):
            line.close()

    def _bytes_out(self) -> Traffic:
        return Traffic(bytes_out=self._others_bytes())

    def _others_bytes(self) -> int:
        return sum(line.nbytes for line in self._others)


# Contiguous slices of about equal length, cut anywhere, also within a tensor, but
# on the boundaries of the arena: each number then goes through the same
# instructions as in the whole vector. The last slice, with the buffers and the
# tail behind it, is part 0's, which keeps everything that is not parameters.


def partition_slices(layout: Layout, parts: int) -> tuple[slice, ...]:
    """By part, the place of its slice in the vector."""
    blocks = layout.buffers_start // ALIGN
    if blocks < parts:
        raise HopelessError(
            f"the model has {blocks} blocks of {ALIGN} numbers, too few for {parts} parts",
            f"use --servers {max(1, blocks)} or less",
        )
    cuts = [blocks * number // parts * ALIGN for number in range(parts)]
    others = (slice(start, end) for start, end in pairwise(cuts))
    return (slice(cuts[-1], layout.numel), *others)


@dataclass(frozen=True, slots=True)
class PieceSlice:
    """What of a tensor lies in a slice."""

    name: str  # of the tensor
    first: int  # of its numbers
    numel: int
    start: int  # where it lies in the whole vector

    @property
    def in_tensor(self) -> slice:
        return slice(self.first, self.first + self.numel)

    @property
    def in_vector(self) -> slice:
        return slice(self.start, self.start + self.numel)


def slice_pieces(pieces: Sequence[Piece], where: slice) -> tuple[PieceSlice, ...]:
    """What of these tensors lies there, in order."""
    found = []
    for piece in pieces:
        start = max(piece.start, where.start)
        end = min(piece.start + piece.shape.numel(), where.stop)
        if start < end:
            found.append(PieceSlice(piece.name, start - piece.start, end - start, start))
    return tuple(found)
