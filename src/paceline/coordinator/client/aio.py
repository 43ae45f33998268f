"""Asyncio client of the coordinator: follows the leader, retries, and applies each write once.

Writes carry a session and a sequence number, so a request whose answer was lost can be sent again
to another leader without being applied twice. A call raises RefusedError when the coordinator
refuses it, and UnreachableError after `patience_s`.

All writes to one node share one stream (`WriteStream`), which costs a quarter of a call per
write. When the stream breaks, all pending writes fail with the same error, and the client opens
another one to the current leader.
"""

import asyncio
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from paceline.coordinator import methods
from paceline.coordinator.methods import WRITES, Read, Write, path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.machine import MAX_LONG_COMMAND_BYTES
from paceline.core.clock import monotonic_s
from paceline.core.errors import ExitCode, PacelineError

# A stream costs a quarter of what a call for each write would. When it breaks,
# whoever waits on it hears so; the client opens another one, to whoever leads.

Metadata = tuple[tuple[str, str], ...]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class WriteStream:
    """One stream of writes to one node. For many tasks of one event loop."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        write = channel.stream_stream(
            methods.path("Sessions", "Write"), pb.Ask.SerializeToString, pb.Answer.FromString
        )
        self.is_over = False
        self._call = write(metadata=metadata)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.Answer]] = {}
        self._sending = asyncio.Lock()  # gRPC takes one message of a stream at a time
        self._listening = asyncio.create_task(self._listen())

    async def ask(self, command: pb.Command, timeout_s: float) -> pb.Outcome:
        """What came of it; AioRpcError as if it had been a call of its own."""
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(pb.Ask(id=number, command=command))
                return _outcome(await waiting)
        except TimeoutError as error:
            what = f"no answer within {timeout_s:g} s"
            raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, what) from error
        finally:
            del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # looked at: the stream may have ended while we were still sending

    async def close(self) -> None:
        self._call.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening

    async def _send(self, ask: pb.Ask) -> None:
        try:
            async with self._sending:
                await self._call.write(ask)
        except asyncio.InvalidStateError as error:  # it ended between two writes
            raise _failure(grpc.StatusCode.UNAVAILABLE, "the stream has ended") from error
        except grpc.aio.AioRpcError as error:
            raise _broken(error) from error

    async def _listen(self) -> None:
        ended: BaseException = _failure(grpc.StatusCode.UNAVAILABLE, "the node ended the stream")
        try:
            while isinstance(answer := await self._call.read(), pb.Answer):
                waiting = self._waiting.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except grpc.aio.AioRpcError as error:
            ended = _broken(error)
        finally:
            self.is_over = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ended)


def _outcome(answer: pb.Answer) -> pb.Outcome:
    if answer.HasField("declined"):
        said = answer.declined
        code = _CODES.get(said.code, grpc.StatusCode.UNKNOWN)
        facts = (((methods.WHY, said.why),) if said.why else ()) + (
            ((methods.LEADER, said.leader),) if said.leader else ()
        )
        raise _failure(code, f"{said.what}\n{said.hint}", facts)
    refusal = answer.outcome.refusal
    if answer.outcome.HasField("refusal"):
        code = methods.CODES.get(refusal.why, grpc.StatusCode.UNKNOWN)
        raise _failure(code, f"{refusal.what}\n{refusal.hint}", ((methods.WHY, pb.Why.Name(refusal.why)),))
    return answer.outcome


def _broken(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """A stream whose connection is cut while something is sent ends with an error of gRPC's own core."""
    if error.code() is grpc.StatusCode.INTERNAL:
        return _failure(grpc.StatusCode.UNAVAILABLE, f"the connection was lost: {error.details()}")
    return error


def _failure(code: grpc.StatusCode, details: str, facts: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*facts), details)


Dial = Callable[[str], grpc.aio.Channel]
Reply = TypeVar("Reply", bound=Message)
Found = TypeVar("Found")

