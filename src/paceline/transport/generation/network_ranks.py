"""Collectives of logical ranks over the mesh of a generation: `NetworkRanks`.

Each member sends the vectors, or pieces of vectors, of its ranks to the members that
need them, and computes with copies. Sums are in the order of ranks, so the bits are
those of shared memory (shm_ranks.py).
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.errors import ProtocolError
from paceline.core.ids import Rank
from paceline.sync.shard_balancing import shards_of
from paceline.transport.generation.mesh import Kind, Mesh, Message, expect_bytes
from paceline.transport.ports import NO_TRAFFIC, Traffic
from paceline.transport.shm_collective import mean_in_place, piece_of, pieces
from paceline.transport.tcp_wire import bytes_of


@dataclass(slots=True)
class _Group:
    """The vectors of this member's ranks that were allocated together."""

    vectors: dict[int, Tensor] = field(default_factory=dict)


class NetworkRanks:
    def __init__(self, mesh: Mesh, member: int, parties: int, *, ranks: int, clock: Clock) -> None:
        self.own = shards_of(member, workers=parties, shards=ranks)
        self.world_size = ranks
        self._mesh = mesh
        self._member = member
        self._parties = parties
        self._clock = clock
        self._ranks_of = {
            other: shards_of(other, workers=parties, shards=ranks)
            for other in range(parties)
            if other != member
        }
        self._groups: list[_Group] = []
        self._group_of: dict[int, _Group] = {}  # by the address of a vector
        self._allocated = dict.fromkeys(self.own, 0)  # by rank: its vectors so far

    def allocate(self, rank: Rank, numel: int, dtype: torch.dtype) -> Tensor:
        number = self._allocated[rank]
        self._allocated[rank] += 1
        if number == len(self._groups):
            self._groups.append(_Group())
        vector = torch.zeros(numel, dtype=dtype)
        self._groups[number].vectors[rank] = vector
        self._group_of[vector.data_ptr()] = self._groups[number]
        return vector

    def collect(self, slots: Sequence[Tensor], filled: Collection[int], *, everywhere: bool) -> Traffic:
        here = set(filled)

        def place(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            shards = [number for (number,) in struct.iter_unpack("!q", meta[: len(meta) // 8 * 8])]
            wanted = range(len(slots)) if everywhere else self.own
            if (
                not set(shards) <= set(wanted)
                or len(set(shards)) < len(shards)
                or not here.isdisjoint(shards)
            ):
                raise ProtocolError(
                    f"the worker of rank {sender} sent the shards {shards}, and {sorted(here)} were there",
                    "all workers must run the same version of paceline",
                )
            expect_bytes(sender, payload_bytes, slots[0].nbytes * len(shards))
            here.update(shards)
            return [bytes_of(slots[shard]) for shard in shards]

        messages = dict[int, Message]()
        for other, ranks in self._ranks_of.items():
            sent = [shard for shard in sorted(filled) if everywhere or shard in ranks]
            payload = [bytes_of(slots[shard]) for shard in sent]
            messages[other] = Message(struct.pack(f"!{len(sent)}q", *sent), payload)
        wait_ns = self._mesh.swap(Kind.SLOTS, messages, self._ranks_of, place, self._clock)
        if not here.issuperset(range(len(slots)) if everywhere else self.own):
            raise ProtocolError(
                f"only the shards {sorted(here)} were sent",
                "all workers must run the same version of paceline",
            )
        bytes_out = sum(len(view) for message in messages.values() for view in message.payload)
        return Traffic(bytes_out, slots[0].nbytes * (len(here) - len(set(filled))), wait_ns)

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        copies, traffic = self.gather(vector)
        mean_in_place(copies)
        for own in self._group_of[vector.data_ptr()].vectors.values():
            own.copy_(copies[0])
        return traffic

    def gather(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        own = self._group_of[vector.data_ptr()].vectors
        copies = {rank: torch.empty_like(vector) for rank in range(self.world_size)}
        for rank in self.own:
            copies[rank].copy_(own[rank])
        out = {other: [own[rank] for rank in self.own] for other in self._ranks_of}
        into = {other: [copies[rank] for rank in ranks] for other, ranks in self._ranks_of.items()}
        return list(copies.values()), self._swap(out, into)

    def swap(self, vector: Tensor) -> tuple[list[Tensor], Traffic]:
        own = self._group_of[vector.data_ptr()].vectors
        parts = {rank: pieces(own[rank], self.world_size) for rank in self.own}
        received = {rank: torch.empty_like(vector) for rank in self.own}
        places = {rank: pieces(received[rank], self.world_size) for rank in self.own}
        for rank in self.own:
            for sender in self.own:
                places[rank][sender].copy_(parts[sender][rank])
        out = {
            other: [parts[sender][rank] for sender in self.own for rank in ranks]
            for other, ranks in self._ranks_of.items()
        }
        into = {
            other: [places[rank][sender] for sender in ranks for rank in self.own]
            for other, ranks in self._ranks_of.items()
        }
        return list(received.values()), self._swap(out, into)

    def plain_bytes(self, vector: Tensor) -> int:
        start, end = piece_of(self._member, vector.numel(), self._parties)
        piece = (end - start) * vector.element_size()
        return len(self.own) * (vector.nbytes - piece) + (self._parties - 1) * piece

    def _swap(self, out: Mapping[int, Sequence[Tensor]], into: Mapping[int, Sequence[Tensor]]) -> Traffic:
        if not out:
            return NO_TRAFFIC

        def place(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            expect_bytes(sender, len(meta), 0)
            expect_bytes(sender, payload_bytes, sum(vector.nbytes for vector in into[sender]))
            return _views(into[sender])

        messages = {other: Message(payload=_views(vectors)) for other, vectors in out.items()}
        wait_ns = self._mesh.swap(Kind.VECTOR, messages, into, place, self._clock)
        bytes_out = sum(vector.nbytes for vectors in out.values() for vector in vectors)
        bytes_in = sum(vector.nbytes for vectors in into.values() for vector in vectors)
        return Traffic(bytes_out, bytes_in, wait_ns)


def _views(vectors: Sequence[Tensor]) -> list[memoryview]:
    return [bytes_of(vector) for vector in vectors if vector.numel()]
