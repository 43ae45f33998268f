"""TLS socket that one thread reads while another writes.

OpenSSL allows one call at a time for a connection, and a blocking read would keep a writer out for as long as
nothing arrives. From `share` on this socket never blocks inside of OpenSSL: a call that would block returns,
and its thread waits for the kernel without the lock. Its user has one thread that reads, and lets whole
messages of several writers not interleave.
"""

import select
import ssl
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class DuplexTls(ssl.SSLSocket):
    """Set a context's `sslsocket_class` to it, and call `share` after the handshake."""

    send_timeout_s: float | None = None  # for the other side to receive anything, before it counts as lost
    _calls: "threading.Lock | None" = None  # into OpenSSL; None: this connection is not shared yet

    def share(self) -> None:
        self.setblocking(False)
        self._calls = threading.Lock()

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int | None = None, flags: int = 0) -> int:
        if self._calls is None:
            return super().recv_into(buffer, nbytes, flags)
        while True:
            try:
                with self._calls:
                    return super().recv_into(buffer, nbytes)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, None)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)

    def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        if self._calls is None:
            return super().send(data, flags)
        while True:
            try:
                with self._calls:
                    return super().send(data)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, self.send_timeout_s)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, self.send_timeout_s)

    def send_now(self, data: bytes) -> int:
        """Send what the kernel has room for, without waiting; BlockingIOError: it has no room."""
        assert self._calls is not None, "share() comes first"
        if not self._is_ready(select.POLLOUT, 0.0):
            raise BlockingIOError
        try:
            with self._calls:
                return super().send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0  # OpenSSL may have sent a part

    def _wait(self, event: int, timeout_s: float | None) -> None:
        if not self._is_ready(event, timeout_s):
            raise TimeoutError(f"the other side has received nothing for {timeout_s:g} s")

    def _is_ready(self, event: int, timeout_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self, event)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
