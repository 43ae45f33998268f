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

# The identity of the caller, set while a method runs.
caller: ContextVar[Identity] = ContextVar("caller")

# Rate limit of each further request of a stream, counted as a separate call. Also set while a method runs.
rate_check: ContextVar["RateCheck"] = ContextVar("rate_check")

# Any: the messages differ from method to method. Quoted: only the type stubs know the parameters.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_MaybeHandler: TypeAlias = "Handler | None"
RateCheck: TypeAlias = "Callable[[], Refused | None]"
_Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is answered with a status."""

    code: grpc.StatusCode
    what: str
    hint: str

    async def abort(self, context: Context) -> Never:
        await context.abort(self.code, f"{self.what}\n{self.hint}")


class Authenticator(Protocol):
    """How callers prove who they are."""

    def identify(self, context: Context) -> Identity | Refused: ...


class Guard(grpc.aio.ServerInterceptor):
    """Interceptor in front of every method of a node."""

    def __init__(
        self,
        proof: Authenticator,
        limits: Limits | None = None,
        *,
        now_s: Callable[[], float] = clock.monotonic_s,
        partitions: Partitions | None = None,
    ) -> None:
        limits = limits or Limits()
        self.partitions = partitions or Partitions()
        self._proof = proof
        self._now_s = now_s
        self._per_caller = Buckets(limits.per_caller)
        self._overall = Buckets(limits.overall)
        self._failures = Buckets(limits.failures)
        self._guarded: dict[str, tuple[Handler, Handler]] = {}  # by method: the handler, and its guarded form

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _MaybeHandler:
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
        """The identity of the caller, or why its call is refused."""
        identity = self._proof.identify(context)
        if isinstance(identity, Refused):
            return self._failed(_host(context), identity)
        # Nodes are not limited: a busy group must still be able to reach consensus.
        if identity.role is Role.NODE:
            return identity
        return self.check_rate((_host(context), identity.name)) or identity

    def check_rate(self, caller: tuple[str, str]) -> Refused | None:
        """Count one request of this host and name against the rate limits."""
        now_s = self._now_s()
        wait_s = self._per_caller.wait_s(caller, now_s) or self._overall.wait_s("", now_s)
        return self._too_many(wait_s) if wait_s else None

    def _too_many(self, wait_s: float) -> Refused:
        return Refused(
            _Code.RESOURCE_EXHAUSTED,
            f"too many requests: one caller may send {self._per_caller.rate.per_s:g} per second, all "
            f"callers together {self._overall.rate.per_s:g}",
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
        """Handler of a method that does not exist or has no row in the access policy."""

        async def refuse(_: object, context: Context) -> None:
            identity = self.identify(context)
            # An unauthenticated caller is refused as such for every method.
            if isinstance(identity, Refused):
                await identity.abort(context)
            missing = Refused(
                _Code.UNIMPLEMENTED,
                f"this node has no method {method[:100]!r}",
                "run the same version of paceline on both sides",
            )
            await missing.abort(context)

        return grpc.stream_unary_rpc_method_handler(refuse)


class _Guarded:
    """One method behind the guard."""

    def __init__(self, guard: Guard, method: str, handler: Handler) -> None:
        self._guard = guard
        self._method = method
        self._inner = handler
        self._roles = tuple(roles_for(method))  # faster than a set: enums are hashed in Python
        # Any: the messages differ from method to method.
        behaviour: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        self._is_generator = inspect.isasyncgenfunction(behaviour)
        assert self._is_generator or inspect.iscoroutinefunction(behaviour), f"{method} must be async"
        self._behaviour = behaviour
        self._takes_one_request = not handler.request_streaming

    def handler(self) -> Handler:
        reads = self._read
        writes = self._inner.response_serializer
        if self._inner.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream_responses, reads, writes)
        return grpc.stream_unary_rpc_method_handler(self._unary_response, reads, writes)

    async def _unary_response(self, requests: AsyncIterator[Any], context: Context) -> Any:
        held: Any = _HeldCall(context, self._guard.partitions, self._method)  # Any: as good as a context
        try:
            response = await self._behaviour(await self._admit(requests, held), held)
            await held.wait_until_healed()
            return response
        except _UnreadableError:
            await self._unreadable().abort(context)

    async def _stream_responses(self, requests: AsyncIterator[Any], context: Context) -> None:
        held: Any = _HeldCall(context, self._guard.partitions, self._method)  # Any: as good as a context
        try:
            request = await self._admit(requests, held)
            if not self._is_generator:
                await self._behaviour(request, held)
                return
            async with aclosing(self._behaviour(request, held)) as responses:
                async for response in responses:
                    await held.write(response)
        except _UnreadableError:
            await self._unreadable().abort(context)

    async def _admit(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Check the caller, then return the argument of the method: a request, or a stream of them."""
        await context.wait_until_healed()
        identity = self._guard.identify(context)
        if isinstance(identity, Refused):
            await identity.abort(context)
        if identity.role not in self._roles:
            await not_allowed(identity, self._method).abort(context)
        caller.set(identity)
        if not self._takes_one_request:
            rate_check.set(partial(self._guard.check_rate, (_host(context), identity.name)))
            return context.receive(requests)
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
            f"the request to {short_name(self._method)} is not a message that this node can parse",
            "send the message that cluster.proto names for this method",
        )


class _HeldCall:
    """A call's context that holds back requests and responses while its caller is partitioned."""

    def __init__(self, context: Context, partitions: Partitions, method: str) -> None:
        self._context = context
        self._partitions = partitions
        self._method = method

    async def wait_until_healed(self) -> None:
        if self._partitions.is_active:  # checked for every message, and nearly always false
            await self._partitions.wait_until_healed(self._context.peer(), self._method)

    async def receive(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            await self.wait_until_healed()
            yield request

    async def write(self, answer: Any) -> None:
        await self.wait_until_healed()
        await self._context.write(answer)

    async def abort(self, code: grpc.StatusCode, details: str = "", facts: Any = ()) -> None:
        await self.wait_until_healed()
        await self._context.abort(code, details, facts)

    def __getattr__(self, name: str) -> Any:  # all else is the context's own
        return getattr(self._context, name)


class _UnreadableError(Exception):
    """The bytes of a request are no message."""


def _host(context: Context) -> str:
    """Address of the caller without the port: all connections of one host count together."""
    return context.peer().rpartition(":")[0]


def not_allowed(identity: Identity, method: str) -> Refused:
    needed = describe_roles(roles_for(method))
    return Refused(
        _Code.PERMISSION_DENIED,
        f"{identity.name!r} has the role {identity.role.value}, but {short_name(method)} is for {needed}",
        f"use a token or certificate of the role {needed}",
    )
