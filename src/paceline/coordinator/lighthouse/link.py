"""How does a proxy stay with the leader, whoever that is? It asks, is sent on, and asks again.

A call that was sent to a node that has stopped leading is taken back, and sent
to the next one with the same bytes: the caller notices nothing but the time.
Only what a caller can do something about ends a call with an error.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from paceline.clock import monotonic_s
from paceline.coordinator import methods

Dial = Callable[[str], grpc.aio.Channel]
Metadata = tuple[tuple[str, str], ...]

FIRST_PAUSE_S, LONGEST_PAUSE_S, SLOWER = 0.01, 0.1, 1.5
MOST_ADDRESSES = 100
MOST_HOPS = 2  # at once: during an election two nodes may each name the other
# What another node, or the same one a moment later, may answer better.
TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,  # a node of an older version, while a cluster is upgraded
    }
)


class Link:
    def __init__(
        self,
        addresses: Sequence[str],
        dial: Dial,
        metadata: Metadata,
        on_leader: Callable[[str], None] = lambda _: None,
    ) -> None:
        assert addresses, "a link needs the address of at least one node"
        self._addresses, self._dial, self._metadata = list(addresses), dial, metadata
        self._on_leader = on_leader
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._next = itertools.count(1)
        self._asked = self._addresses[0]  # whom to ask now
        self._said = ""  # who answered last
        self._moved = asyncio.Event()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def call(
        self, method: str, request: bytes, *, until_s: float | None = None, attempt_s: float | None = None
    ) -> bytes:
        """The leader's answer. One attempt may take `attempt_s`; until then a node counts as alive.

        TimeoutError: it is `until_s`. grpc.aio.AioRpcError: it was refused, and will always be.
        """
        pause_s, hops = FIRST_PAUSE_S, 0
        while True:
            asked, moved = self._asked, self._moved
            limit_s = _sooner(None if until_s is None else until_s - monotonic_s(), attempt_s)
            if until_s is not None and monotonic_s() >= until_s:
                raise TimeoutError
            try:
                answer = await self._attempt(asked, method, request, limit_s, moved)
            except grpc.aio.AioRpcError as error:
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if is_late and attempt_s is None:
                    raise TimeoutError from error  # of the caller's patience; it says nothing of the node
                if not is_late and error.code() not in TRANSIENT:
                    raise
                leader = _leader_in(error)
                self._turn_away(asked, leader)
                hops += 1
                if not leader or leader == asked or hops > MOST_HOPS:
                    hops = 0
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(pause_s * SLOWER, LONGEST_PAUSE_S)
                continue
            if answer is not None:
                self._heard(asked)
                return answer

    async def _attempt(
        self, address: str, method: str, request: bytes, limit_s: float | None, moved: asyncio.Event
    ) -> bytes | None:
        """None: somebody else found out meanwhile that this node does not lead any more."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(address).unary_unary(
            method, None, None
        )
        call = ask(request, metadata=self._metadata, timeout=limit_s)
        moving = asyncio.create_task(moved.wait())
        answering = asyncio.ensure_future(_answer(call))
        try:
            await asyncio.wait((answering, moving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            moving.cancel()
            if not answering.done():
                call.cancel()
                answering.cancel()

    def _turn_away(self, asked: str, leader: str) -> None:
        if self._asked != asked:
            return  # another call has found out meanwhile
        if leader and leader != asked:
            self._move(leader)
        else:
            others = [address for address in self._addresses if address != asked] or [asked]
            self._move(others[next(self._next) % len(others)])

    def _move(self, to: str) -> None:
        if to not in self._addresses and len(self._addresses) < MOST_ADDRESSES:
            self._addresses.append(to)  # a node that was added since we were told
        self._asked = to
        self._moved.set()
        self._moved = asyncio.Event()

    def _heard(self, address: str) -> None:
        if self._said != address:
            self._said = address
            self._on_leader(address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._dial(address)
        return self._channels[address]


async def _answer(call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> bytes:
    return await call


def _sooner(*limits_s: float | None) -> float | None:
    return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)


def _leader_in(error: grpc.aio.AioRpcError) -> str:
    trailing = error.trailing_metadata() or ()
    return next((str(value) for name, value in trailing if name == methods.LEADER), "")
