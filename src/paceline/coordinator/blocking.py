"""How does code without an event loop talk to a cluster? As `Client` does, one call after the other.

    with BlockingClient(["127.0.0.1:7401"], access) as client:
        client.write("Runs.Create", pb.CreateRun(run="a"), pb.Run)

Any thread may call it, several at once too.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.message import Message

from paceline.coordinator.background import Background
from paceline.coordinator.client import Client
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import security
from paceline.coordinator.shell.tls import Certificate
from paceline.coordinator.shell.tokens import Token

Reply = TypeVar("Reply", bound=Message)


class BlockingClient:
    def __init__(
        self, addresses: Sequence[str], access: Token | Certificate, *, patience_s: float = 10.0
    ) -> None:
        self._background = Background()
        self._client = self._background.call(_client(addresses, access, patience_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._background.call(self._client.close())
        finally:
            self._background.close()

    def give_up(self) -> None:
        """See `Client.give_up`."""
        self._client.give_up()

    def write(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        return self._background.call(self._client.write(name, request, reply))

    def read(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        return self._background.call(self._client.read(name, request, reply))

    def manage(self, name: str, request: Message) -> pb.NodeStatus:
        return self._background.call(self._client.manage(name, request))

    def of_node(self, address: str, name: str, request: Message) -> pb.NodeStatus:
        return self._background.call(self._client.of_node(address, name, request))

    def find_leader(self) -> str:
        return self._background.call(self._client.find_leader())


async def _client(addresses: Sequence[str], access: Token | Certificate, patience_s: float) -> Client:
    """Made where it is used: its locks and channels belong to the loop."""
    return Client(
        addresses,
        lambda address: security.open_channel(address, access),
        metadata=security.call_metadata(access),
        patience_s=patience_s,
    )
