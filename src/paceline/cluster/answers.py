"""What does a no of the server mean, and what is to be done about it?"""

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
from paceline.kube.secrets import masked
from paceline.plan.codec import Json

AGAIN = "check that the cluster is up and the network is there (`kubectl cluster-info`), then run it again"
_LOG_IN = "log in again: `aws sso login`, then `aws eks update-kubeconfig --name CLUSTER`"


def error_of(status: int, answer: Mapping[str, Json], asked: str, server: str) -> ApiError:
    """`answer` is the server's Status object, `asked` what was asked of it."""
    reason, message = str(answer.get("reason") or ""), str(answer.get("message") or f"HTTP {status}")
    kind, hint = _meaning(status, message)
    # A webhook may quote the object that it refuses, with whatever stands in it.
    return kind(
        f"{server} refuses {asked}: {masked(message)}", hint, status=status, reason=reason, answer=answer
    )


def _meaning(status: int, message: str) -> tuple[type[ApiError], str]:
    match status:
        case 401:
            return UnauthorizedError, _LOG_IN
        case 403 if "system:anonymous" in message:  # the login was lost on the way, so nobody asked
            return UnauthorizedError, _LOG_IN
        case 403 if "exceeded quota" in message:
            return ForbiddenError, "ask for less, wait until other jobs end, or have the quota raised"
        case 403:
            return ForbiddenError, "ask whoever runs the cluster for the right that the message names"
        case 404:
            return (
                NotThereError,
                "check name and namespace; a kind that the server does not know is not installed",
            )
        case 409:
            return ConflictError, "choose another --name, or remove what is there"
        case 410:
            return GoneError, "list again"
        case 400 | 422:
            return (
                RefusedError,
                "mend the field that the message names; `paceline job validate` checks without a cluster",
            )
        case _:
            return UnreachableError, "the server or a webhook of it is in trouble; try again in a minute"
