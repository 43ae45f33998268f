"""How does a caller prove who it is? By a token in the metadata, or by its certificate."""

import grpc

from paceline.coordinator.shell.guard import Context, Refused
from paceline.coordinator.shell.identity import Identity
from paceline.coordinator.shell.tls import identity_of
from paceline.coordinator.shell.tokens import Tokens

_NO_TOKEN = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "this call carries no token",
    "give this client --token-file FILE or PACELINE_TOKEN; a node makes tokens.json in ~/.config/paceline",
)
_WRONG_TOKEN = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "the token of this call is not one of this node's",
    "take it from the tokens.json that this node uses: --token-file FILE or PACELINE_TOKEN",
)
_NO_ROLE = Refused(
    grpc.StatusCode.UNAUTHENTICATED,
    "the certificate of this caller names no role",
    "make one with `paceline coordinator init-pki --add --client NAME=ROLE`",
)
_MOST_CONNECTIONS = 4096


class TokenProof:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def identify(self, context: Context) -> Identity | Refused:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return self._tokens.identify(value) or _WRONG_TOKEN
        return _NO_TOKEN


class CertificateProof:
    """gRPC has verified the certificate against our authority before a call comes here."""

    def __init__(self) -> None:
        # By connection, and by the names in its certificate: a port may come back with another one.
        self._known: dict[tuple[str, tuple[bytes, ...]], Identity] = {}

    def identify(self, context: Context) -> Identity | Refused:
        # To read all that is known of a certificate takes long: once in a connection is enough.
        connection = (context.peer(), tuple(context.peer_identities() or ()))
        known = self._known.get(connection)
        if known is not None:
            return known
        # Only URIs count: the other names of a certificate may be anything that its holder asked for.
        names = context.auth_context().get("peer_uri", ())
        found = identity_of([name.decode(errors="replace") for name in names])
        if found is None:
            return _NO_ROLE
        if len(self._known) >= _MOST_CONNECTIONS:
            self._known.clear()
        self._known[connection] = found
        return found
