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
        self._pending: dict[int, asyncio.Future[pb.Answer]] = {}
        self._send_lock = asyncio.Lock()  # gRPC takes one message of a stream at a time
        self._receiver = asyncio.create_task(self._receive())

    async def ask(self, command: pb.Command, timeout_s: float) -> pb.Outcome:
        """The outcome of a command; raises AioRpcError as a unary call would."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(pb.Ask(id=number, command=command))
                return _outcome_or_raise(await answer)
        except TimeoutError as error:
            message = f"no response within {timeout_s:g} s"
            raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, message) from error
        finally:
            del self._pending[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved: the stream may have ended while the request was sent

    async def close(self) -> None:
        self._call.cancel()
        with suppress(asyncio.CancelledError):
            await self._receiver

    async def _send(self, ask: pb.Ask) -> None:
        try:
            async with self._send_lock:
                await self._call.write(ask)
        except asyncio.InvalidStateError as error:  # it ended between two writes
            raise _failure(grpc.StatusCode.UNAVAILABLE, "the stream has ended") from error
        except grpc.aio.AioRpcError as error:
            raise _as_unavailable(error) from error

    async def _receive(self) -> None:
        ended: BaseException = _failure(grpc.StatusCode.UNAVAILABLE, "the node ended the stream")
        try:
            while isinstance(answer := await self._call.read(), pb.Answer):
                pending = self._pending.get(answer.id)
                if pending is not None and not pending.done():
                    pending.set_result(answer)
        except grpc.aio.AioRpcError as error:
            ended = _as_unavailable(error)
        finally:
            self.is_over = True
            for pending in self._pending.values():
                if not pending.done():
                    pending.set_exception(ended)


def _outcome_or_raise(answer: pb.Answer) -> pb.Outcome:
    if answer.HasField("declined"):
        declined = answer.declined
        code = _CODES.get(declined.code, grpc.StatusCode.UNKNOWN)
        metadata = (((methods.WHY, declined.why),) if declined.why else ()) + (
            ((methods.LEADER, declined.leader),) if declined.leader else ()
        )
        raise _failure(code, f"{declined.what}\n{declined.hint}", metadata)
    refusal = answer.outcome.refusal
    if answer.outcome.HasField("refusal"):
        code = methods.CODES.get(refusal.why, grpc.StatusCode.UNKNOWN)
        raise _failure(code, f"{refusal.what}\n{refusal.hint}", ((methods.WHY, pb.Why.Name(refusal.why)),))
    return answer.outcome


def _as_unavailable(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """A connection that is lost during a write ends the stream with INTERNAL; report it as UNAVAILABLE."""
    if error.code() is grpc.StatusCode.INTERNAL:
        return _failure(grpc.StatusCode.UNAVAILABLE, f"the connection was lost: {error.details()}")
    return error


def _failure(code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details)


Dial = Callable[[str], grpc.aio.Channel]
Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")

# Backoff between attempts: short enough for an election, and long enough that a thousand clients do not
# disturb it.
FIRST_PAUSE_S = 0.025
MAX_PAUSE_S = 0.3
BACKOFF = 1.4
ATTEMPT_S = 2.0  # timeout for one node to respond
MAX_IN_FLIGHT = 256  # writes without an answer; a session keeps no more than 1,000 answers
FAILED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
NOT_ALLOWED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class RefusedError(PacelineError):
    """The coordinator refused the request."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E502"

    def __init__(self, message: str, hint: str, why: str) -> None:
        super().__init__(message, hint)
        self.why = why  # a name of the proto's Why, or of a gRPC status


class NotAllowedError(RefusedError):
    """The caller has no token or certificate, not a good one, or one of the wrong role."""

    exit_code = ExitCode.NOT_READY
    code = "E503"


class NotNowError(RefusedError):
    """The request is valid, but not in the present state."""

    exit_code = ExitCode.DEGRADED
    code = "E504"


class UnreachableError(PacelineError):
    """No node answered, or none that leads."""

    exit_code = ExitCode.UNREACHABLE
    code = "E501"


class UntrustedError(UnreachableError):
    """The TLS handshake with every node failed: its certificate is not trusted, or it has none."""

    exit_code = ExitCode.NOT_READY
    code = "E511"


