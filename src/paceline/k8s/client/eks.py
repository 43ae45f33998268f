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

_HINT = "log in (`aws sso login`), set --region, and get eks:ListClusters and eks:DescribeCluster allowed"
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_NOT_THERE = ("ResourceNotFoundException", "ResourceNotFound")
_ASKED = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"})
AwsResponse = dict[str, Any]  # Any: boto3 has no types


class AwsError(NotReadyError):
    """Amazon has refused it, or could not do it."""

    code = "E622"


class DeniedError(AwsError):
    """The user may not make this request."""

    code = "E623"


class AbsentError(AwsError):
    """The requested object does not exist."""

    code = "E624"


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
    name: str
    region: str
    status: str  # ACTIVE when it can be used
    version: str
    server: str
    issues: tuple[str, ...]  # issues that EKS reports
    profile: str = ""  # AWS profile; empty: the default

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
            raise UnreachableError(f"cannot call AWS: {error}", _HINT) from error

    def client(self, service: str) -> Any:  # Any: boto3 has no types
        if service not in self._clients:
            self._clients[service] = self._session.client(service, config=_ASKED)
        return self._clients[service]

    def ask(self, service: str, operation: str, **parameters: object) -> AwsResponse:
        """Raises DeniedError, AbsentError, AwsError, UnreachableError."""
        with _errors(service, operation):
            answer: AwsResponse = getattr(self.client(service), operation)(**parameters)
            return answer

    def pages(self, service: str, operation: str, part: str, **parameters: object) -> list[Any]:
        """All of a list, however many pages it has."""
        with _errors(service, operation):
            pages = self.client(service).get_paginator(operation).paginate(**parameters)
            return [item for page in pages for item in page.get(part, [])]

    def wait_for_addon(self, cluster: str, name: str, waiter: str) -> None:
        """`addon_active` or `addon_deleted`; at most 10 minutes, as EKS itself takes."""
        with _errors("eks", "describe_addon"):
            self.client("eks").get_waiter(waiter).wait(clusterName=cluster, addonName=name)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def eks_clusters(region: str | None = None, profile: str | None = None) -> list[EksCluster]:
    """Clusters of one region; None: the user's default. Raises UnreachableError, AwsError."""
    aws = Aws(region, profile)
    try:
        names = aws.pages("eks", "list_clusters", "clusters")
        clusters = [aws.ask("eks", "describe_cluster", name=name)["cluster"] for name in names]
        return [_eks_cluster(cluster, aws.region, profile or "") for cluster in clusters]
    finally:
        aws.close()


def issues_of(response: AwsResponse) -> tuple[str, ...]:
    """Issues of a cluster, a node group or an add-on: all three have the same format."""
    issues = (response.get("health") or {}).get("issues") or []
    return tuple(redact(f"{issue.get('code')}: {issue.get('message')}") for issue in issues)


def _eks_cluster(response: AwsResponse, region: str, profile: str) -> EksCluster:
    return EksCluster(
        name=str(response["name"]),
        region=region,
        status=str(response.get("status", "")),
        version=str(response.get("version", "")),
        server=str(response.get("endpoint", "")),
        issues=issues_of(response),
        profile=profile,
    )


@contextmanager
def _errors(service: str, operation: str) -> Iterator[None]:
    action = f"{service}:{''.join(word.title() for word in operation.split('_'))}"
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        message = f"AWS denied {action}: {redact(str(error))}"
        if code in _DENIED:
            raise DeniedError(message, f"ask an administrator to allow {action}") from error
        if code in _NOT_THERE:
            raise AbsentError(message, "list them: paceline cluster list --eks") from error
        raise AwsError(message, _HINT) from error
    except WaiterError as error:
        raise AwsError(f"an add-on did not become ready: {error}", "see: aws eks describe-addon") from error
    except BotoCoreError as error:
        raise UnreachableError(f"AWS did not respond to {action}: {error}", _HINT) from error
