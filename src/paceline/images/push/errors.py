"""Push errors: messages of engines, registries and AWS mapped to error codes.

AWS also answers 403 for an expired token, so that case is matched first.
"""

import re
from typing import ClassVar

from paceline.core.errors import ExitCode, PacelineError
from paceline.core.redaction import redact


class PushError(PacelineError):
    """An image could not be sent."""

    exit_code: ClassVar[ExitCode] = ExitCode.TRAINING_FAILED
    code = "E710"


class LoginExpiredError(PushError):
    """There are no credentials, or they have expired."""

    exit_code = ExitCode.NO_LOGIN
    code = "E711"


class ForbiddenError(PushError):
    """The registry refuses the authenticated user."""

    exit_code = ExitCode.FORBIDDEN
    code = "E712"


class TagTakenError(PushError):
    """Another image has this tag, and tags of this repository do not move."""

    exit_code = ExitCode.TAG_TAKEN
    code = "E713"


class WrongAccountError(PushError):
    """The credentials are of another AWS account than the repository."""

    exit_code = ExitCode.WRONG_ACCOUNT
    code = "E714"


class NoRepositoryError(PushError):
    """There is no such repository."""

    exit_code = ExitCode.NO_REPOSITORY
    code = "E715"


class NoRegistryError(PushError):
    """The registry does not answer."""

    exit_code = ExitCode.UNREACHABLE
    code = "E716"


class DigestError(PushError):
    """The registry's content differs from what was sent."""

    exit_code = ExitCode.GATE_FAILED
    code = "E717"


_ROWS: tuple[tuple[str, type[PushError], str, str], ...] = (
    (
        r"authorization token has expired|ExpiredToken|token.{0,40}expired|RequestExpired",
        LoginExpiredError,
        "the login for {where} has expired",
        "log in again: aws sso login, or a new --password-stdin",
    ),
    (
        r"\b(?:is|as) immutable|tag immutability|ImageTagAlreadyExists|cannot be overwritten",
        TagTakenError,
        "the tag of {where} belongs to another image, and tags of this repository are immutable",
        "use another tag (--tag, --tags git-sha), or a repository with mutable tags",
    ),
    (
        r"name unknown|RepositoryNotFound|repository.{0,80}does not exist|NAME_UNKNOWN",
        NoRepositoryError,
        "there is no repository for {where}",
        "create it: --create (the default), or ask the owner of the account",
    ),
    (
        r"no basic auth credentials|UnrecognizedClient|InvalidClientTokenId|InvalidSignature"
        r"|SignatureDoesNotMatch|unauthorized"
        r"|authentication required|\b401\b|NoCredentials|Unable to locate credentials|PartialCredentials"
        r"|ProfileNotFound|SSOTokenLoad|TokenRetrieval|CredentialRetrieval",
        LoginExpiredError,
        "{where} does not accept the login",
        "log in: podman login, docker login, aws sso login; or --username NAME --password-stdin",
    ),
    (
        r"AccessDenied|not authorized to perform|denied|forbidden|\b403\b",
        ForbiddenError,
        "{where} denied the push",
        "ask for push permissions: ecr:PutImage, ecr:InitiateLayerUpload, ecr:UploadLayerPart, "
        "ecr:CompleteLayerUpload, ecr:BatchCheckLayerAvailability",
    ),
    (
        r"no such host|connection refused|i/o timeout|network is unreachable|EndpointConnectionError"
        r"|Could not connect|Connection refused|timed out|x509|certificate|HTTP response to HTTPS",
        NoRegistryError,
        "{where} cannot be reached",
        "check its name and the network; a registry without TLS needs --insecure (docker: its server's "
        "setting "
        "insecure-registries)",
    ),
)

_FAULT = re.compile(r"error|denied|unknown|invalid|expired", re.IGNORECASE)


def classify_push_error(text: str, where: str) -> PushError:
    """The matching error, with the redacted output."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    faults = [line for line in lines if _FAULT.search(line)]
    reason = redact(" ".join((faults or lines or ["no output"])[-1].split()))[:400]
    # Progress output of an engine has sizes and names that may match a status or a pattern.
    log = "\n".join([*faults, *lines[-1:]])
    for pattern, kind, template, hint in _ROWS:
        if re.search(pattern, log, re.IGNORECASE):
            return kind(f"{template.format(where=where)}: {reason}", hint)
    return PushError(f"{where} did not accept the image: {reason}", "push it manually to see the full output")
