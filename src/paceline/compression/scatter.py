"""How do N workers average with few bytes, whatever N is? By a reduce-scatter of coded pieces.

Each worker codes its vector in N pieces and sends piece r to rank r. Rank r
decodes the N pieces that it got, averages them in rank order in full
precision, codes the mean once more, and everybody decodes everybody's mean.
That is 2(N-1)/N payloads out and in, as for a ring; gathering N payloads would
cost N-1. What the second coding leaves out is remembered by the piece's owner.
All workers decode the same bytes, so they end with the same bits.
"""

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.compression.coder import Coder
from paceline.compression.memory import memory_of
from paceline.compression.stopwatch import Stopwatch
from paceline.transport.arena import ALIGN
from paceline.transport.ports import Collective, Traffic


class ScatteredMean:
    def __init__(
        self, coder: Coder, collective: Collective, like: Tensor, *, error_feedback: bool, clock: Clock
    ) -> None:
        world, self._numel, self._dtype = collective.world_size, like.numel(), like.dtype
        self._coder, self._collective, self._watch = coder, collective, Stopwatch(clock)
        self._pieces = cut(self._numel, world)
        self._slot_bytes = coder.payload_bytes(self._pieces[0].stop, self._dtype)
        self._outgoing = collective.allocate(world * self._slot_bytes, torch.uint8)
        self._shared = collective.allocate(self._slot_bytes, torch.uint8)
        own = like[self._pieces[collective.rank]]
        self._first = memory_of(like, error_feedback=error_feedback)
        self._second = memory_of(own, error_feedback=error_feedback)
        self._round = 0

    def reduce(self, part: Tensor) -> Traffic:
        with self._watch:
            wanted = self._first.corrected(part)
            for rank, piece in enumerate(self._pieces):
                self._encode(wanted[piece], self._slot(self._outgoing, rank), message=rank)
            if self._first.remembers:
                self._first.sent(self._decoded(self._outgoing))
        received, traffic = self._collective.swap(self._outgoing)
        with self._watch:
            self._encode(self._own_mean(received), self._shared, message=len(self._pieces))
            if self._second.remembers:
                self._second.sent(self._decode(self._shared, self._collective.rank))
        payloads, more = self._collective.gather(self._shared)
        with self._watch:
            for rank, (piece, payload) in enumerate(zip(self._pieces, payloads, strict=True)):
                part[piece] = self._decode(payload, rank)
        self._round += 1
        return traffic + more + self._watch.traffic()

    def _own_mean(self, received: Tensor) -> Tensor:
        own = self._collective.rank
        total = self._decode(self._slot(received, 0), own)
        for rank in range(1, len(self._pieces)):
            total += self._decode(self._slot(received, rank), own)
        return self._second.corrected(total.div_(len(self._pieces)))

    def _decoded(self, slots: Tensor) -> Tensor:
        """Our own message, as its receivers understand it."""
        return torch.cat([self._decode(self._slot(slots, rank), rank) for rank in range(len(self._pieces))])

    def _encode(self, numbers: Tensor, slot: Tensor, *, message: int) -> None:
        nonce = self._round * (len(self._pieces) + 1) + message
        payload = self._coder.encode(numbers, nonce)
        slot[: payload.numel()] = payload

    def _decode(self, slot: Tensor, piece: int) -> Tensor:
        """Pieces at the end may be shorter than their slot, or empty."""
        numel = self._pieces[piece].stop - self._pieces[piece].start
        payload = slot[: self._coder.payload_bytes(numel, self._dtype)]
        return self._coder.decode(payload, numel, self._dtype)

    def _slot(self, slots: Tensor, rank: int) -> Tensor:
        return slots[rank * self._slot_bytes : (rank + 1) * self._slot_bytes]

    def snapshot(self) -> dict[str, Tensor]:
        memories = {"first": self._first, "second": self._second}
        saved = {
            f"{which}.{k}": t for which, memory in memories.items() for k, t in memory.snapshot().items()
        }
        return saved | {"coded": torch.tensor([self._round])}

    def restore(self, saved: dict[str, Tensor]) -> None:
        for which, memory in (("first", self._first), ("second", self._second)):
            own = {k.removeprefix(f"{which}."): t for k, t in saved.items() if k.startswith(f"{which}.")}
            memory.restore(own)
        self._round = int(saved["coded"])


def cut(numel: int, world_size: int) -> list[slice]:
    """A piece for each rank, equal but for the last ones, which may be shorter or empty."""
    share = -(-numel // (world_size * ALIGN)) * ALIGN
    return [slice(min(r * share, numel), min((r + 1) * share, numel)) for r in range(world_size)]
