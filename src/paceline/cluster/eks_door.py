"""Which clusters does Amazon EKS have for this user? Asked through boto3, with its usual credentials."""

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from paceline.cluster.port import UnreachableError

_HINT = (
    "log in (`aws sso login`), name a region (--region), and have eks:ListClusters and eks:DescribeCluster"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EksCluster:
    name: str
    region: str
    status: str  # ACTIVE when it can be used
    version: str
    server: str
    issues: tuple[str, ...]  # what EKS itself complains of

    @property
    def command(self) -> str:
        """Makes it one of the contexts."""
        return f"aws eks update-kubeconfig --name {self.name} --region {self.region}"


def eks_clusters(region: str | None = None) -> list[EksCluster]:
    """Of one region; the user's own if none is said. Raises UnreachableError."""
    try:
        asked = Config(
            connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"}
        )
        client = boto3.Session(region_name=region).client("eks", config=asked)
        try:
            pages = client.get_paginator("list_clusters").paginate()
            names = [name for page in pages for name in page["clusters"]]
            where = str(client.meta.region_name)
            return [_told(client.describe_cluster(name=name)["cluster"], where) for name in names]
        finally:
            client.close()
    except (BotoCoreError, ClientError) as error:
        raise UnreachableError(f"Amazon EKS does not say which clusters there are: {error}", _HINT) from error


def _told(one: Any, region: str) -> EksCluster:  # Any: boto3 has no types
    issues = (one.get("health") or {}).get("issues") or []
    return EksCluster(
        name=str(one["name"]),
        region=region,
        status=str(one.get("status", "")),
        version=str(one.get("version", "")),
        server=str(one.get("endpoint", "")),
        issues=tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
    )
