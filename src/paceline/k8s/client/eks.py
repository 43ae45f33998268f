"""EKS client over boto3, with the user's usual credentials."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from paceline.core.errors import NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.client.api import UnreachableError

_HINT = (
    "log in (`aws sso login`), name a region (--region), and have eks:ListClusters and eks:DescribeCluster"
)
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_NOT_THERE = ("ResourceNotFoundException", "ResourceNotFound")
_ASKED = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"})
AwsResponse = dict[str, Any]  # Any: boto3 has no types


class AwsError(NotReadyError):
    """Amazon has refused it, or could not do it."""

    code = "E622"


class DeniedError(AwsError):
    """The user may not ask that."""

    code = "E623"


class AbsentError(AwsError):
    """There is no such thing."""

    code = "E624"


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
    name: str
    region: str
    status: str  # ACTIVE when it can be used
    version: str
    server: str
    issues: tuple[str, ...]  # what EKS itself complains of
    profile: str = ""  # of the AWS settings; empty: the usual one

    @property
    def command(self) -> str:
        """Makes it one of the contexts."""
        more = f" --profile {self.profile}" if self.profile else ""
        return f"aws eks update-kubeconfig --name {self.name} --region {self.region}{more}"


class Aws:
    """One region, as one user."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        self._clients: AwsResponse = {}
        try:
            self._session = boto3.Session(region_name=region, profile_name=profile)
            self.region = str(self.client("eks").meta.region_name)
        except BotoCoreError as error:
            raise UnreachableError(f"Amazon cannot be asked: {error}", _HINT) from error

    def client(self, service: str) -> Any:  # Any: boto3 has no types
        if service not in self._clients:
            self._clients[service] = self._session.client(service, config=_ASKED)
        return self._clients[service]

    def ask(self, service: str, operation: str, **what: object) -> AwsResponse:
        """Raises DeniedError, AbsentError, AwsError, UnreachableError."""
        with _errors(service, operation):
            answer: AwsResponse = getattr(self.client(service), operation)(**what)
            return answer

    def pages(self, service: str, operation: str, part: str, **what: object) -> list[Any]:
        """All of a list, however many pages it has."""
        with _errors(service, operation):
            pages = self.client(service).get_paginator(operation).paginate(**what)
            return [one for page in pages for one in page.get(part, [])]

    def wait_for_addon(self, cluster: str, name: str, waiter: str) -> None:
        """`addon_active` or `addon_deleted`; at most 10 minutes, as EKS itself takes."""
        with _errors("eks", "describe_addon"):
            self.client("eks").get_waiter(waiter).wait(clusterName=cluster, addonName=name)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def eks_clusters(region: str | None = None, profile: str | None = None) -> list[EksCluster]:
    """Of one region; the user's own if none is said. Raises UnreachableError, AwsError."""
    aws = Aws(region, profile)
    try:
        names = aws.pages("eks", "list_clusters", "clusters")
        found = [aws.ask("eks", "describe_cluster", name=name)["cluster"] for name in names]
        return [_told(one, aws.region, profile or "") for one in found]
    finally:
        aws.close()


def issues_of(one: AwsResponse) -> tuple[str, ...]:
    """Of a cluster, a node group or an add-on: all three say it in the same way."""
    issues = (one.get("health") or {}).get("issues") or []
    return tuple(redact(f"{issue.get('code')}: {issue.get('message')}") for issue in issues)


def _told(one: AwsResponse, region: str, profile: str) -> EksCluster:
    return EksCluster(
        name=str(one["name"]),
        region=region,
        status=str(one.get("status", "")),
        version=str(one.get("version", "")),
        server=str(one.get("endpoint", "")),
        issues=issues_of(one),
        profile=profile,
    )


@contextmanager
def _errors(service: str, operation: str) -> Iterator[None]:
    action = f"{service}:{''.join(word.title() for word in operation.split('_'))}"
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        what = f"Amazon refuses {action}: {redact(str(error))}"
        if code in _DENIED:
            raise DeniedError(what, f"have {action} allowed") from error
        if code in _NOT_THERE:
            raise AbsentError(what, "paceline cluster list --eks says what is there") from error
        raise AwsError(what, _HINT) from error
    except WaiterError as error:
        raise AwsError(
            f"an add-on did not get ready: {error}", "look at it: aws eks describe-addon"
        ) from error
    except BotoCoreError as error:
        raise UnreachableError(f"Amazon does not answer {action}: {error}", _HINT) from error
