"""HTTP server of `/metrics` for a run without a dashboard; it follows the run's log.

By default it listens on loopback. There it also refuses requests whose Host header is another
name: a web page could make its own name resolve to this machine (DNS rebinding). Beyond loopback
every request must carry a token.
"""

import hmac
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.config.environment import installed
from paceline.core.clock import monotonic_s
from paceline.core.errors import MissingPackageError, PacelineError, PortError
from paceline.monitoring.view.feed import Feed

FRESH_S = 1.0  # a younger page is served from the cache
SILENT_S = 10.0  # idle connections are closed after this long
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_for_this_machine(host: str) -> bool:
    return host in LOOPBACK


def name_of(header: str) -> str:
    """The name in a Host header, without the port."""
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]


def require_prometheus() -> None:
    if not installed(["prometheus_client"]):
        raise MissingPackageError(
            "metrics need prometheus_client, which cannot be imported here", "pip install 'paceline[watch]'"
        )


class MetricsPage:
    """The text of `/metrics`, rendered at most once a second for all clients."""

    def __init__(self, run_dir: Path) -> None:
        require_prometheus()
        self._feed = Feed(run_dir)
        self._lock = threading.Lock()
        self._text = b""
        self._made_s = -FRESH_S

    def text(self) -> bytes:
        from paceline.monitoring.metrics.prometheus import exposition

        with self._lock:
            if monotonic_s() - self._made_s >= FRESH_S:
                self._feed.read()
                self._text = exposition(self._feed.view, self._feed.now_ns())
                self._made_s = monotonic_s()
            return self._text


class MetricsServer:
    """Serves `/metrics` inside a `with` block."""

    def __init__(self, run_dir: Path, host: str, port: int, *, token: str | None = None) -> None:
        assert token or is_for_this_machine(host), "beyond loopback there is a token"
        page = MetricsPage(run_dir)
        try:
            self._server = ThreadingHTTPServer(
                (host, port), _handler(page, is_guarded=is_for_this_machine(host), token=token)
            )
        except OSError as error:
            raise PortError(
                f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(page: MetricsPage, *, is_guarded: bool, token: str | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_S

        def do_GET(self) -> None:  # the base class names it so
            if is_guarded and name_of(self.headers.get("Host", "")) not in LOOPBACK:
                self.send_error(403, "This machine only")
            elif token is not None and not self._carries(token):
                self.send_error(401, "Authorization: Bearer TOKEN is missing or wrong")
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
            else:
                self._answer()

        def _carries(self, token: str) -> bool:
            scheme, _, value = self.headers.get("Authorization", "").partition(" ")
            return scheme.lower() == "bearer" and hmac.compare_digest(value.encode(), token.encode())

        def _answer(self) -> None:
            from paceline.monitoring.metrics.prometheus import CONTENT_TYPE

            try:
                status = 200
                kind = CONTENT_TYPE
                body = page.text()
            except PacelineError as error:  # a log that cannot be read
                status = 500
                kind = "text/plain; charset=utf-8"
                body = f"{error.what}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # the client did not wait for the response
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # a scrape is no news

    return Handler
