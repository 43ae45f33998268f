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

    def identify(self, context: Context) -> Identity | Refused:
        names = context.auth_context().get("peer_uri", ())
        return identity_of([name.decode(errors="replace") for name in names]) or _NO_ROLE
