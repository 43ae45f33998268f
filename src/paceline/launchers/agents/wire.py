"""Messages between the command of a run and the agents of its hosts: JSON, each with bytes behind it.

A message is a header (length of the JSON, length of the bytes), a JSON object and up to `MAX_BLOB_BYTES`
bytes; a longer file travels in several. Lengths are checked before anything is received, and nothing is
unpickled. The connection is TLS with the certificate of the run's offer; the agent's first message proves by
the offer's secret that the agent may connect. Both sides send something every `TICK_S`, so that a silent
peer is a lost one.

Each side counts silence on its own clock, and only while it runs itself. The agent ends its workers before
the command replaces them: `AGENT_SILENCE_S` is shorter than `COMMAND_SILENCE_S`.
"""

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import suppress

from paceline.core.clock import ActiveTimeout
from paceline.core.errors import ProtocolError
from paceline.plan.codec import Json

Message = dict[str, Json]
TICK_S = 0.5
AGENT_SILENCE_S = 3.0
COMMAND_SILENCE_S = 5.0
HANDSHAKE_S = 10.0
MAX_JSON_BYTES = 2 << 20  # a plan may be long
MAX_HELLO_BYTES = 8 << 10
MAX_BLOB_BYTES = 1 << 20
_HEAD = struct.Struct("!4sII")
_MAGIC = b"PLA1"  # the protocol's version is in its name


class SilentError(ConnectionError):
    """The peer sent nothing for too long."""


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ticking: asyncio.Task[None] | None = None

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Queue a message, see `drain`; dropped once the connection is closed."""
        if self._writer.is_closing():  # asyncio's TLS raises AttributeError then
            return
        text = json.dumps(message, separators=(",", ":")).encode()
        self._writer.write(_HEAD.pack(_MAGIC, len(text), len(blob)) + text + blob)

    async def drain(self) -> None:
        """Wait until the connection accepts more."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise _as_connection_error(error) from error

    async def receive(self, silence_s: float, *, max_bytes: int = MAX_JSON_BYTES) -> tuple[Message, bytes]:
        """The next message; ConnectionError when the peer has ended, or is silent for this long."""
        try:
            magic, text_bytes, blob_bytes = _HEAD.unpack(await self._read(_HEAD.size, silence_s))
            if magic != _MAGIC or text_bytes > max_bytes or blob_bytes > MAX_BLOB_BYTES:
                raise ProtocolError(
                    f"a message began with {magic!r} and announced {text_bytes} and {blob_bytes} bytes",
                    "run the same version of paceline on all hosts",
                )
            message = json.loads(await self._read(text_bytes, silence_s))
            blob = await self._read(blob_bytes, silence_s)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the connection was closed") from error
        except OSError as error:  # of TLS, or the network reports that the host is away
            raise _as_connection_error(error) from error
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a message is not JSON", "look for who connects to this port") from error
        if not isinstance(message, dict):
            raise ProtocolError("a message is not an object", "run the same version of paceline on all hosts")
        return message, blob

    async def _read(self, size: int, silence_s: float) -> bytes:
        """Each byte that arrives is a sign of life: a large message over a slow link is no silence."""
        data = bytearray()
        while len(data) < size:
            part = await self._read_some(size - len(data), silence_s)
            if not part:
                raise asyncio.IncompleteReadError(bytes(data), size)
            data += part
        return bytes(data)

    async def _read_some(self, most: int, silence_s: float) -> bytes:
        reading = asyncio.ensure_future(self._reader.read(most))
        patience = ActiveTimeout(silence_s)
        try:
            while wait_s := patience.next_s():
                await asyncio.wait((reading,), timeout=wait_s)
                if reading.done():
                    return reading.result()
        finally:
            reading.cancel()
        raise SilentError(f"it was silent for {silence_s:g} s")

    def keep_alive(self, message: Callable[[], Message]) -> None:
        """Send this every `TICK_S` until `close`."""
        self._ticking = asyncio.create_task(self._tick(message))

    async def _tick(self, message: Callable[[], Message]) -> None:
        while not self._writer.is_closing():
            self.send(message())
            await asyncio.sleep(TICK_S)

    def close(self) -> None:
        """Send what is queued, then hang up."""
        self._stop_ticking()
        self._writer.close()

    def abort(self) -> None:
        """Hang up now: to a peer that does not receive, `close` would take 30 seconds."""
        self._stop_ticking()
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is closed, after `abort` or `close`."""
        with suppress(OSError):  # how it ended is known already
            await self._writer.wait_closed()

    def _stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()


def _as_connection_error(error: OSError) -> ConnectionError:
    return error if isinstance(error, ConnectionError) else ConnectionError(error.strerror or str(error))
