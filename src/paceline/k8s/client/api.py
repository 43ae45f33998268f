"""Port to a cluster's API server: few verbs over plain dicts; a refusal is an ApiError.

The port is what the rest of the product knows. `kubernetes_api.py` is the one adapter; tests talk through
it to a server of their own over real HTTP.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.core.errors import ExitCode, PacelineError
from paceline.core.redaction import redact
from paceline.k8s.kinds import USER_REVIEW, Kind
from paceline.k8s.objects import mapping, mappings
from paceline.k8s.rbac import Right, advice
from paceline.plan.codec import Json

Manifest = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects at one resource version; a watch from there misses no change."""

    items: tuple[Manifest, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    what: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Manifest
    version: str  # a watch that begins here continues behind this change


class ApiError(PacelineError):
    """The request failed at the server or on the way to it. `status` is HTTP's, 0 without an answer."""

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
    """No answer, or an incomplete one: a retry may help."""

    code = "E611"


class UnauthorizedError(ApiError):
    """Authentication: the credentials are missing, wrong or expired."""

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
    """It exists already, or was changed meanwhile."""

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
        """Changes after `since`, until the timeout. Raises GoneError, UnreachableError."""
        ...

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Strict: a field that the server does not know is an error. Raises ConflictError if it exists."""
        ...

    def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Manifest, *, dry_run: bool = False
    ) -> Manifest:
        """JSON merge patch; a `metadata.resourceVersion` inside makes it fail after a concurrent change."""
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
        """Delete an object with its dependents; an absent one is no error. With a uid or a version (that of
        its metadata), only that object in that state: raises ConflictError for another. `grace_s` 0: at once,
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
    ) -> "ExecResult":
        """A command inside a container, to its end."""
        ...

    def may(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        """True if the server would allow the request. Nothing is changed."""
        ...

    def serves(self, kind: Kind) -> bool:
        """True if the server serves this kind in this version."""
        ...


@dataclass(frozen=True, slots=True)
class ExecResult:
    code: int
    stdout: bytes
    stderr: bytes


# A 403 is ForbiddenError only where authorization refused (a right is missing). A webhook, Pod Security, a
# quota or another admission plugin refuses the object itself: that is RefusedError.

RETRY_HINT = (
    "check that the cluster is up and the network is there (`kubectl cluster-info`), then run it again"
)
_LOG_IN = "log in again: `aws sso login`, then `aws eks update-kubeconfig --name CLUSTER`"


def error_from_status(status: int, answer: Mapping[str, Json], request: str, server: str) -> ApiError:
    """`answer` is the server's Status object, `request` what was requested of it."""
    reason = str(answer.get("reason") or "")
    message = str(answer.get("message") or f"HTTP {status}")
    kind, hint = _meaning(status, answer, message)
    # A webhook may quote the object that it refuses, with all its content.
    return kind(
        f"{server} refuses {request}: {redact(message)}", hint, status=status, reason=reason, answer=answer
    )


# Message of an authorizer. Admission runs after it, so no right is missing if admission refuses.
_RIGHT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
# Limit ranges, service accounts, priority classes: messages that do not name the user's rights.
_OTHER_ADMISSION = re.compile(r'is forbidden: (?!User "|user ")\S')
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request')
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'")
_LESS = "request less, wait for other jobs, or ask for a larger quota"


def _meaning(status: int, answer: Mapping[str, Json], message: str) -> tuple[type[ApiError], str]:
    match status:
        case 401:
            return UnauthorizedError, _LOG_IN
        case 403 if "system:anonymous" in message:  # the credentials were lost on the way
            return UnauthorizedError, _LOG_IN
        case 403:
            return _forbidden(message)
        case 404:
            return (
                NotThereError,
                "check name and namespace; a kind that the server does not serve is not installed",
            )
        case 409:
            return ConflictError, "choose another --name, or delete the existing object"
        case 410:
            return GoneError, "list again"
        case 413:
            return RefusedError, "the object is too large; keep files out of it, for example on a volume"
        case 400 | 405 | 422:
            return RefusedError, _admission_hint(message) or _fields_hint(answer)
        case _:
            return UnreachableError, "the server or one of its webhooks is failing; try again in a minute"


def _forbidden(message: str) -> tuple[type[ApiError], str]:
    """403 has two sources: authorization (a right is missing), and admission (the object is refused)."""
    missing = _RIGHT.search(message)
    if missing is not None:
        namespace = missing["namespace"] or ""
        right = Right(missing["verb"], missing["resource"], missing["group"], is_namespaced=bool(namespace))
        return ForbiddenError, advice([right], namespace, missing["user"])
    by_admission = _admission_hint(message)
    if by_admission:
        return RefusedError, by_admission
    if _OTHER_ADMISSION.search(message):
        return RefusedError, "change what the message names; no permission is missing"
    return ForbiddenError, "ask the cluster's administrator for the permission that the message names"


def _admission_hint(message: str) -> str:
    """Hint for a refusal by a webhook or an admission policy; else empty."""
    webhook = _WEBHOOK.search(message)
    policy = _POLICY.search(message)
    if "exceeded quota" in message:
        return _LESS
    if "failed quota" in message:
        return "add the requests or limits that the quota requires to every container"
    if "violates PodSecurity" in message:
        return "set the securityContext fields that the message names; `paceline job render` sets them"
    if "is being terminated" in message:
        return "the namespace is being deleted: choose another one, or wait and create it again"
    if webhook is not None:
        return f"change what webhook {webhook['name']} names in its message; no permission is missing"
    if policy is not None:
        return f"change what policy {policy['name']} names in its message; no permission is missing"
    return ""


def _fields_hint(answer: Mapping[str, Json]) -> str:
    causes = [
        str(cause.get("field")) for cause in mappings(answer, "details", "causes") if cause.get("field")
    ]
    named = ", ".join(dict.fromkeys(causes)) or "the field that the message names"
    return f"fix {named}; `paceline job validate` checks without a cluster"


def is_allowed(api: Api, right: Right, namespace: str) -> bool:
    kind = Kind("", right.resource, group=right.group, is_namespaced=right.is_namespaced)
    return api.may(right.verb, kind, namespace)


def user_of(api: Api) -> str:
    """The server's name for this user; "" if it has no such API (before Kubernetes 1.28)."""
    review: Manifest = {"apiVersion": USER_REVIEW.api_version, "kind": USER_REVIEW.name, "metadata": {}}
    try:
        return str(mapping(api.create(review), "status", "userInfo").get("username") or "")
    except (ForbiddenError, NotThereError):
        return ""
