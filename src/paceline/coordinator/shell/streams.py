"""What flows while somebody listens? Changes to watchers; signs of life from workers, orders to them."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import grpc

from paceline.clock import monotonic_s
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import replies
from paceline.coordinator.shell.book import Book
from paceline.coordinator.shell.feed import TooOldError
from paceline.coordinator.shell.guard import Context
from paceline.coordinator.shell.leases import Holder, Leases
from paceline.coordinator.shell.node import Node
from paceline.coordinator.shell.services import service
from paceline.coordinator.state import view

SIGNS_PER_LEASE = 4  # that a leader gives a worker at least


class Streams:
    def __init__(self, node: Node, book: Book, leases: Leases) -> None:
        self._node, self._book, self._leases = node, book, leases

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        live = grpc.stream_stream_rpc_method_handler(
            self._live,
            request_deserializer=pb.Beat.FromString,
            response_serializer=pb.Order.SerializeToString,
        )
        changes = grpc.unary_stream_rpc_method_handler(
            self._changes,
            request_deserializer=pb.WatchRequest.FromString,
            response_serializer=pb.Change.SerializeToString,
        )
        return [service("Members", {"Live": live}), service("Watch", {"Changes": changes})]

    async def _changes(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Change]:
        try:
            async for changes in self._node.feed.watch(request.after or self._node.applied, request.run):
                for change in changes:
                    yield change
        except TooOldError:
            await replies.too_old(context)

    async def _live(self, beats: AsyncIterable[pb.Beat], context: Context) -> AsyncIterator[pb.Order]:
        coming = aiter(beats)
        first = await anext(coming, None)
        if first is None:
            return
        holder = Holder(first.run, first.worker, first.incarnation)
        await self._check_leader(context)
        await self._check_alive(holder, context)
        self._leases.heard(holder, monotonic_s())
        listening = asyncio.create_task(self._listen(coming, holder))
        try:
            yield self._sign()
            async for order in self._orders(first.run, listening, context):
                yield order
            # It hung up, or was given up meanwhile: then it must know.
            await self._check_leader(context)
            await self._check_alive(holder, context)
        except TooOldError:
            await replies.too_old(context)
        finally:
            listening.cancel()
            self._leases.closed(holder, monotonic_s())

    async def _orders(
        self, run: str, listening: "asyncio.Task[None]", context: Context
    ) -> AsyncIterator[pb.Order]:
        """Until the worker is not listened to any more. When there is no news, a sign of life of ours.

        A line that is cut is silent: without it the worker could not tell a quiet leader from a lost one.
        """
        feed = self._node.feed.watch(self._node.applied, run, only_orders=True)
        sign_s = self._leases.lease_s / SIGNS_PER_LEASE
        news = asyncio.ensure_future(anext(feed))
        try:
            while not listening.done():
                await asyncio.wait((news, listening), timeout=sign_s, return_when=asyncio.FIRST_COMPLETED)
                if listening.done() and not news.done():
                    return
                await self._check_leader(context)
                if not news.done():
                    yield self._sign()
                    continue
                for change in news.result():
                    yield pb.Order(change=change)
                news = asyncio.ensure_future(anext(feed))
        finally:
            news.cancel()

    def _sign(self) -> pb.Order:
        return pb.Order(lease_ms=int(self._leases.lease_s * 1000))

    async def _listen(self, beats: AsyncIterator[pb.Beat], holder: Holder) -> None:
        """Until it hangs up, or speaks although its lease has run out."""
        async for _ in beats:
            if not self._leases.holds(holder):
                return
            self._leases.heard(holder, monotonic_s())

    async def _check_leader(self, context: Context) -> None:
        if not self._node.raft.is_leader:
            await replies.not_leader(context, self._book.leader_address())

    async def _check_alive(self, holder: Holder, context: Context) -> None:
        if not view.is_living(self._node.state, holder.run, holder.worker, holder.incarnation):
            what = (
                f"worker {holder.worker} of run {holder.run} does not live as {holder.incarnation} any more"
            )
            await replies.refuse(context, pb.Refusal(why=pb.FENCED, what=what, hint="join again"))
