"""Guard in front of every method: authentication, authorization and rate limits.

The guard checks a call as soon as its headers have arrived. It registers every method with gRPC
as one that reads its own requests, so that no body is read, parsed or kept for a caller that is
refused. A refusal is a gRPC status: what happened, a line break, what to do.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from paceline.coordinator.server.access_policy import (
    Buckets,
    Identity,
    Limits,
    Role,
    describe_roles,
    roles_for,
    short_name,
)
from paceline.coordinator.server.partitions import Partitions
from paceline.core import clock

# Set while a method runs: who called it.
caller: ContextVar[Identity] = ContextVar("caller")

# Set too: what each further request of a stream pays, as a call of its own would.
toll: ContextVar["Toll"] = ContextVar("toll")

# Any: the messages differ from method to method. Quoted: only the type stubs know the parameters.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Found: TypeAlias = "Handler | None"
Toll: TypeAlias = "Callable[[], Refused | None]"
_Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is answered with a status."""

    code: grpc.StatusCode
    what: str
    hint: str

    async def answer(self, context: Context) -> Never:
        await context.abort(self.code, f"{self.what}\n{self.hint}")


class Authenticator(Protocol):
    """How callers prove who they are."""

    def identify(self, context: Context) -> Identity | Refused: ...


class Guard(grpc.aio.ServerInterceptor):
    """In front of every method of a node."""

    def __init__(
        self,
        proof: Authenticator,
        limits: Limits | None = None,
        *,
        now_s: Callable[[], float] = clock.monotonic_s,
        cuts: Partitions | None = None,
    ) -> None:
        limits = limits or Limits()
        self.cuts = cuts or Partitions()
        self._proof, self._now_s = proof, now_s
        self._per_caller = Buckets(limits.per_caller)
        self._overall = Buckets(limits.overall)
        self._failures = Buckets(limits.failures)
        self._guarded: dict[str, tuple[Handler, Handler]] = {}  # by method: as it was, as it is guarded

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Found]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Found:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        kept = self._guarded.get(method)
        if kept is not None and kept[0] is handler:
            return kept[1]
        if handler is None or not roles_for(method):
            return self._unknown(method)
        guarded = _Guarded(self, method, handler).handler()
        self._guarded[method] = (handler, guarded)
        return guarded

    def identify(self, context: Context) -> Identity | Refused:
        """Who is calling; or why no call of theirs is taken now."""
        found = self._proof.identify(context)
        if isinstance(found, Refused):
            return self._failed(_host(context), found)
        # Nodes are not limited: a cluster that is busy must still be able to agree.
        if found.role is Role.NODE:
            return found
        return self.pay((_host(context), found.name)) or found

    def pay(self, who: tuple[str, str]) -> Refused | None:
        """For one request of this host and name."""
        now_s = self._now_s()
        wait_s = self._per_caller.wait_s(who, now_s) or self._overall.wait_s("", now_s)
        return self._too_many(wait_s) if wait_s else None

    def _too_many(self, wait_s: float) -> Refused:
        return Refused(
            _Code.RESOURCE_EXHAUSTED,
            f"too many requests: one caller may send {self._per_caller.rate.per_s:g} in a second, "
            f"all together {self._overall.rate.per_s:g}",
            f"wait {max(wait_s, 0.001):.3f} s and send it again",
        )

    def _failed(self, host: str, refused: Refused) -> Refused:
        # A good token is not locked out by bad ones from the same host: any user there could do that.
        wait_s = self._failures.wait_s(host, self._now_s())
        if not wait_s:
            return refused
        return Refused(
            _Code.RESOURCE_EXHAUSTED,
            "too many calls from this host without a valid token or certificate",
            f"give this client a valid one, and wait {max(wait_s, 0.001):.3f} s",
        )

    def _unknown(self, method: str) -> Handler:
        """For a method that is not here, or that nobody decided about."""

        async def refuse(_: object, context: Context) -> None:
            found = self.identify(context)
            # Strangers are told that they are strangers, whatever they ask for.
            if isinstance(found, Refused):
                await found.answer(context)
            missing = Refused(
                _Code.UNIMPLEMENTED,
                f"this node has no method {method[:100]!r}",
                "run the same version of paceline on both sides",
            )
            await missing.answer(context)

        return grpc.stream_unary_rpc_method_handler(refuse)


