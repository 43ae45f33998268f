"""A worker accepts the server of its own run, and no other."""

import socket
import ssl
import threading
from contextlib import suppress

import pytest

from paceline.worker.tls import client_tls_context, server_tls_context


def _exchange(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bytes:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            taken, _ = listener.accept()
            with taken, suppress(ssl.SSLError, OSError), server.wrap_socket(taken, server_side=True) as safe:
                safe.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname()) as plain,
                client.wrap_socket(plain, server_hostname=name) as safe,
            ):
                return safe.recv(5)
        finally:
            thread.join()


def test_the_server_of_the_run_is_known_by_its_certificate() -> None:
    server, certificate = server_tls_context("127.0.0.1")
    assert _exchange(server, client_tls_context(certificate), "127.0.0.1") == b"hello"


def test_another_one_is_not_even_at_the_same_address() -> None:
    _, certificate = server_tls_context("127.0.0.1")
    stranger, _ = server_tls_context("127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        _exchange(stranger, client_tls_context(certificate), "127.0.0.1")
