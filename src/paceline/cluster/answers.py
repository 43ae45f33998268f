"""Errors of the API server: which exception each Status becomes, and its hint.

A 403 is ForbiddenError only where authorization refused (a right is missing). A webhook, Pod Security, a
quota or another admission plugin refuses the object itself: that is RefusedError.
"""

import re
from collections.abc import Mapping

from paceline.cluster.port import (
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    NotThereError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from paceline.kube.reading import mappings
from paceline.kube.rights import Right, advice
from paceline.plan.codec import Json
from paceline.redaction import redact

AGAIN = "check that the cluster is up and the network is there (`kubectl cluster-info`), then run it again"
_LOG_IN = "log in again: `aws sso login`, then `aws eks update-kubeconfig --name CLUSTER`"


def error_of(status: int, answer: Mapping[str, Json], asked: str, server: str) -> ApiError:
    """`answer` is the server's Status object, `asked` what was asked of it."""
    reason, message = str(answer.get("reason") or ""), str(answer.get("message") or f"HTTP {status}")
    kind, hint = _meaning(status, answer, message)
    # A webhook may quote the object that it refuses, with whatever stands in it.
    return kind(
        f"{server} refuses {asked}: {redact(message)}", hint, status=status, reason=reason, answer=answer
    )


# The sentence of an authorizer. Admission comes after it, so no right is missing where admission refuses.
_RIGHT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
# Limit ranges, service accounts, priority classes: whatever does not speak of the user's own rights.
_OTHER_ADMISSION = re.compile(r'is forbidden: (?!User "|user ")\S')
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request')
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'")
_LESS = "ask for less, wait until other jobs end, or have the quota raised"


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
                "check name and namespace; a kind that the server does not know is not installed",
            )
        case 409:
            return ConflictError, "choose another --name, or remove what is there"
        case 410:
            return GoneError, "list again"
        case 413:
            return RefusedError, "the object is too large; keep files out of it, for example on a volume"
        case 400 | 405 | 422:
            return RefusedError, _admission_hint(message) or _fields_hint(answer)
        case _:
            return UnreachableError, "the server or a webhook of it is in trouble; try again in a minute"


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
        return RefusedError, "change what the message names; no right is missing"
    return ForbiddenError, "ask the cluster's administrator for the right that the message names"


def _admission_hint(message: str) -> str:
    """Empty where neither a webhook nor a policy of admission speaks."""
    webhook, policy = _WEBHOOK.search(message), _POLICY.search(message)
    if "exceeded quota" in message:
        return _LESS
    if "failed quota" in message:
        return "add the requests or limits that the quota wants to every container"
    if "violates PodSecurity" in message:
        return "set the securityContext fields that the message names; `paceline job render` sets them"
    if "is being terminated" in message:
        return "the namespace is being deleted: choose another one, or wait and create it again"
    if webhook is not None:
        return f"change what webhook {webhook['name']} names in its message; no right is missing"
    if policy is not None:
        return f"change what policy {policy['name']} names in its message; no right is missing"
    return ""


def _fields_hint(answer: Mapping[str, Json]) -> str:
    causes = [str(one.get("field")) for one in mappings(answer, "details", "causes") if one.get("field")]
    named = ", ".join(dict.fromkeys(causes)) or "the field that the message names"
    return f"fix {named}; `paceline job validate` checks without a cluster"
