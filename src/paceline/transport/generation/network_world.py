"""World of a generation over TCP, with nothing shared between its members.

A mean takes two exchanges. In the first every member sends piece r of each of its shards to rank r, which
averages piece r of all shards, in their order; in the second rank r sends the mean of its piece to all. So
the number of members changes who adds which piece, never the sum: the bits are those of shared memory. The
second exchange is also the barrier: a member that has received all pieces has committed, and one that saw
an error has not.

A member with s of V shards of n bytes sends s n (N-1)/N bytes in the first exchange and n (N-1)/N in the
second; with one shard per member that is what a ring sends, with more it is more, because shards are not
added up before they are sent. A round also sends each shard's own bytes to all. The rows of `NetworkBoard`
and `NetworkWindow` travel with the first exchange.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from paceline.core.clock import Clock, SystemClock
from paceline.core.errors import ProtocolError, TrainingError
from paceline.core.ids import Rank
from paceline.transport.arena import is_non_finite
from paceline.transport.generation.listener import MeshListener
from paceline.transport.generation.mesh import Kind, Mesh, Message, expect_bytes
from paceline.transport.generation.network_ranks import NetworkRanks
from paceline.transport.generation.ports import BoardRow
from paceline.transport.handshake import Member
from paceline.transport.ports import Traffic
from paceline.transport.shm_collective import PieceMean, mean_in_place, piece_of, pieces
from paceline.transport.tcp_wire import bytes_of

MAX_STATE_BYTES = 1 << 40
OWN_PER_VECTOR = 16  # a shard's own bytes are at most this many times its vector, and
OWN_MORE_BYTES = 1 << 24  # this many more
_LENGTHS = struct.Struct("!4I")  # numbers of shards, of sizes of own bytes, in the row, in the window
_SAME_VERSION = "all workers must run the same version of paceline"


class NetworkGeneration:
    """One member's end of the mesh."""

    keeps_memories = False  # they are as large as the model, and would have to be sent at each commit

    def __init__(self, mesh: Mesh, rank: int, *, parties: int) -> None:
        self.rank = rank
        self.parties = parties
        self.mesh = mesh
        self._others = [other for other in range(parties) if other != rank]
        self._rows = _Rows(parties)

    @property
    def lost(self) -> str:
        return self.mesh.lost

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        packed = struct.Struct(f"!{len(numbers)}q")
        rows = {self.rank: list(numbers)}

        def take(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            expect_bytes(sender, len(meta), packed.size)
            rows[sender] = list(packed.unpack(meta))
            expect_bytes(sender, payload_bytes, 0)
            return ()

        message = Message(packed.pack(*numbers))
        self.mesh.swap(Kind.NUMBERS, dict.fromkeys(self._others, message), self._others, take, SystemClock())
        return [rows[rank] for rank in range(self.parties)]

    def copy_state(self, sources: Mapping[int, int], data: bytes) -> bytes:
        received = bytearray()
        announced = b""

        def place(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            nonlocal received, announced
            if payload_bytes > MAX_STATE_BYTES:
                expect_bytes(sender, payload_bytes, MAX_STATE_BYTES)
            received = bytearray(payload_bytes)
            announced = meta
            return (memoryview(received),)

        receivers = [receiver for receiver, source in sources.items() if source == self.rank]
        message = Message()
        if receivers:
            message = Message(sha256(data).digest(), _views(memoryview(data)))
        from_ranks = [sources[self.rank]] if self.rank in sources else []
        self.mesh.swap(Kind.STATE, dict.fromkeys(receivers, message), from_ranks, place, SystemClock())
        if from_ranks and sha256(received).digest() != announced:
            raise TrainingError(
                "the state received from another worker does not match its hash",
                "this should never happen: check the memory and the network of both hosts",
            )
        return bytes(received)

    def shards(self, count: int, clock: Clock) -> "NetworkRounds":
        return self.rounds(count, clock)

    def rounds(self, count: int, clock: Clock) -> "NetworkRounds":
        return NetworkRounds(self.mesh, self._rows, self.rank, self.parties, shards=count, clock=clock)

    def ranked_rounds(
        self, count: int, clock: Clock, *, has_states: bool
    ) -> "tuple[NetworkRounds, NetworkRanks]":
        rounds = self.rounds(count, clock)
        rounds.averages = False
        ranks = NetworkRanks(self.mesh, self.rank, self.parties, ranks=count, clock=clock)
        return rounds, ranks

    def board(self) -> "NetworkBoard":
        return NetworkBoard(self._rows)

    def window(self, kept: int) -> "NetworkWindow":
        return NetworkWindow(self._rows, kept)

    def collective(self, clock: Clock) -> "NetworkCollective":
        return NetworkCollective(self.mesh, Rank(self.rank), self.parties, clock=clock)

    def wake_all(self) -> None:
        self.mesh.wake()

    def close(self) -> None:
        self.mesh.close()


def enter_network_world(
    listener: MeshListener,
    number: int,
    members: Sequence[Member],
    rank: int,
    *,
    timeout_s: float,
    is_over: Callable[[], bool],
) -> NetworkGeneration:
    """The world of generation `number`; PeerLostError when it ends before all are connected."""
    connections = listener.connect(number, rank, members, timeout_s=timeout_s, is_over=is_over)
    names = [member.name for member in members]
    mesh = Mesh(number, names, connections, timeout_s=timeout_s, is_over=is_over)
    return NetworkGeneration(mesh, rank, parties=len(members))


@dataclass(slots=True)
class _Rows:
    """Rows that travel with the next mean, and those that came with the last one, by rank."""

    parties: int
    board: Sequence[int] = ()
    window: Sequence[float] = ()
    boards: dict[int, Sequence[int]] = field(default_factory=dict)
    windows: dict[int, Sequence[float]] = field(default_factory=dict)


class NetworkBoard:
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def write(self, row: BoardRow) -> None:
        self._rows.board = row

    def read(self) -> Sequence[BoardRow]:
        return [BoardRow(*self._rows.boards[rank]) for rank in range(self._rows.parties)]


class NetworkWindow:
    def __init__(self, rows: _Rows, kept: int) -> None:
        self._rows = rows
        self._kept = kept

    def write(self, seconds: Sequence[float]) -> None:
        assert len(seconds) <= self._kept, "all members have made room for that many"
        self._rows.window = list(seconds)

    def read(self) -> list[list[float]]:
        return [list(self._rows.windows[rank]) for rank in range(self._rows.parties)]


@dataclass(frozen=True, slots=True)
class _Contribution:
    """The head of what one member sends before a mean."""

    shards: Sequence[int]
    own_bytes: Sequence[int]  # of each of the shards, in rounds
    board: Sequence[int]
    window: Sequence[float]

    def to_bytes(self) -> bytes:
        counts = (len(self.shards), len(self.own_bytes), len(self.board), len(self.window))
        numbers = (*self.shards, *self.own_bytes, *self.board)
        return _LENGTHS.pack(*counts) + struct.pack(f"!{len(numbers)}q{counts[3]}d", *numbers, *self.window)

    @classmethod
    def read(cls, meta: bytes) -> "_Contribution":
        """ProtocolError if it is not one."""
        try:
            shards, own, board, window = _LENGTHS.unpack_from(meta)
            numbers = struct.unpack(f"!{shards + own + board}q{window}d", meta[_LENGTHS.size :])
        except struct.error as error:
            raise ProtocolError(f"what comes before a mean is malformed: {error}", _SAME_VERSION) from error
        parts = iter(numbers)
        return cls(*([next(parts) for _ in range(count)] for count in (shards, own, board, window)))


class NetworkRounds:
    """The mean over the slots of all shards, and each shard's own bytes, which every member receives."""

    def __init__(
        self, mesh: Mesh, rows: _Rows, rank: int, parties: int, *, shards: int, clock: Clock
    ) -> None:
        self.rank = rank
        self.world_size = parties
        self.shards = shards
        self.checks_finite = False
        self.memories = range(0)  # error memories are with their members
        self.averages = True  # otherwise a commit only publishes states
        self._mesh = mesh
        self._rows = rows
        self._clock = clock
        self._others = [other for other in range(parties) if other != rank]
        self._slots: list[Tensor] = []
        self._mean = torch.empty(0)
        self._was_finite = True

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        """A slot for every shard, and one for the mean; the same ones at every call.

        Of the slots of other members' shards only this rank's piece is ever used.
        """
        if self._slots:
            return self._slots, self._mean
        self._slots = [torch.zeros(numel, dtype=dtype) for _ in range(self.shards)]
        self._mean = torch.zeros(numel, dtype=dtype)
        self._max_own_bytes = OWN_PER_VECTOR * self._mean.nbytes + OWN_MORE_BYTES
        averaged = numel if self.averages else 0
        slots = [slot[:averaged] for slot in self._slots]
        mean = self._mean[:averaged]
        self._averaged_bytes = mean.nbytes
        self._piece: PieceMean | None = PieceMean(slots, mean, self.rank, self.world_size)
        self._pieces = [self._pieces_of(slot) for slot in slots]  # by shard and rank
        self._mean_pieces = self._pieces_of(mean)
        return self._slots, self._mean

    def check(self) -> None:
        self._mesh.check()

    def mean(self, own: Collection[int]) -> Traffic:
        traffic, _ = self._average(own, None)
        return traffic

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        traffic, kept = self._average(own, own)
        return traffic, [kept[shard] for shard in range(self.shards)]

    def is_finite(self) -> bool:
        return self._was_finite

    def non_finite(self, own: Collection[int]) -> list[int]:
        """Each member knows its own shards in full, and tells the others."""
        bad = [shard for shard in own if is_non_finite(self._slots[shard])]
        everywhere = list(bad)

        def take(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            everywhere.extend(self._known(_Contribution.read(meta).shards))
            expect_bytes(sender, payload_bytes, 0)
            return ()

        message = Message(_Contribution(bad, (), (), ()).to_bytes())
        self._swap(Kind.FLAGS, dict.fromkeys(self._others, message), take)
        return sorted(everywhere)

    def settle(self) -> None:
        """Nothing to wait for: no member reads the slots of another."""

    def close(self) -> None:
        self._slots = []
        self._piece = None
        self._pieces = []
        self._mean_pieces = []

    def _average(
        self, own: Collection[int], own_bytes: Mapping[int, bytes] | None
    ) -> tuple[Traffic, dict[int, Tensor]]:
        """The mean of all slots; with `own_bytes` also those of all shards, by shard."""
        assert self._piece is not None, "allocate() comes first"
        rows = self._rows
        shards = sorted(own)
        data = [] if own_bytes is None else [own_bytes[shard] for shard in shards]
        kept = {shard: _as_tensor(part) for shard, part in zip(shards, data, strict=False)}
        own_row = _Contribution(shards, [len(part) for part in data], rows.board, rows.window)
        rows.board = ()
        rows.window = ()
        rows.boards = {self.rank: own_row.board}
        rows.windows = {self.rank: own_row.window}
        filled = set(shards)

        def place_pieces(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            row = _Contribution.read(meta)
            rows.boards[sender] = row.board
            rows.windows[sender] = row.window
            places = [self._pieces[shard][self.rank] for shard in self._known(row.shards)]
            self._check_row(sender, row, filled, with_own=own_bytes is not None)
            expect_bytes(sender, payload_bytes, sum(map(len, places)) + sum(row.own_bytes))
            own_places = [bytearray(size) for size in row.own_bytes]
            filled.update(row.shards)
            for shard, place in zip(row.shards, own_places, strict=False):
                kept[shard] = _as_tensor(place)
            return [*places, *(memoryview(place) for place in own_places)]

        meta = own_row.to_bytes()
        own_views = [view for part in data for view in _views(memoryview(part))]
        out = {other: Message(meta, [*self._views_for(other, shards), *own_views]) for other in self._others}
        wait_ns = self._swap(Kind.PIECES, out, place_pieces)
        if len(filled) != self.shards:
            missing = sorted(set(range(self.shards)) - filled)
            raise ProtocolError(f"no worker sent the shards {missing}", _SAME_VERSION)
        flags = {self.rank: self._piece.compute(checks_finite=self.checks_finite)}

        def place_mean(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            expect_bytes(sender, len(meta), 1)
            expect_bytes(sender, payload_bytes, len(self._mean_pieces[sender]))
            flags[sender] = meta != b"\0"
            return (self._mean_pieces[sender],)

        mean = Message(bytes([flags[self.rank]]), _views(self._mean_pieces[self.rank]))
        wait_ns += self._swap(Kind.MEANS, dict.fromkeys(self._others, mean), place_mean)
        self._was_finite = all(flags.values())
        return self._traffic(shards, sum(map(len, data)), kept, wait_ns), kept

    def _check_row(self, sender: int, row: _Contribution, filled: Collection[int], *, with_own: bool) -> None:
        is_twice = len(set(row.shards)) != len(row.shards) or not set(row.shards).isdisjoint(filled)
        expected = len(row.shards) if with_own else 0
        if is_twice or len(row.own_bytes) != expected:
            raise ProtocolError(
                f"the worker of rank {sender} sent the shards {list(row.shards)} with "
                f"{len(row.own_bytes)} states, and {sorted(filled)} were there already",
                _SAME_VERSION,
            )
        for size in row.own_bytes:
            if not 0 <= size <= self._max_own_bytes:
                expect_bytes(sender, size, self._max_own_bytes)

    def _known(self, shards: Sequence[int]) -> Sequence[int]:
        for shard in shards:
            if not 0 <= shard < self.shards:
                raise ProtocolError(f"there is no shard {shard} of {self.shards}", _SAME_VERSION)
        return shards

    def _views_for(self, other: int, shards: Sequence[int]) -> Iterator[memoryview]:
        for shard in shards:
            yield from _views(self._pieces[shard][other])

    def _pieces_of(self, vector: Tensor) -> list[memoryview]:
        bounds = (piece_of(rank, vector.numel(), self.world_size) for rank in range(self.world_size))
        return [bytes_of(vector[start:end]) if end > start else memoryview(b"") for start, end in bounds]

    def _swap(
        self,
        kind: Kind,
        out: Mapping[int, Message],
        places: Callable[[int, bytes, int], Sequence[memoryview]],
    ) -> int:
        return self._mesh.swap(kind, out, self._others, places, self._clock)

    def _traffic(
        self, own: Sequence[int], own_bytes: int, kept: Mapping[int, Tensor], wait_ns: int
    ) -> Traffic:
        piece = len(self._mean_pieces[self.rank])
        rest = self._averaged_bytes - piece
        others = len(self._others)
        received = sum(kept[shard].numel() for shard in kept if shard not in own)
        return Traffic(
            bytes_out=len(own) * rest + others * (piece + own_bytes),
            bytes_in=(self.shards - len(own)) * piece + rest + received,
            wait_ns=wait_ns,
        )


class NetworkCollective:
    """Collective operations over the mesh, in rank order."""

    def __init__(self, mesh: Mesh, rank: Rank, world_size: int, *, clock: Clock) -> None:
        self.rank = rank
        self.world_size = world_size
        self._mesh = mesh
        self._clock = clock

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype)

    def all_reduce_mean(self, vector: Tensor) -> Traffic:
        copies, traffic = self.gather(vector)
        mean_in_place(copies)
        vector.copy_(copies[0])
        return traffic

    def broadcast(self, vector: Tensor) -> Traffic:
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        if self.rank == 0:
            return self.exchange(dict.fromkeys(others, vector), {})
        return self.exchange({}, {0: vector})

    def gather(
        self,
        vector: Tensor,
        sources: Sequence[Rank] | None = None,
        targets: Sequence[Rank] | None = None,
    ) -> tuple[list[Tensor], Traffic]:
        senders = [Rank(rank) for rank in range(self.world_size)] if sources is None else sources
        receivers = senders if targets is None else targets
        copies: dict[int, Tensor] = {rank: torch.empty_like(vector) for rank in senders}
        if self.rank in copies:
            copies[self.rank].copy_(vector)
        traffic = self.exchange(dict.fromkeys(self._besides(receivers), vector), self._others_of(copies))
        return [copies[rank] for rank in senders], traffic

    def swap(self, vector: Tensor) -> tuple[Tensor, Traffic]:
        parts = dict(enumerate(pieces(vector, self.world_size)))
        received = torch.empty_like(vector)
        places = dict(enumerate(pieces(received, self.world_size)))
        places[self.rank].copy_(parts[self.rank])
        return received, self.exchange(self._others_of(parts), self._others_of(places))

    def abort(self) -> None:
        """End the present exchange, and all later ones, with PeerLostError. Called from any thread."""
        self._mesh.abort()

    def close(self) -> None:
        """The mesh is closed with its generation."""

    def _besides(self, ranks: Sequence[Rank]) -> list[int]:
        return [rank for rank in ranks if rank != self.rank]

    def _others_of(self, vectors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return {rank: vector for rank, vector in vectors.items() if rank != self.rank}

    def exchange(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> Traffic:
        """Send vectors by rank, and receive others into these."""

        def place(sender: int, meta: bytes, payload_bytes: int) -> Sequence[memoryview]:
            expect_bytes(sender, len(meta), 0)
            expect_bytes(sender, payload_bytes, into[sender].nbytes)
            return _vector_views(into[sender])

        messages = {rank: Message(payload=_vector_views(vector)) for rank, vector in out.items()}
        wait_ns = self._mesh.swap(Kind.VECTOR, messages, into, place, self._clock)
        bytes_out = sum(vector.nbytes for vector in out.values())
        return Traffic(bytes_out, sum(vector.nbytes for vector in into.values()), wait_ns)


def _vector_views(vector: Tensor) -> Sequence[memoryview]:
    return (bytes_of(vector),) if vector.numel() else ()


def _views(data: memoryview) -> Sequence[memoryview]:
    return (data,) if data else ()


def _as_tensor(data: bytes | bytearray) -> Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype=torch.uint8)