class Client:
    """One connection to each node, one session. For many calls at once, from one event loop."""

    def __init__(
        self, addresses: Sequence[str], dial: Dial, *, metadata: Metadata = (), patience_s: float = 10.0
    ) -> None:
        assert addresses, "a client needs the address of at least one node"
        self._addresses = list(addresses)
        self._dial = dial
        self._metadata = metadata
        self._patience_s = patience_s
        self._stack = AsyncExitStack()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._write_streams: dict[str, WriteStream] = {}  # indexed by address
        self._leader = self._addresses[0]
        self._session: pb.Session | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._unanswered: set[int] = set()  # sequence numbers without an answer
        self._is_given_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for stream in self._write_streams.values():
            await stream.close()
        await self._stack.aclose()

    def give_up(self) -> None:
        """Stop waiting for the coordinator: new calls fail, and open ones after their present attempt."""
        self._is_given_up = True

    async def write(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        """`await client.write("Runs.Create", pb.CreateRun(…), pb.Run)`: done once, even if sent twice."""
        write = _WRITES[name]
        assert write.reply is reply, f"{name} answers with {write.reply.__name__}"
        async with self._in_flight:
            result: Reply = await self._write_once(write, request)
            return result

    async def _write_once(self, write: Write, request: Message) -> Any:  # Any: the type depends on `write`
        while True:
            session = await self._open_session()
            number = next(self._numbers)
            self._unanswered.add(number)
            command = pb.Command(session=session.session, sequence=number, first_open=min(self._unanswered))
            getattr(command, write.command).CopyFrom(request)
            try:
                _check_size(command)  # a larger one would break the stream for other commands
                outcome = await self._call_leader(partial(self._write, command))
                return getattr(outcome, write.result)
            except RefusedError as error:
                if error.why != pb.Why.Name(pb.NO_SESSION):
                    raise
                # Refused before it was applied: a new session cannot apply it twice.
                if self._session is session:
                    self._session = None
            finally:
                self._unanswered.discard(number)

    async def read(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        read = _READS[name]
        assert read.reply is reply, f"{name} answers with {read.reply.__name__}"
        return await self._call_method(path(read.service, read.name), request, reply)

    async def manage(self, name: str, request: Message) -> pb.NodeStatus:
        """Change the membership or the leader: Add, Remove, StepDown."""
        return await self._call_method(
            path("Nodes", name), request, pb.NodeStatus, attempt_s=self._patience_s
        )

    async def of_node(self, address: str, name: str, request: Message) -> pb.NodeStatus:
        """Call one node, leader or not: Status, Snapshot."""
        return await self._call(address, path("Nodes", name), request, pb.NodeStatus, self._patience_s)

    def watch(self, address: str, request: pb.WatchRequest) -> AsyncIterator[pb.Change]:
        """Changes as one node applies them, until the stream breaks (grpc.aio.AioRpcError)."""
        call = self._channel(address).unary_stream(
            path("Watch", "Changes"), pb.WatchRequest.SerializeToString, pb.Change.FromString
        )
        return aiter(call(request, metadata=self._metadata))

    def live(self, beats: AsyncIterator[pb.Beat]) -> AsyncIterator[pb.Order]:
        """Heartbeats to the last known leader, orders back, until the stream breaks (AioRpcError)."""
        call = self._channel(self._leader).stream_stream(
            path("Members", "Live"), pb.Beat.SerializeToString, pb.Order.FromString
        )
        return aiter(call(beats, metadata=self._metadata))

    async def find_leader(self) -> str:
        """The address of the node that leads, as a majority confirms."""
        await self.read("Runs.List", pb.ListRuns(), pb.RunList)
        return self._leader

    def doubt_leader(self) -> None:
        """The last known leader is silent: the next call goes to another node first."""
        self._switch_leader(self._leader, "", itertools.cycle(self._addresses))

    async def _open_session(self) -> pb.Session:
        async with self._opening:
            if self._session is None:
                opening = pb.OpenSession(client="paceline", nonce=secrets.token_hex(16))
                self._session = await self._call_method(path("Sessions", "Open"), opening, pb.Session)
            return self._session

    async def _call_method(
        self, method: str, request: Message, reply: type[Reply], *, attempt_s: float = ATTEMPT_S
    ) -> Reply:
        def call(address: str, timeout_s: float) -> Awaitable[Reply]:
            return self._call(address, method, request, reply, timeout_s)

        return await self._call_leader(call, attempt_s)

    async def _write(self, command: pb.Command, address: str, timeout_s: float) -> pb.Outcome:
        stream = self._write_streams.get(address)
        if stream is None or stream.is_over:
            if stream is not None:
                await stream.close()
            stream = self._write_streams[address] = WriteStream(self._channel(address), self._metadata)
        return await stream.ask(command, timeout_s)

    async def _call_leader(
        self, call: Callable[[str, float], Awaitable[Result]], attempt_s: float = ATTEMPT_S
    ) -> Result:
        """The result of `call` at the current leader; `call` takes an address and a timeout."""
        until_s = monotonic_s() + self._patience_s
        fallbacks = itertools.cycle(self._addresses)
        last = "no node was contacted"
        untrusted: dict[str, UntrustedError] = {}  # by address: nodes whose last handshake failed
        pause_s = FIRST_PAUSE_S
        while (left_s := until_s - monotonic_s()) > 0 and not self._is_given_up:
            address = self._leader
            try:
                return await call(address, min(attempt_s, left_s))
            except grpc.aio.AioRpcError as error:
                if error.code() not in FAILED:
                    raise refused(error) from error
                last = f"{address}: {error.details()}".partition("\n")[0]
                untrusted.pop(address, None)
                if (handshake := handshake_error(address, error.details() or "")) is not None:
                    untrusted[address] = handshake
                    if untrusted.keys() >= set(self._addresses):  # no retry would help
                        raise handshake from error
                self._switch_leader(address, _trailing(error, methods.LEADER), fallbacks)
                if _trailing(error, methods.LEADER) in ("", address):
                    await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
                    pause_s = min(pause_s * BACKOFF, MAX_PAUSE_S)
        if self._is_given_up:
            raise UnreachableError("the coordinator is unreachable", "check it, then retry")
        hint = f"check the nodes: `paceline coordinator status --at {','.join(self._addresses)}`"
        if last.endswith("Socket closed"):
            hint += "; a node closes connections of clients without a certificate that it trusts (--tls-dir)"
        raise UnreachableError(
            f"no leader responded within {self._patience_s:g} s (last error: {last})", hint
        )

    def _switch_leader(self, failed: str, leader: str, fallbacks: "itertools.cycle[str]") -> None:
        if self._leader != failed:
            return  # another call has already switched
        if leader and leader != failed:
            self._leader = leader
        else:
            self._leader = next(
                address for address in fallbacks if address != failed or len(self._addresses) == 1
            )

    async def _call(
        self, address: str, method: str, request: Message, reply: type[Reply], timeout_s: float
    ) -> Reply:
        call = self._channel(address).unary_unary(method, type(request).SerializeToString, reply.FromString)
        response: Reply = await call(request, metadata=self._metadata, timeout=timeout_s)
        return response

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


def handshake_error(address: str, details: str) -> UntrustedError | None:
    """What a failed TLS handshake means, by gRPC's message; None: it was something else."""
    if "certificate has expired" in details:
        return UntrustedError(
            f"the certificate of the node at {address} has expired",
            "delete it and its key, make a new one with `paceline coordinator init-pki --add --node N=HOST`, "
            "and restart the node with it",
        )
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return UntrustedError(
            f"the certificate of the node at {address} was not issued by the authority in ca.crt",
            "check the address, and use the ca.crt of that coordinator, with a certificate of that authority",
        )
    if "Hostname Verification" in details:
        return UntrustedError(
            f"the certificate of the node at {address} is for another address",
            "use the address for which it was made, or make one for both: "
            "`paceline coordinator init-pki --add --node N=HOST,HOST`",
        )
    if "WRONG_VERSION_NUMBER" in details:
        return UntrustedError(
            f"the node at {address} does not use TLS",
            "give --token-file FILE instead of --tls-dir and PACELINE_TLS_DIR, or start the node with "
            "--tls-dir",
        )
    return None


def _trailing(error: grpc.aio.AioRpcError, key: str) -> str:
    return next((str(value) for name, value in error.trailing_metadata() or () if name == key), "")


def refused(error: grpc.aio.AioRpcError) -> RefusedError:
    """The error of a refused call, with the message of the node."""
    message, _, hint = (error.details() or "").partition("\n")
    why = _trailing(error, methods.WHY) or error.code().name
    kind = RefusedError
    if error.code() in NOT_ALLOWED:
        kind = NotAllowedError
    elif why == pb.Why.Name(pb.NOT_NOW):
        kind = NotNowError
    return kind(message or why, hint or "see the node's output", why)
