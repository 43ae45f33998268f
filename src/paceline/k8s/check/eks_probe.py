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
        told: AwsResponse = aws.ask("eks", "describe_cluster", name=name)["cluster"]
    except AbsentError as error:
        hint = f"paceline cluster list --eks --region {aws.region} says which there are"
        raise NotReadyError(f"EKS has no cluster {name} in {aws.region}", hint) from error
    looking = _EksReader(aws, name)
    version, network = str(told.get("version", "")), told.get("resourcesVpcConfig") or {}
    access = told.get("accessConfig") or {}
    unknown: AwsResponse = {}
    support = looking.may("eks:DescribeClusterVersions", lambda: _support(aws, version), unknown)
    mode = str(access.get("authenticationMode", ""))
    return EksFacts(
        name=name,
        region=aws.region,
        status=str(told.get("status", "")),
        version=version,
        server=str(told.get("endpoint", "")),
        is_auto=bool((told.get("computeConfig") or {}).get("enabled")),
        is_public=bool(network.get("endpointPublicAccess", True)),
        auth_mode=mode,
        support=str(support.get("versionStatus", "")),
        support_ends=str(support.get("endOfExtendedSupportDate", ""))[:10],
        me=looking.may("sts:GetCallerIdentity", lambda: _me(aws), ""),
        issues=issues_of(told),
        groups=looking.may("eks:ListNodegroups", looking.groups, ()),
        addons=looking.may("eks:ListAddons", looking.addons, ()),
        offers=looking.may("eks:DescribeAddonVersions", lambda: _offers(aws, version), {}),
        entries=()
        if mode in ("", "CONFIG_MAP")
        else looking.may("eks:ListAccessEntries", looking.entries, ()),
        hyperpods=looking.may("sagemaker:ListClusters", lambda: _hyperpods(aws, str(told.get("arn"))), ()),
        refused=tuple(looking.refused),
    )


class _EksReader:
    def __init__(self, aws: Aws, name: str) -> None:
        self._aws, self._name = aws, name
        self.refused: list[str] = []

    def may(self, action: str, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return ask()
        except (AwsError, UnreachableError):
            # Denied, not in this region, or not reached from this network: not seen is not wrong.
            self.refused.append(action)
            return otherwise

    def groups(self) -> tuple[NodeGroup, ...]:
        names = self._aws.pages("eks", "list_nodegroups", "nodegroups", clusterName=self._name)
        return tuple(self._group(str(name)) for name in names)

    def _group(self, name: str) -> NodeGroup:
        asked = {"clusterName": self._name, "nodegroupName": name}
        told: AwsResponse = self._aws.ask("eks", "describe_nodegroup", **asked)["nodegroup"]
        return NodeGroup(
            name=name,
            status=str(told.get("status", "")),
            image=str(told.get("amiType", "")),
            machines=tuple(told.get("instanceTypes") or ()),
            version=str(told.get("version", "")),
            most=int((told.get("scalingConfig") or {}).get("maxSize", 0)),
            issues=issues_of(told),
        )

    def addons(self) -> tuple[Addon, ...]:
        names = self._aws.pages("eks", "list_addons", "addons", clusterName=self._name)
        return tuple(read_addon(self._aws, self._name, str(name)) for name in names)

    def entries(self) -> tuple[str, ...]:
        found = self._aws.pages("eks", "list_access_entries", "accessEntries", clusterName=self._name)
        return tuple(map(str, found))


def read_addon(aws: Aws, cluster: str, name: str) -> Addon:
    told: AwsResponse = aws.ask("eks", "describe_addon", clusterName=cluster, addonName=name)["addon"]
    return Addon(
        name=name,
        version=str(told.get("addonVersion", "")),
        status=str(told.get("status", "")),
        issues=issues_of(told),
    )


def _support(aws: Aws, version: str) -> AwsResponse:
    found: list[Any] = aws.ask("eks", "describe_cluster_versions", clusterVersions=[version]).get(
        "clusterVersions", []
    )
    return dict(found[0]) if found else {}


def _offers(aws: Aws, version: str) -> dict[str, Offer]:
    """Amazon's own; the market has hundreds more."""
    asked = {"kubernetesVersion": version, "owners": ["aws"]}
    found: dict[str, Offer] = {}
    for one in aws.pages("eks", "describe_addon_versions", "addons", **asked):
        versions = one.get("addonVersions") or []
        usual = [each["addonVersion"] for each in versions if _is_usual(each)]
        names = [str(each["addonVersion"]) for each in versions]
        if names:
            found[str(one["addonName"])] = Offer(usual=str((usual or names)[0]), versions=tuple(names))
    return found


def _is_usual(version: AwsResponse) -> bool:
    return any(one.get("defaultVersion") for one in version.get("compatibilities") or [])


def _me(aws: Aws) -> str:
    """As an access entry names it: a role, not one session of it."""
    arn = str(aws.ask("sts", "get_caller_identity")["Arn"])
    head, _, rest = arn.partition(":assumed-role/")
    if not rest:
        return arn
    return f"{head.replace(':sts:', ':iam:')}:role/{rest.partition('/')[0]}"


def _hyperpods(aws: Aws, arn: str) -> tuple[HyperPod, ...]:
    names = [str(one["ClusterName"]) for one in aws.pages("sagemaker", "list_clusters", "ClusterSummaries")]
    told = [aws.ask("sagemaker", "describe_cluster", ClusterName=name) for name in names]
    return tuple(
        HyperPod(
            name=str(one["ClusterName"]),
            status=str(one.get("ClusterStatus", "")),
            node_recovery=str(one.get("NodeRecovery", "")),
            short=tuple(_short(one)),
            failure=redact(str(one.get("FailureMessage") or "")),
        )
        for one in told
        if ((one.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn") == arn
    )


def _short(one: AwsResponse) -> list[str]:
    groups: list[AwsResponse] = one.get("InstanceGroups") or []
    return [
        f"{group.get('InstanceGroupName')} {group.get('CurrentCount')} of {group.get('TargetCount')}"
        for group in groups
        if int(group.get("CurrentCount", 0)) < int(group.get("TargetCount", 0))
    ]
