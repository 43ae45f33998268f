"""What does the backup of a parameter server do? It has everything that its primary has, and takes over.

It takes the primary's whole state, then every order, confirms each as soon as
it has it, and carries it out on its own replica: the same arithmetic in the
same order, so the same bits. Rows that the primary has not yet written to the
event log are kept, and written by whoever survives.
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
from paceline.transport.elastic_wire import CONNECT_TIMEOUT_S, SIDE, Frame, MessageKind, Primary
from paceline.worker.server.membership import ServerDirectory, primary_of
from paceline.worker.server.replication import Row, StateMachine
from paceline.worker.server.state_machine import Order, OrderKind

MAX_TEXT_BYTES = 1 << 20  # bytes; the metrics of one evaluation


class BackupEnd(Enum):
    """How the time as a backup was over."""

    DONE = "done"  # the primary has finished the work
    BROKEN = "broken"  # it is gone, or does not want us
    NEVER_BEGUN = "never begun"  # it never gave us its state


class BackupServer:
    def __init__(self, *, name: str, server: StateMachine, membership: ServerDirectory, token: bytes) -> None:
        self._name, self._server = name, server
        self._membership, self._token = membership, token
        self._gradient = torch.empty(server.numel, dtype=server.dtype)
        self.orders = 0  # that our state holds
        self._kept: deque[tuple[int, Sequence[Row]]] = deque()

    def rows(self) -> list[Row]:
        """Of orders that the primary may not have recorded."""
        return [row for _, rows in self._kept for row in rows]

    def follow(self, primary: Primary) -> BackupEnd:
        """Until the primary is done, or gone, or not primary any more."""
        try:
            connection = wire.connect(
                primary.host, primary.port, token=self._token, side=SIDE, timeout_s=CONNECT_TIMEOUT_S
            )
        except (OSError, PeerLostError):
            return BackupEnd.NEVER_BEGUN
        connection.settimeout(None)

        def leave_the_former() -> None:
            if primary_of(self._membership.standing) != primary:
                wire.shut(connection)

        with connection:
            self._membership.when_changed(leave_the_former)
            leave_the_former()  # it may have changed before we listened
            try:
                if not self._take_state(connection):
                    return BackupEnd.NEVER_BEGUN
                return self._take_orders(connection)
            finally:
                self._membership.when_changed(lambda: None)

    def _take_state(self, connection: socket.socket) -> bool:
        try:
            asking = Frame(MessageKind.FOLLOW, incarnation=self._membership.number)
            wire.send(connection, asking, memoryview(self._name.encode()))
            frame = wire.receive(connection)
            if frame.say is not MessageKind.STATE:
                raise ProtocolError(f"a primary began with {frame.say.name}", "look at its log")
            state = wire.receive_bytes(connection, frame)
        except (OSError, PeerLostError):
            return False
        self._server.take_whole(from_bytes(bytes(state)))
        self.orders = frame.number
        return True

    def _take_orders(self, connection: socket.socket) -> BackupEnd:
        try:
            wire.send(connection, Frame(MessageKind.HAVE, number=self.orders))
            while (frame := wire.receive(connection)).say is not MessageKind.END:
                if frame.say is MessageKind.RECORDED:
                    while self._kept and self._kept[0][0] <= frame.number:
                        self._kept.popleft()
                else:
                    self._take_order(connection, frame)
        except (OSError, PeerLostError):
            return BackupEnd.BROKEN
        return BackupEnd.DONE

    def _take_order(self, connection: socket.socket, frame: Frame) -> None:
        if frame.say is not MessageKind.ORDER or frame.number != self.orders + 1:
            raise ProtocolError(
                f"after order {self.orders} came {frame.say.name} {frame.number}", "look at the primary's log"
            )
        gradient, text = None, ""
        if frame.position == OrderKind.EVALUATED:
            text = wire.receive_bytes(connection, frame, most=MAX_TEXT_BYTES).decode()
        elif frame.payload_bytes:
            wire.receive_payload(connection, frame, tcp_wire.bytes_of(self._gradient))
            gradient = self._gradient
        # We have it: from here on it counts, so nothing else comes before it is carried out.
        self.orders = frame.number
        try:
            wire.send(connection, Frame(MessageKind.HAVE, number=self.orders))
        finally:
            order = Order(OrderKind(frame.position), Rank(frame.rank), frame.incarnation, frame.time, text)
            _, rows = self._server.order(order, gradient)
            self._kept.append((self.orders, rows))
