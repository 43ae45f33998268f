"""Reader of one EKS cluster, with read-only rights; a refused call is recorded by its action."""

from collections.abc import Callable
from typing import Any, TypeVar

from paceline.core.errors import NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.check.snapshot import Addon, EksFacts, HyperPod, NodeGroup, Offer
from paceline.k8s.client.api import UnreachableError
from paceline.k8s.client.eks import AbsentError, Aws, AwsError, AwsResponse, issues_of

Answer = TypeVar("Answer")


def read_eks_facts(aws: Aws, name: str) -> EksFacts:
    """Raises NotReadyError where there is no such cluster, or it may not be seen; UnreachableError."""
    try:
        cluster: AwsResponse = aws.ask("eks", "describe_cluster", name=name)["cluster"]
    except AbsentError as error:
        hint = f"list them: paceline cluster list --eks --region {aws.region}"
        raise NotReadyError(f"EKS has no cluster {name} in {aws.region}", hint) from error
    reader = _EksReader(aws, name)
    version = str(cluster.get("version", ""))
    network = cluster.get("resourcesVpcConfig") or {}
    access = cluster.get("accessConfig") or {}
    unknown: AwsResponse = {}
    support = reader.may("eks:DescribeClusterVersions", lambda: _support(aws, version), unknown)
    mode = str(access.get("authenticationMode", ""))
    return EksFacts(
        name=name,
        region=aws.region,
        status=str(cluster.get("status", "")),
        version=version,
        server=str(cluster.get("endpoint", "")),
        is_auto=bool((cluster.get("computeConfig") or {}).get("enabled")),
        is_public=bool(network.get("endpointPublicAccess", True)),
        auth_mode=mode,
        support=str(support.get("versionStatus", "")),
        support_ends=str(support.get("endOfExtendedSupportDate", ""))[:10],
        me=reader.may("sts:GetCallerIdentity", lambda: _me(aws), ""),
        issues=issues_of(cluster),
        groups=reader.may("eks:ListNodegroups", reader.groups, ()),
        addons=reader.may("eks:ListAddons", reader.addons, ()),
        offers=reader.may("eks:DescribeAddonVersions", lambda: _offers(aws, version), {}),
        entries=() if mode in ("", "CONFIG_MAP") else reader.may("eks:ListAccessEntries", reader.entries, ()),
        hyperpods=reader.may("sagemaker:ListClusters", lambda: _hyperpods(aws, str(cluster.get("arn"))), ()),
        refused=tuple(reader.refused),
    )


class _EksReader:
    def __init__(self, aws: Aws, name: str) -> None:
        self._aws = aws
        self._name = name
        self.refused: list[str] = []

    def may(self, action: str, ask: Callable[[], Answer], default: Answer) -> Answer:
        try:
            return ask()
        except (AwsError, UnreachableError):
            # Denied, not in this region, or not reached from this network: not seen is not wrong.
            self.refused.append(action)
            return default

    def groups(self) -> tuple[NodeGroup, ...]:
        names = self._aws.pages("eks", "list_nodegroups", "nodegroups", clusterName=self._name)
        return tuple(self._group(str(name)) for name in names)

    def _group(self, name: str) -> NodeGroup:
        parameters = {"clusterName": self._name, "nodegroupName": name}
        group: AwsResponse = self._aws.ask("eks", "describe_nodegroup", **parameters)["nodegroup"]
        return NodeGroup(
            name=name,
            status=str(group.get("status", "")),
            image=str(group.get("amiType", "")),
            machines=tuple(group.get("instanceTypes") or ()),
            version=str(group.get("version", "")),
            most=int((group.get("scalingConfig") or {}).get("maxSize", 0)),
            issues=issues_of(group),
        )

    def addons(self) -> tuple[Addon, ...]:
        names = self._aws.pages("eks", "list_addons", "addons", clusterName=self._name)
        return tuple(read_addon(self._aws, self._name, str(name)) for name in names)

    def entries(self) -> tuple[str, ...]:
        entries = self._aws.pages("eks", "list_access_entries", "accessEntries", clusterName=self._name)
        return tuple(map(str, entries))


def read_addon(aws: Aws, cluster: str, name: str) -> Addon:
    addon: AwsResponse = aws.ask("eks", "describe_addon", clusterName=cluster, addonName=name)["addon"]
    return Addon(
        name=name,
        version=str(addon.get("addonVersion", "")),
        status=str(addon.get("status", "")),
        issues=issues_of(addon),
    )


def _support(aws: Aws, version: str) -> AwsResponse:
    versions: list[Any] = aws.ask("eks", "describe_cluster_versions", clusterVersions=[version]).get(
        "clusterVersions", []
    )
    return dict(versions[0]) if versions else {}


def _offers(aws: Aws, version: str) -> dict[str, Offer]:
    """Amazon's own; the market has hundreds more."""
    parameters = {"kubernetesVersion": version, "owners": ["aws"]}
    offers: dict[str, Offer] = {}
    for addon in aws.pages("eks", "describe_addon_versions", "addons", **parameters):
        versions = addon.get("addonVersions") or []
        defaults = [each["addonVersion"] for each in versions if _is_usual(each)]
        names = [str(each["addonVersion"]) for each in versions]
        if names:
            offers[str(addon["addonName"])] = Offer(usual=str((defaults or names)[0]), versions=tuple(names))
    return offers


def _is_usual(version: AwsResponse) -> bool:
    return any(compatibility.get("defaultVersion") for compatibility in version.get("compatibilities") or [])


def _me(aws: Aws) -> str:
    """The caller's identity as in an access entry: a role, not one session of it."""
    arn = str(aws.ask("sts", "get_caller_identity")["Arn"])
    head, _, rest = arn.partition(":assumed-role/")
    if not rest:
        return arn
    return f"{head.replace(':sts:', ':iam:')}:role/{rest.partition('/')[0]}"


def _hyperpods(aws: Aws, arn: str) -> tuple[HyperPod, ...]:
    names = [
        str(cluster["ClusterName"]) for cluster in aws.pages("sagemaker", "list_clusters", "ClusterSummaries")
    ]
    clusters = [aws.ask("sagemaker", "describe_cluster", ClusterName=name) for name in names]
    return tuple(
        HyperPod(
            name=str(description["ClusterName"]),
            status=str(description.get("ClusterStatus", "")),
            node_recovery=str(description.get("NodeRecovery", "")),
            short=tuple(_short(description)),
            failure=redact(str(description.get("FailureMessage") or "")),
        )
        for description in clusters
        if ((description.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn") == arn
    )


def _short(response: AwsResponse) -> list[str]:
    groups: list[AwsResponse] = response.get("InstanceGroups") or []
    return [
        f"{group.get('InstanceGroupName')} {group.get('CurrentCount')} of {group.get('TargetCount')}"
        for group in groups
        if int(group.get("CurrentCount", 0)) < int(group.get("TargetCount", 0))
    ]