class _Guarded:
    """One method behind the guard."""

    def __init__(self, guard: Guard, method: str, handler: Handler) -> None:
        self._guard, self._method, self._inner = guard, method, handler
        self._roles = tuple(roles_for(method))  # found faster than in a set: enums are hashed in Python
        # Any: the messages differ from method to method.
        behaviour: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        self._is_generator = inspect.isasyncgenfunction(behaviour)
        assert self._is_generator or inspect.iscoroutinefunction(behaviour), f"{method} must be async"
        self._behaviour = behaviour
        self._takes_one = not handler.request_streaming

    def handler(self) -> Handler:
        reads, writes = self._read, self._inner.response_serializer
        if self._inner.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._many_answers, reads, writes)
        return grpc.stream_unary_rpc_method_handler(self._one_answer, reads, writes)

    async def _one_answer(self, requests: AsyncIterator[Any], context: Context) -> Any:
        held: Any = _HeldCall(context, self._guard.cuts, self._method)  # Any: as good as a context
        try:
            answer = await self._behaviour(await self._admit(requests, held), held)
            await held.until_heard()
            return answer
        except _UnreadableError:
            await self._unreadable().answer(context)

    async def _many_answers(self, requests: AsyncIterator[Any], context: Context) -> None:
        held: Any = _HeldCall(context, self._guard.cuts, self._method)  # Any: as good as a context
        try:
            request = await self._admit(requests, held)
            if not self._is_generator:
                await self._behaviour(request, held)
                return
            async with aclosing(self._behaviour(request, held)) as answers:
                async for answer in answers:
                    await held.write(answer)
        except _UnreadableError:
            await self._unreadable().answer(context)

    async def _admit(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """What the method is to be called with, once it is known who calls."""
        await context.until_heard()
        found = self._guard.identify(context)
        if isinstance(found, Refused):
            await found.answer(context)
        if found.role not in self._roles:
            await not_allowed(found, self._method).answer(context)
        caller.set(found)
        if not self._takes_one:
            toll.set(partial(self._guard.pay, (_host(context), found.name)))
            return context.heard(requests)
        request = await context.read()
        if request is grpc.aio.EOF:
            raise _UnreadableError
        return request

    def _read(self, data: bytes) -> Any:
        deserializer = self._inner.request_deserializer
        try:
            return data if deserializer is None else deserializer(data)
        except DecodeError as error:
            raise _UnreadableError from error

    def _unreadable(self) -> Refused:
        return Refused(
            _Code.INVALID_ARGUMENT,
            f"the request to {short_name(self._method)} is no message that this node can read",
            "send the message that cluster.proto names for this method",
        )


class _HeldCall:
    """A call's context; while its caller is cut off nothing of the call is heard, and nothing is said."""

    def __init__(self, context: Context, cuts: Partitions, method: str) -> None:
        self._context, self._cuts, self._method = context, cuts, method

    async def until_heard(self) -> None:
        if self._cuts.are_some:  # asked for every message, and nearly always there are none
            await self._cuts.until_heard(self._context.peer(), self._method)

    async def heard(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            await self.until_heard()
            yield request

    async def write(self, answer: Any) -> None:
        await self.until_heard()
        await self._context.write(answer)

    async def abort(self, code: grpc.StatusCode, details: str = "", facts: Any = ()) -> None:
        await self.until_heard()
        await self._context.abort(code, details, facts)

    def __getattr__(self, name: str) -> Any:  # all else is the context's own
        return getattr(self._context, name)


class _UnreadableError(Exception):
    """The bytes of a request are no message."""


def _host(context: Context) -> str:
    """Where a call comes from, without the port: all connections of one host count together."""
    return context.peer().rpartition(":")[0]


def not_allowed(identity: Identity, method: str) -> Refused:
    needed = describe_roles(roles_for(method))
    return Refused(
        _Code.PERMISSION_DENIED,
        f"{identity.name!r} has the role {identity.role.value}, but {short_name(method)} is for {needed}",
        f"use a token or certificate of the role {needed}",
    )
