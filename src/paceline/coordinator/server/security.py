"""Transport security: loopback with a token, or mutual TLS.

A token travels in plain text, so it never leaves the machine: without TLS an address that is not
loopback is refused, for listening and for calling. With TLS the certificate identifies the
caller, and no token is needed. See docs/guides/coordinator.md.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import assert_never

import grpc

from paceline.coordinator.server import tls, tokens
from paceline.coordinator.server.access_policy import Identity, Limits, Role
from paceline.coordinator.server.guard import Context, Guard, Refused
from paceline.coordinator.server.partitions import Partitions
from paceline.coordinator.server.tls import Certificate, identity_of
from paceline.coordinator.server.tokens import Token, Tokens
from paceline.core.disk import SecretError
from paceline.core.errors import NotReadyError, PortError

_NO_TOKEN = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "this call carries no token",
    "give this client --token-file FILE or PACELINE_TOKEN; a node makes tokens.json in ~/.config/paceline",
)
_WRONG_TOKEN = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "this node does not accept the token of this call",
    "use the token in the tokens.json of this node: --token-file FILE or PACELINE_TOKEN",
)
_NO_ROLE = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "the certificate of this caller names no role",
    "make one with `paceline coordinator init-pki --add --client NAME=ROLE`",
)
_MAX_CONNECTIONS = 4096


class TokenAuthenticator:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def identify(self, context: Context) -> Identity | Refused:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return self._tokens.identify(value) or _WRONG_TOKEN
        return _NO_TOKEN


class CertificateAuthenticator:
    """gRPC has already verified the certificate against our authority."""

    def __init__(self) -> None:
        # Indexed by connection and certificate names: a port may be reused with another certificate.
        self._known: dict[tuple[str, tuple[bytes, ...]], Identity] = {}

    def identify(self, context: Context) -> Identity | Refused:
        # Reading a certificate is slow: once per connection is enough.
        connection = (context.peer(), tuple(context.peer_identities() or ()))
        known = self._known.get(connection)
        if known is not None:
            return known
        # Only URIs count: the holder may have chosen the other names freely.
        names = context.auth_context().get("peer_uri", ())
        identity = identity_of([name.decode(errors="replace") for name in names])
        if identity is None:
            return _NO_ROLE
        if len(self._known) >= _MAX_CONNECTIONS:
            self._known.clear()
        self._known[connection] = identity
        return identity


Options = list[tuple[str, int]]
_ALL_HOSTS = ("0.0.0.0", "::")
LAST_PORT = (1 << 16) - 1
ANSWER_BYTES = 64 << 20  # the largest response that a client accepts


def node_security(
    address: str,
    node: int,
    data_dir: Path,
    *,
    token_file: Path | None = None,
    tls_dir: Path | None = None,
) -> Tokens | Certificate:
    """The credentials of a node: what it requires of callers, and presents to other nodes."""
    if tls_dir is not None:
        return tls.load_node_certificate(tls_dir, node)
    host = host_of(address)
    check_private(address, f"init-pki --out pki --node {node}={'HOST' if host in _ALL_HOSTS else host}")
    return tokens.load_or_create_tokens(token_file or data_dir / tokens.TOKENS_NAME)


def peer_access(security: Tokens | Certificate) -> Token | Certificate:
    """Credential that a node presents to other nodes."""
    return security.of(Role.NODE) if isinstance(security, Tokens) else security


def client_access(
    *,
    token_file: Path | None = None,
    tls_dir: Path | None = None,
    tls_name: str | None = None,
    role: Role = Role.ADMIN,
) -> Token | Certificate:
    """Credential of a client. `role`: the preferred one if the file or folder has several."""
    if tls_dir is not None:
        return tls.load_client_certificate(tls_dir, tls_name, role=role)
    return tokens.read_token(token_file, role=role)


def call_metadata(access: Token | Certificate) -> tuple[tuple[str, str], ...]:
    """Metadata of every call."""
    return access.metadata if isinstance(access, Token) else ()


def open_channel(
    address: str, access: Token | Certificate, options: Options | None = None
) -> grpc.aio.Channel:
    """A channel to a node. Options given here replace those of `channel_options`."""
    chosen = list({**dict(channel_options()), **dict(options or [])}.items())
    match access:
        case Certificate():
            return grpc.aio.secure_channel(address, access.for_client(), chosen)
        case Token():
            check_private(address, "init-pki")
            return grpc.aio.insecure_channel(address, chosen)
        case _:
            assert_never(access)


def new_server(
    security: Tokens | Certificate, limits: Limits | None = None, partitions: Partitions | None = None
) -> grpc.aio.Server:
    """A server with a guard in front of everything that is added to it."""
    limits = limits or Limits()
    proof = TokenAuthenticator(security) if isinstance(security, Tokens) else CertificateAuthenticator()
    return grpc.aio.server(
        interceptors=[Guard(proof, limits, partitions=partitions)],
        options=server_options(limits),
        maximum_concurrent_rpcs=limits.calls_at_once,
    )


def listen(server: grpc.aio.Server, address: str, security: Tokens | Certificate) -> int:
    """Bind, and return the port, which the system chooses for port 0."""
    try:
        if isinstance(security, Certificate):
            port = server.add_secure_port(address, security.for_server())
        else:
            check_private(address, "init-pki")
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise PortError(
            f"cannot listen on {address}",
            "check that the address belongs to this machine and that no other process uses the port",
        ) from error
    return port


def check_private(address: str, command: str) -> None:
    """Refuse an address at which others could read a token in transit."""
    if not is_loopback(host_of(address)):
        raise SecretError(
            f"{address} can be reached from other machines, and needs TLS",
            f"run `paceline coordinator {command}` and give --tls-dir pki, or use an address on 127.0.0.1",
        )


def check_address(address: str, security: Tokens | Certificate) -> None:
    """Refuse an address at which nodes with these credentials cannot call each other."""
    host_of(address)
    if int(address.rpartition(":")[2]) > LAST_PORT or len(address) > 255:
        raise NotReadyError(
            f"{address[:300]!r} is not an address", f"write HOST:PORT, the port up to {LAST_PORT}"
        )
    if isinstance(security, Tokens):
        check_private(address, "init-pki")


def host_of(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise NotReadyError(f"{address!r} is not an address", "write HOST:PORT, for example 127.0.0.1:7400")
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name: it may resolve to another machine later


def server_options(limits: Limits) -> Options:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        # A small compressed message may expand to a huge one: only plain ones are accepted (bit 0).
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Two nodes on one port would each get some of the calls, without an error.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", limits.greeting_ms),
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Clients may send keepalive pings, at most this often.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def channel_options() -> Options:
    return [
        ("grpc.max_receive_message_length", ANSWER_BYTES),
        # A proxy from the environment would receive the token.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Reconnect soon after a node restarts.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
