"""Tokens: one random secret per role, and how a client finds its own.

A node stores one token for each role in a file that only its owner can read, and creates the
file when it first starts. Tokens travel in metadata, as `authorization: Bearer …`, and only over
loopback: see security.py.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.coordinator.server.access_policy import Identity, Role
from paceline.core import environ
from paceline.core.disk import SecretError, read_private, write_private

TOKENS_NAME = "tokens.json"
MIN_TOKEN_LENGTH = 20
_SCHEME = "Bearer "
_MAKE_NEW = (
    "give the file that the node made when it first started, or delete it and let a node create a new one"
)
# A client with several tokens in a file uses that of its role, else the most powerful one.
_PREFERENCE = (Role.ADMIN, Role.WORKER, Role.VIEWER, Role.NODE)


@dataclass(frozen=True, slots=True)
class Token:
    """Token that a client sends."""

    text: str = field(repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", _SCHEME + self.text),)


class Tokens:
    """The tokens that a node accepts."""

    def __init__(self, by_role: Mapping[Role, str]) -> None:
        self._by_role = dict(by_role)
        self._identities = tuple(
            ((_SCHEME + text).encode(), Identity(role.value, role)) for role, text in by_role.items()
        )

    def __repr__(self) -> str:
        return f"Tokens({', '.join(role.value for role in self._by_role)})"

    def of(self, role: Role) -> Token:
        return Token(self._by_role[role])

    def identify(self, authorization: str | bytes) -> Identity | None:
        """The identity of the token in this header. Constant-time comparison: timing reveals no token."""
        given = authorization.encode() if isinstance(authorization, str) else authorization
        for header, identity in self._identities:
            if hmac.compare_digest(header, given):
                return identity
        return None


def load_or_create_tokens(path: Path) -> Tokens:
    """The tokens of this file, which is created if missing. Nodes that start at once agree on one file."""
    if not path.exists():
        by_name = {role.value: secrets.token_urlsafe(32) for role in Role}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, (json.dumps(by_name, indent=2) + "\n").encode())
    by_role = _read(path)
    missing = [role.value for role in Role if role not in by_role]
    if missing:
        raise SecretError(f"{path} has no token for {', '.join(missing)}", _MAKE_NEW)
    return Tokens(by_role)


def read_token(path: Path | None = None, *, role: Role = Role.ADMIN) -> Token:
    """A client's own token: from its file if one is given, else from PACELINE_TOKEN.

    The file holds either a token alone, or tokens by role as a node wrote them.
    """
    if path is None:
        from_environment = environ.token()
        if from_environment is None:
            raise SecretError(
                "no token was given, and the coordinator requires one",
                "give --token-file FILE (a node makes ~/.config/paceline/tokens.json) or set PACELINE_TOKEN",
            )
        return Token(_checked(from_environment, "PACELINE_TOKEN"))
    content = read_private(path).strip()
    if not content.startswith(b"{"):
        return Token(_checked(content.decode(errors="replace"), str(path)))
    by_role = _read(path)
    if not by_role:
        raise SecretError(f"{path} holds no token", _MAKE_NEW)
    return Token(next(by_role[r] for r in (role, *_PREFERENCE) if r in by_role))


def _read(path: Path) -> dict[Role, str]:
    try:
        content = json.loads(read_private(path))
    except ValueError:
        # Without the cause: its message may show a part of the file.
        raise SecretError(f"{path} is not JSON", _MAKE_NEW) from None
    if not isinstance(content, dict):
        raise SecretError(f"{path} does not hold tokens by role", _MAKE_NEW)
    names = {role.value for role in Role}
    if not names.issuperset(content):
        raise SecretError(f"{path} has tokens for roles that do not exist", _MAKE_NEW)
    by_role = {Role(name): _checked(text, f"{path} ({name})") for name, text in content.items()}
    if len(set(by_role.values())) < len(by_role):
        raise SecretError(f"{path} has one token for two roles", _MAKE_NEW)
    return by_role


def _checked(text: object, where: str) -> str:
    """Refuse a token that cannot be sent, or could be guessed."""
    if (
        not isinstance(text, str)
        or len(text) < MIN_TOKEN_LENGTH
        or not text.isascii()
        or not text.isprintable()
    ):
        raise SecretError(
            f"the token of {where} is invalid: a token has {MIN_TOKEN_LENGTH} or more plain characters",
            _MAKE_NEW,
        )
    return text
