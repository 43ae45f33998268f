"""Real servers for messages: one that takes what is posted to it, and one that takes mail."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Sink:
    url: str
    got: list[Any] = field(default_factory=list)  # Any: JSON, looked into by tests
    paths: list[str] = field(default_factory=list)
    failures: int = 0  # how often it still answers that it cannot


@contextmanager
def web_sink(failures: int = 0, moved_to: str = "") -> Iterator[Sink]:
    sink = Sink("", failures=failures)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if sink.failures:
                sink.failures -= 1
                self.send_error(503)
                return
            if moved_to:
                self.send_response(302)
                self.send_header("Location", moved_to)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            sink.paths.append(self.path)
            sink.got.append(json.loads(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            sink.got.append("asked")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sink.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield sink
        server.shutdown()
        thread.join()


@contextmanager
def mail_sink() -> Iterator[tuple[int, list[str]]]:
    """(its port, the mails it got)"""
    mails: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    text = b""
                    while (message := self.rfile.readline()) != b".\r\n":
                        text += message
                    mails.append(text.decode())
                self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 fine\r\n")
                if line == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_address[1], mails
        server.shutdown()
        thread.join()
