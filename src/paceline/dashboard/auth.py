"""Authentication of requests, decided from the request head before any route runs. Pure.

Listening on loopback alone protects nothing: another site can send requests to it (CSRF), or resolve its own
name to this address (DNS rebinding). So every request must name a known host and carry the token, and a
request that changes something must also come from the dashboard's own page, or from no browser at all.
"""

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from paceline.core.disk import read_private, write_private
from paceline.core.errors import ConfigError, Problem

SAFE_METHODS = ("GET", "HEAD")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    what: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a request; header names in lower case."""

    method: str
    path: str
    token_in_query: str  # empty: none
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    token: str
    names: frozenset[str]  # allowed host names, without a port: a tunnel may use another
    cookie: str  # name of the cookie
    is_readonly: bool = False
    open_paths: frozenset[str] = frozenset()  # need no token; reveal nothing about any run

    def judge(self, head: Head) -> Refusal | None:
        """None: the request is allowed."""
        if head.path in self.open_paths and head.method in SAFE_METHODS:
            return None
        if name_in(head.headers.get("host", "")) not in self.names:
            return Refusal(
                421,
                f"unknown host name {head.headers.get('host', '')!r}",
                "open the URL that `paceline dashboard` printed, or allow this host name with --name",
            )
        if head.method not in SAFE_METHODS and (refusal := self._judge_change(head)) is not None:
            return refusal
        if not self._shows_token(head):
            return Refusal(
                401,
                "the token is missing or wrong",
                "open the whole URL that `paceline dashboard` printed, including ?token=…",
            )
        return None

    def _judge_change(self, head: Head) -> Refusal | None:
        headers = head.headers
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        hint = "send it from the dashboard's own page, or with the header `Authorization: Bearer TOKEN`"
        # Same host and port as the request: a page on another port of this machine is another origin.
        if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
            return Refusal(403, f"the request comes from a page of {origin!r}", hint)
        if site is not None and site != "same-origin":
            return Refusal(403, f"the request comes from another site (Sec-Fetch-Site: {site})", hint)
        if origin is None and site is None and not self.is_token(self._bearer(headers)):
            return Refusal(403, "the request has no Origin header", hint)
        if self.is_readonly:
            return Refusal(403, "this dashboard is read-only", "start it without --readonly")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "the body must be application/json", "set Content-Type: application/json")
        return None

    def _shows_token(self, head: Head) -> bool:
        # A token in the query is accepted only for the page itself; its own requests carry the cookie.
        in_query = head.path == "/" and head.method in SAFE_METHODS and self.is_token(head.token_in_query)
        return (
            in_query
            or self.is_token(self._bearer(head.headers))
            or self.is_token(self._in_cookie(head.headers))
        )

    def is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    @staticmethod
    def _bearer(headers: Mapping[str, str]) -> str:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        return value.strip() if scheme.lower() == "bearer" else ""

    def _in_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if cookie is None else cookie.value

    def set_cookie(self) -> str:
        """Value of the Set-Cookie header with the token."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"


def names_of(host: str, more: Collection[str] = ()) -> frozenset[str]:
    """The host names that requests may use."""
    own = f"[{host.strip('[]')}]" if ":" in host else host
    names = {*LOOPBACK, *more, own} - {"0.0.0.0", "[::]"}
    return frozenset(name.lower() for name in names)


def name_in(host: str) -> str:
    """`localhost:8642` is `localhost`, `[::1]:8642` is `[::1]`."""
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name.lower()


# No inline scripts, no other origins, no framing.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


MIN_TOKEN_LENGTH = 16


def load_or_create_token(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(24)
    if not file.exists():
        write_private(file, f"{secrets.token_urlsafe(24)}\n".encode())
    token = read_private(file).decode().strip()
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or any(c in token for c in ' ;,"\\'):
        raise ConfigError(
            [
                Problem(
                    f"{file} does not hold a valid token: {len(token)} characters",
                    "remove it to create a new token, or write 16 or more letters and digits",
                    "--token-file",
                )
            ]
        )
    return token
