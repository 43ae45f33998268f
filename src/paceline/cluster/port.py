"""What may be asked of a cluster? Few verbs, over plain dicts; a no of the server is an ApiError.

The port is what the rest of the product knows. `kubernetes_door.py` is the one adapter; tests talk through
it to a server of their own over real HTTP.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.cluster.kinds import Kind
from paceline.errors import ExitCode, PacelineError
from paceline.plan.codec import Json

Manifest = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects as they were at one moment; a watch that begins there misses nothing."""

    items: tuple[Manifest, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    what: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Manifest
    version: str  # a watch that begins here goes on behind this change


class ApiError(PacelineError):
    """The server, or the way to it, said no. `status` is HTTP's, 0 where there was no answer."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(
        self,
        what: str,
        hint: str,
        *,
        status: int = 0,
        reason: str = "",
        answer: Mapping[str, Json] | None = None,
    ) -> None:
        super().__init__(what, hint)
        self.status = status
        self.reason = reason  # Kubernetes' own word: NotFound, Invalid, Expired, …
        self.answer = dict(answer or {})  # the server's Status object


class UnreachableError(ApiError):
    """Nobody answered, or not to the end: asking again may help."""

    code = "E611"


class UnauthorizedError(ApiError):
    """Who are you? The credentials are missing, wrong or too old."""

    code = "E612"


class ForbiddenError(ApiError):
    """Authorization: the user is known and lacks a right."""

    exit_code = ExitCode.NOT_READY
    code = "E613"


class NotThereError(ApiError):
    """No such object, or no such kind of object."""

    exit_code = ExitCode.NOT_READY
    code = "E614"


class ConflictError(ApiError):
    """It exists already, or somebody changed it meanwhile."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E615"


class GoneError(ApiError):
    """A watch began too far back: list again."""

    code = "E616"


class RefusedError(ApiError):
    """The object is not taken: by its schema, a webhook, Pod Security, a quota or another admission rule."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E617"


class Api(Protocol):
    """One cluster, as one user."""

    server: str  # its address, for messages

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest: ...

    def about(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Its metadata alone: what a Secret holds does not travel."""
        ...

    def find(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """All of them; without a namespace, of all namespaces."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, *, since: str, seconds: float = 300
    ) -> Iterator[Change]:
        """Changes behind `since`, until so many seconds have passed. Raises GoneError, UnreachableError."""
        ...

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Strict: a field that the server does not know is an error. Raises ConflictError if it exists."""
        ...

    def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Manifest, *, dry_run: bool = False
    ) -> Manifest:
        """JSON merge patch; a `metadata.resourceVersion` inside makes it fail if somebody was quicker."""
        ...

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        """With all that belongs to it. What is not there is fine. With a uid or a version (that of its
        metadata), only that object in that state: raises ConflictError for another. `grace_s` 0: at once,
        without waiting for the kubelet."""
        ...

    def logs(
        self,
        pod: str,
        namespace: str,
        container: str,
        *,
        since: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> Iterator[str]:
        """Lines `TIMESTAMP TEXT`; with `follow` until the container ends. UnreachableError when cut off.
        `previous`: of the container before it was restarted."""
        ...

    def run(
        self, pod: str, namespace: str, container: str, command: list[str], *, stdin: bytes = b""
    ) -> "Ran":
        """A command inside a container, to its end."""
        ...

    def may(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        """Would the server let us? Nothing is done."""
        ...

    def serves(self, kind: Kind) -> bool:
        """Does the server know this kind in this version?"""
        ...


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    stdout: bytes
    stderr: bytes