# How long to wait before asking again, at first and in the end: soon enough for an election, and not so often
# that a thousand clients keep those who elect from it.
FIRST_PAUSE_S, MAX_PAUSE_S, BACKOFF = 0.025, 0.3, 1.4
ATTEMPT_S = 2.0  # for one node to answer
MAX_IN_FLIGHT = 256  # writes without an answer; a session keeps no more than 1,000 answers
FAILED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class RefusedError(PacelineError):
    """The cluster agreed that this cannot be."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E502"

    def __init__(self, what: str, hint: str, why: str) -> None:
        super().__init__(what, hint)
        self.why = why  # a name of the proto's Why, or of a gRPC status


class NotAllowedError(RefusedError):
    """The caller has no token or certificate, not a good one, or one of the wrong role."""

    exit_code = ExitCode.NOT_READY
    code = "E503"


class NotNowError(RefusedError):
    """It could be done in another state of the cluster."""

    exit_code = ExitCode.DEGRADED
    code = "E504"


class UnreachableError(PacelineError):
    """No node answered, or none that leads."""

    exit_code = ExitCode.UNREACHABLE
    code = "E501"


class Client:
    """One connection to each node, one session. For many calls at once, from one event loop."""

    def __init__(
        self, addresses: Sequence[str], dial: Dial, *, metadata: Metadata = (), patience_s: float = 10.0
    ) -> None:
        assert addresses, "a client needs the address of at least one node"
        self._addresses, self._dial = list(addresses), dial
        self._metadata, self._patience_s = metadata, patience_s
        self._stack = AsyncExitStack()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._asking: dict[str, WriteStream] = {}  # streams of writes
        self._leader = self._addresses[0]
        self._session: pb.Session | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._open: set[int] = set()  # numbers whose answers we wait for
        self._is_given_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for asking in self._asking.values():
            await asking.close()
        await self._stack.aclose()

    def give_up(self) -> None:
        """The cluster is not waited for any more: calls fail, those under way after their present attempt."""
        self._is_given_up = True

    async def write(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        """`await client.write("Runs.Create", pb.CreateRun(…), pb.Run)`: done once, even if sent twice."""
        write = _WRITES[name]
        assert write.reply is reply, f"{name} answers with {write.reply.__name__}"
        async with self._room:
            found: Reply = await self._write_once(write, request)
            return found

    async def _write_once(self, write: Write, request: Message) -> Any:  # Any: `write` says what it is
        while True:
            session = await self._session_open()
            number = next(self._numbers)
            self._open.add(number)
            command = pb.Command(session=session.session, sequence=number, first_open=min(self._open))
            getattr(command, write.command).CopyFrom(request)
            try:
                _check_size(command)  # a larger one would take others on the stream with it
                outcome = await self._of_leader(partial(self._write, command))
                return getattr(outcome, write.result)
            except RefusedError as error:
                if error.why != pb.Why.Name(pb.NO_SESSION):
                    raise
                # Refused before it was looked at: a new session cannot do it twice.
                if self._session is session:
                    self._session = None
            finally:
                self._open.discard(number)

    async def read(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        read = _READS[name]
        assert read.reply is reply, f"{name} answers with {read.reply.__name__}"
        return await self._ask(path(read.service, read.name), request, reply)

    async def manage(self, name: str, request: Message) -> pb.NodeStatus:
        """Ask the leader for a change of the cluster itself: Add, Remove, StepDown."""
        return await self._ask(path("Nodes", name), request, pb.NodeStatus, attempt_s=self._patience_s)

    async def of_node(self, address: str, name: str, request: Message) -> pb.NodeStatus:
        """Ask one node, whoever leads: Status, Snapshot."""
        return await self._call(address, path("Nodes", name), request, pb.NodeStatus, self._patience_s)

    def watch(self, address: str, request: pb.WatchRequest) -> AsyncIterator[pb.Change]:
        """Changes as one node applies them, until the stream breaks (grpc.aio.AioRpcError)."""
        call = self._channel(address).unary_stream(
            path("Watch", "Changes"), pb.WatchRequest.SerializeToString, pb.Change.FromString
        )
        return aiter(call(request, metadata=self._metadata))

    def live(self, beats: AsyncIterator[pb.Beat]) -> AsyncIterator[pb.Order]:
        """Signs of life to whoever led last; orders back, until the stream breaks (grpc.aio.AioRpcError)."""
        call = self._channel(self._leader).stream_stream(
            path("Members", "Live"), pb.Beat.SerializeToString, pb.Order.FromString
        )
        return aiter(call(beats, metadata=self._metadata))

    async def find_leader(self) -> str:
        """The address of the node that leads, as a majority confirms."""
        await self.read("Runs.List", pb.ListRuns(), pb.RunList)
        return self._leader

    def doubt_leader(self) -> None:
        """Whoever led last is silent: the next question goes to another node first."""
        self._turn_away(self._leader, "", itertools.cycle(self._addresses))

    async def _session_open(self) -> pb.Session:
        async with self._opening:
            if self._session is None:
                opening = pb.OpenSession(client="paceline", nonce=secrets.token_hex(16))
                self._session = await self._ask(path("Sessions", "Open"), opening, pb.Session)
            return self._session

    async def _ask(
        self, method: str, request: Message, reply: type[Reply], *, attempt_s: float = ATTEMPT_S
    ) -> Reply:
        def ask(address: str, timeout_s: float) -> Awaitable[Reply]:
            return self._call(address, method, request, reply, timeout_s)

        return await self._of_leader(ask, attempt_s)

    async def _write(self, command: pb.Command, address: str, timeout_s: float) -> pb.Outcome:
        asking = self._asking.get(address)
        if asking is None or asking.is_over:
            if asking is not None:
                await asking.close()
            asking = self._asking[address] = WriteStream(self._channel(address), self._metadata)
        return await asking.ask(command, timeout_s)

    async def _of_leader(
        self, ask: Callable[[str, float], Awaitable[Found]], attempt_s: float = ATTEMPT_S
    ) -> Found:
        """What the leader answers, wherever it is by now; `ask` takes an address and how long it may take."""
        until_s = monotonic_s() + self._patience_s
        others = itertools.cycle(self._addresses)
        last, pause_s = "nobody was asked", FIRST_PAUSE_S
        while (left_s := until_s - monotonic_s()) > 0 and not self._is_given_up:
            asked = self._leader
            try:
                return await ask(asked, min(attempt_s, left_s))
            except grpc.aio.AioRpcError as error:
                if error.code() not in FAILED:
                    raise refused(error) from error
                last = f"{asked}: {error.details()}".partition("\n")[0]
                self._turn_away(asked, _fact(error, methods.LEADER), others)
                if _fact(error, methods.LEADER) in ("", asked):
                    await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
                    pause_s = min(pause_s * BACKOFF, MAX_PAUSE_S)
        if self._is_given_up:
            raise UnreachableError("the coordinator was given up", "look at it, and ask again")
        raise UnreachableError(
            f"no leader answered within {self._patience_s:g} s (the last word was: {last})",
            f"look at `paceline coordinator status --at {','.join(self._addresses)}`",
        )

    def _turn_away(self, asked: str, leader: str, others: "itertools.cycle[str]") -> None:
        if self._leader != asked:
            return  # another call has found out meanwhile
        if leader and leader != asked:
            self._leader = leader
        else:
            self._leader = next(
                address for address in others if address != asked or len(self._addresses) == 1
            )

    async def _call(
        self, address: str, method: str, request: Message, reply: type[Reply], timeout_s: float
    ) -> Reply:
        call = self._channel(address).unary_unary(method, type(request).SerializeToString, reply.FromString)
        found: Reply = await call(request, metadata=self._metadata, timeout=timeout_s)
        return found

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._dial(address)
            self._stack.push_async_callback(self._channels[address].close)
        return self._channels[address]


_WRITES: dict[str, Write] = {f"{write.service}.{write.name}": write for write in WRITES}
_READS: dict[str, Read] = {f"{read.service}.{read.name}": read for read in methods.READS}


def _check_size(command: pb.Command) -> None:
    if (size := command.ByteSize()) > MAX_LONG_COMMAND_BYTES:
        hint = f"send {MAX_LONG_COMMAND_BYTES} bytes at most"
        raise RefusedError(f"this request has {size} bytes", hint, pb.Why.Name(pb.INVALID))


def _fact(error: grpc.aio.AioRpcError, key: str) -> str:
    return next((str(value) for name, value in error.trailing_metadata() or () if name == key), "")


def refused(error: grpc.aio.AioRpcError) -> RefusedError:
    """What a node answered, in its own words."""
    what, _, hint = (error.details() or "").partition("\n")
    why = _fact(error, methods.WHY) or error.code().name
    kind = RefusedError
    if error.code() in NOT_ALLOWED:
        kind = NotAllowedError
    elif why == pb.Why.Name(pb.NOT_NOW):
        kind = NotNowError
    return kind(what or why, hint or "look at the node's own output", why)
