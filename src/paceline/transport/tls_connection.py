"""TLS connection that moves large parts at once: `TlsConnection`.

Python's `SSLSocket` reads one record of 16 kB per call, with two system calls each. Here the TLS engine works
on memory: ciphertext is read from and written to the kernel in parts of `PART_BYTES`, and one call decrypts
all records that have arrived. The protocol, the certificates and their verification are those of the context.

A blocking connection sends everything before `send` returns. A non-blocking one may keep ciphertext that the
kernel did not take: `unsent` is true, and `flush` continues. Used by one thread at a time.
"""

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress

PART_BYTES = 1 << 18  # plaintext that is encrypted at once, and ciphertext that is read at once


class TlsConnection(socket.socket):
    """Takes over a connected socket; `do_handshake` comes first."""

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, *, server_hostname: str | None = None
    ) -> None:
        """`server_hostname`: of the peer, which its certificate must name; None: this is the server's end."""
        timeout_s = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(timeout_s)
        self._arrived = ssl.MemoryBIO()
        self._encrypted = ssl.MemoryBIO()
        self._engine = context.wrap_bio(
            self._arrived,
            self._encrypted,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._unsent = memoryview(b"")
        self._part = memoryview(bytearray(PART_BYTES))

    @property
    def unsent(self) -> bool:
        """Whether there is ciphertext that the kernel did not take."""
        return bool(self._unsent) or self._encrypted.pending > 0

    def pending(self) -> int:
        """Bytes that were read from the kernel, and are not yet returned."""
        return self._engine.pending() + self._arrived.pending

    def do_handshake(self) -> None:
        while True:
            try:
                self._engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush()
                self._read()
            except ssl.SSLError:
                with suppress(OSError):  # the alert names the reason to the peer, if it is still there
                    self.flush()
                raise
        self.flush()

    def flush(self) -> None:
        """Send the rest of the ciphertext. BlockingIOError if a non-blocking connection takes no more."""
        while self.unsent:
            if not self._unsent:
                self._unsent = memoryview(self._encrypted.read())
            self._unsent = self._unsent[super().send(self._unsent) :]

    def send(self, data: memoryview | bytes, flags: int = 0, /) -> int:  # type: ignore[override]  # no buffers
        """Encrypt a part, and send what the kernel takes of it; the number of plain bytes of the part."""
        self.flush()
        part = memoryview(data)[:PART_BYTES]
        written = self._engine.write(part)
        assert written == len(part), "memory takes everything"
        with suppress(BlockingIOError):
            self.flush()
        return written

    def sendall(self, data: memoryview | bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest) :]

    def sendmsg(self, buffers: Iterable[memoryview | bytes], *_: object) -> int:  # type: ignore[override]
        """The first part that is not empty: a caller repeats the call for the rest."""
        first = next((buffer for buffer in buffers if buffer), b"")
        return self.send(first)

    def recv_into(self, buffer: memoryview | bytearray, nbytes: int = 0, flags: int = 0, /) -> int:  # type: ignore[override]
        """Everything that has arrived and fits, at least one byte; 0: the peer has closed the connection."""
        place = memoryview(buffer)
        done = 0
        while done < len(place):
            try:
                count = self._engine.read(len(place) - done, place[done:])  # type: ignore[arg-type]  # any buffer
            except ssl.SSLWantReadError:
                if done:
                    break
                self._read()
                continue
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                break
            if not count:
                break
            done += count
        return done

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        place = bytearray(bufsize)
        return bytes(place[: self.recv_into(place)])

    def _read(self) -> None:
        """Some ciphertext from the kernel. BlockingIOError if there is none yet."""
        count = super().recv_into(self._part)
        if count:
            self._arrived.write(self._part[:count])
        else:
            self._arrived.write_eof()
