"""Backup parameter server: replicates every order of its primary, and takes over when the primary is lost.

It receives the primary's whole state, then every order. It confirms each order as soon as it has received
it, and carries it out on its own replica: the same arithmetic in the same order, so the same bits. It keeps
the rows that the primary has not yet written to the event log; the surviving server writes them.
"""

import socket
from collections import deque
from collections.abc import Sequence
from enum import Enum

import torch

from paceline.checkpoints.snapshot import from_bytes
from paceline.core.errors import PeerLostError, ProtocolError
from paceline.core.ids import Rank
from paceline.transport import elastic_wire as wire
from paceline.transport import tcp_wire
from paceline.transport.elastic_wire import Frame, MessageKind
from paceline.transport.handshake import Dialer, Member
from paceline.worker.server.membership import ServerDirectory, primary_of
from paceline.worker.server.replication import Row, StateMachine
from paceline.worker.server.state_machine import Order, OrderKind

MAX_TEXT_BYTES = 1 << 20  # bytes; the metrics of one evaluation


class BackupEnd(Enum):
    """How the time as a backup was over."""

    DONE = "done"  # the primary has finished the work
    BROKEN = "broken"  # the primary was lost or has closed the connection
    NEVER_BEGUN = "never begun"  # it never gave us its state


class BackupServer:
    def __init__(
        self, *, name: str, server: StateMachine, membership: ServerDirectory, dialer: Dialer
    ) -> None:
        self._name = name
        self._server = server
        self._membership = membership
        self._dialer = dialer
        self._gradient = torch.empty(server.numel, dtype=server.dtype)
        self.orders = 0  # that our state holds
        self.newest_ns = 0  # the time of the newest
        self._kept: deque[tuple[int, Sequence[Row]]] = deque()

    def rows(self) -> list[Row]:
        """Rows of orders that the primary may not have recorded."""
        return [row for _, rows in self._kept for row in rows]

    def follow(self, primary: Member) -> BackupEnd:
        """Follow the primary until it is done, is lost, or is no longer primary."""

        def dial_no_longer() -> None:
            if not self._is_primary(primary):
                self._dialer.wake()

        try:
            self._membership.when_changed(dial_no_longer)
            connection = wire.connect(
                self._dialer, self._name, self._membership.number, primary, self._is_primary
            )
        except (OSError, PeerLostError):
            return BackupEnd.NEVER_BEGUN

        def leave_the_former() -> None:
            if not self._is_primary(primary):
                tcp_wire.shut(connection)

        with connection:
            self._membership.when_changed(leave_the_former)
            leave_the_former()  # it may have changed before we listened
            try:
                if not self._take_state(connection):
                    return BackupEnd.NEVER_BEGUN
                return self._take_orders(connection)
            finally:
                self._membership.when_changed(lambda: None)

    def _is_primary(self, server: Member) -> bool:
        return primary_of(self._membership.view) == server

    def _take_state(self, connection: socket.socket) -> bool:
        try:
            wire.send(connection, Frame(MessageKind.FOLLOW, incarnation=self._membership.number))
            frame = wire.receive(connection)
            if frame.kind is not MessageKind.STATE:
                raise ProtocolError(f"a primary sent {frame.kind.name}", "see its log")
            state = wire.receive_bytes(connection, frame)
        except (OSError, PeerLostError):
            return False
        self._server.take_whole(from_bytes(bytes(state)))
        self.orders = frame.number
        self.newest_ns = frame.time
        return True

    def _take_orders(self, connection: socket.socket) -> BackupEnd:
        try:
            wire.send(connection, Frame(MessageKind.HAVE, number=self.orders))
            while (frame := wire.receive(connection)).kind is not MessageKind.END:
                if frame.kind is MessageKind.RECORDED:
                    while self._kept and self._kept[0][0] <= frame.number:
                        self._kept.popleft()
                else:
                    self._take_order(connection, frame)
        except (OSError, PeerLostError):
            return BackupEnd.BROKEN
        return BackupEnd.DONE

    def _take_order(self, connection: socket.socket, frame: Frame) -> None:
        if frame.kind is not MessageKind.ORDER or frame.number != self.orders + 1:
            raise ProtocolError(
                f"after order {self.orders} came {frame.kind.name} {frame.number}",
                "see the primary's log",
            )
        gradient = None
        text = ""
        if frame.position == OrderKind.EVALUATED:
            text = wire.receive_bytes(connection, frame, most=MAX_TEXT_BYTES).decode()
        elif frame.payload_bytes:
            wire.receive_payload(connection, frame, tcp_wire.bytes_of(self._gradient))
            gradient = self._gradient
        # Received, so it counts from here on: it is carried out before anything else.
        self.orders = frame.number
        self.newest_ns = frame.time
        try:
            wire.send(connection, Frame(MessageKind.HAVE, number=self.orders))
        finally:
            order = Order(OrderKind(frame.position), Rank(frame.rank), frame.incarnation, frame.time, text)
            _, rows = self._server.order(order, gradient)
            self._kept.append((self.orders, rows))
