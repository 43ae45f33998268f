"""Who answers the proxies of torchft jobs? The leader: it calls the roll, and logs each quorum first.

See state/quorum.py for who is in a quorum, and docs/guides/torchft.md for all of it.
"""

import asyncio
from collections.abc import Callable

import grpc

from paceline.clock import Attention, boottime_s, monotonic_s
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import replies
from paceline.coordinator.shell.feed import TooOldError
from paceline.coordinator.shell.guard import Context
from paceline.coordinator.shell.node import Node, NotLeaderError, TooBusyError
from paceline.coordinator.shell.roll_call import Answer, Request, RollCall
from paceline.coordinator.shell.services import service, unary
from paceline.coordinator.state import lighthouses, refuse
from paceline.coordinator.state.quorum import Issue

LONGEST_MEMBER = 16 << 10  # bytes of what a replica says about itself
LONGEST_NONCE = 64
BUSY_S = 0.05


class RefusedRequestError(Exception):
    """It cannot have an answer."""

    def __init__(self, refusal: pb.Refusal) -> None:
        super().__init__(refusal.what)
        self.refusal = refusal


class LighthouseDesk:
    def __init__(self, node: Node, leader_address: Callable[[], str], attention: Attention) -> None:
        self._node, self._leader_address = node, leader_address
        self._attention = attention  # the keeper looks all the time
        self._term = 0  # the one that we lead in and call rolls for
        self._calls: dict[str, RollCall] = {}
        self._issuing: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        quorum = grpc.unary_unary_rpc_method_handler(
            self._quorum, request_deserializer=pb.AskQuorum.FromString, response_serializer=bytes
        )
        return service(
            "Lighthouses", {"Quorum": quorum, "Beat": unary(self._beat, pb.ReplicaBeats, pb.Heard)}
        )

    async def run(self) -> None:
        """Until it is cancelled: notice when we lead no more, and when a job is over."""
        try:
            while True:
                try:
                    async for changes in self._node.feed.watch(self._node.applied):
                        self._follow(changes)
                except TooOldError:
                    self._give_up()  # proxies ask again, and then we read the state anew
        finally:
            self._give_up()

    # What proxies ask.

    async def _quorum(self, request: pb.AskQuorum, context: Context) -> Answer:
        try:
            self._check(request)
            call = await self._call_of(request.job)
            asked = Request(
                request.requester,
                request.nonce,
                monotonic_s(),
                asyncio.get_running_loop().create_future(),
            )
            self._admit(call, asked)
            try:
                return await asked.answer
            finally:
                call.withdraw(asked)
        except NotLeaderError:
            await replies.not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await replies.refuse(context, error.refusal)

    async def _beat(self, request: pb.ReplicaBeats, context: Context) -> pb.Heard:
        try:
            call = await self._call_of(request.job)
            self._check_room(call, len(request.beats))
        except NotLeaderError:
            await replies.not_leader(context, self._leader_address())
        except RefusedRequestError as error:
            await replies.refuse(context, error.refusal)
        now_s = monotonic_s()
        for beat in request.beats:
            call.heard(beat.replica_id, now_s - beat.age_ms / 1000)
        self._look(call)
        return pb.Heard()

    def _check(self, request: pb.AskQuorum) -> None:
        what, hint = "", ""
        if not request.requester.replica_id or not 0 < len(request.nonce) <= LONGEST_NONCE:
            what, hint = "a quorum was asked for without saying who asks", "send a replica_id and a nonce"
        elif (size := request.requester.ByteSize()) > LONGEST_MEMBER:
            what = f"replica {request.requester.replica_id[:100]!r} describes itself in {size} bytes"
            hint = f"use {LONGEST_MEMBER} at most"
        if what:
            raise RefusedRequestError(refuse.invalid(what, hint))

    def _check_room(self, call: RollCall, more: int) -> None:
        if len(call.heard_s) + more > 2 * lighthouses.MOST_REPLICAS:
            what = f"job {call.job!r} has {len(call.heard_s)} replicas that live"
            raise RefusedRequestError(refuse.not_now(what, "start fewer"))

    def _admit(self, call: RollCall, asked: Request) -> None:
        self._check_room(call, 1)
        earlier = call.ask(asked)
        if earlier is not None and not earlier.answer.done():
            what = f"replica {asked.member.replica_id[:100]!r} has asked again"
            hint = "wait for the answer to its newest request"
            earlier.answer.set_exception(RefusedRequestError(refuse.fenced(what, hint)))
        self._look(call)

    async def _call_of(self, job: str) -> RollCall:
        await self._lead()
        record = self._node.state.lighthouses.get(job)
        if record is None:
            raise RefusedRequestError(lighthouses.not_open(job))
        call = self._calls.get(job)
        if call is None or call.opened != record.lighthouse.opened:
            call = self._calls[job] = RollCall.begun(record, monotonic_s())
        return call

    async def _lead(self) -> None:
        """A new leader decides nothing before all that earlier ones have issued is applied here."""
        raft = self._node.raft
        while not raft.is_leader or self._term != raft.term:
            term = raft.term
            await self._node.agree()
            if raft.is_leader and raft.term == term != self._term:
                self._give_up()
                self._term = term

    # What follows from it.

    def _look(self, call: RollCall) -> None:
        if call.look_again is not None:
            call.look_again.cancel()
            call.look_again = None
        if call.is_issuing or not call.asking or self._calls.get(call.job) is not call:
            return
        now_s = monotonic_s()
        found = call.next(now_s, self._attention.look(now_s, boottime_s()))
        if isinstance(found, Issue):
            call.is_issuing = True
            task = asyncio.create_task(self._issue(call, found.replicas))
            self._issuing.add(task)
            task.add_done_callback(self._issuing.discard)
        elif found.until_s is not None:
            self._look_later(call, found.until_s - now_s)

    def _look_later(self, call: RollCall, wait_s: float) -> None:
        call.look_again = asyncio.get_running_loop().call_later(max(wait_s, 0.001), self._look, call)

    async def _issue(self, call: RollCall, replicas: tuple[str, ...]) -> None:
        try:
            outcome = await self._node.propose(call.command(replicas))
        except NotLeaderError:
            self._end(call, NotLeaderError())  # whether it is in the log is for the next leader to say
            return
        except TooBusyError:
            call.is_issuing = False
            self._look_later(call, BUSY_S)
            return
        call.is_issuing = False
        if outcome.HasField("quorum"):
            call.take(outcome.quorum)
            self._look(call)
        elif outcome.refusal.why == pb.FENCED:
            self._end(call, NotLeaderError())  # another round has come between: proxies ask again
        else:
            self._end(call, RefusedRequestError(outcome.refusal))

    def _follow(self, changes: list[pb.Change]) -> None:
        raft = self._node.raft
        if self._term and (not raft.is_leader or raft.term != self._term):
            self._give_up()
        for change in changes:
            gone = self._calls.get(change.lighthouse.job) if change.HasField("lighthouse") else None
            if gone is not None and change.lighthouse.is_forgotten:
                self._end(gone, RefusedRequestError(lighthouses.not_open(gone.job)))

    def _give_up(self) -> None:
        """We lead no more, or in another term: proxies must ask whoever leads now."""
        self._term = 0
        for call in list(self._calls.values()):
            self._end(call, NotLeaderError())

    def _end(self, call: RollCall, error: Exception) -> None:
        if self._calls.get(call.job) is call:
            del self._calls[call.job]
        if call.look_again is not None:
            call.look_again.cancel()
        for request in call.asking.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        call.asking = {}
