"""Checks of an EKS cluster on Amazon's side: state, version, node groups, add-ons, access, HyperPod.

An absent add-on is no fault: it may be installed in another way, or be a part of Auto Mode. It is missing
only if the request needs it.
"""

from collections.abc import Iterator, Sequence

from paceline.k8s.check.findings import Finding, Level, Need, list_names, ok_finding
from paceline.k8s.check.nodes import gpus_of
from paceline.k8s.check.snapshot import Addon, AddonRequest, EksFacts, NodeGroup
from paceline.k8s.spec.job import Target

AREA = "EKS"
HYPERPOD_OPERATOR = "amazon-sagemaker-hyperpod-training-operator"
_FOR_HYPERPOD = ("eks-pod-identity-agent", HYPERPOD_OPERATOR)
_BUSY = ("CREATING", "UPDATING", "PENDING", "Creating", "Updating", "SystemUpdating")


def check(seen: EksFacts, need: Need) -> Iterator[Finding]:
    yield from _cluster(seen, need)
    yield from _version(seen)
    for group in seen.groups:
        yield from _group(seen, group)
    for addon in seen.addons:
        yield from _addon(seen, addon, need)
    yield from _missing(seen, need)
    yield from _access(seen)
    yield from _hyperpod(seen, need)
    if seen.refused:
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"incomplete: no access to {list_names(seen.refused)}",
            evidence="AWS denied these requests, or does not support them",
            why="these checks were skipped",
            command=f"ask an administrator to allow these actions: {', '.join(seen.refused)}",
        )


def _cluster(seen: EksFacts, need: Need) -> Iterator[Finding]:
    if seen.status == "ACTIVE" and not seen.issues:
        setup = "Auto Mode manages nodes, device plugins, network and disks" if seen.is_auto else ""
        setup = setup or f"{len(seen.groups)} node groups, {len(seen.addons)} add-ons"
        yield ok_finding(AREA, f"{seen.name} is ACTIVE, Kubernetes {seen.version}; {setup}")
    elif seen.status in _BUSY:
        yield _problem(seen, Level.WARNING, f"{seen.name} is {seen.status}", "it is being updated: wait")
    elif seen.status != "ACTIVE":
        yield _problem(seen, Level.PROBLEM, f"{seen.name} is {seen.status}", "nothing can run there")
    for issue in seen.issues:
        yield _problem(seen, need.broken(matters=True), f"EKS reports an issue of {seen.name}: {issue}", "")
    if not seen.is_public:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="its API server is reachable only from its VPC",
            evidence="resourcesVpcConfig.endpointPublicAccess is false",
            command="run paceline in the VPC, or through its VPN",
        )


def _problem(seen: EksFacts, level: Level, message: str, why: str) -> Finding:
    command = f"aws eks describe-cluster --name {seen.name} --region {seen.region}"
    evidence = "status and health of describe-cluster"
    return Finding(area=AREA, level=level, what=message, evidence=evidence, why=why, command=command)


def _version(seen: EksFacts) -> Iterator[Finding]:
    until = f" until {seen.support_ends}" if seen.support_ends else ""
    if seen.support == "EXTENDED_SUPPORT":
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"Kubernetes {seen.version} is in extended support{until}",
            evidence="versionStatus of describe-cluster-versions",
            why="it costs six times as much, and is upgraded by EKS when it ends",
            command=_aws(seen, "list-insights"),
        )
    if seen.support == "UNSUPPORTED":
        message = f"Kubernetes {seen.version} is no longer supported"
        yield _problem(seen, Level.WARNING, message, "EKS upgrades it automatically")


def _group(seen: EksFacts, group: NodeGroup) -> Iterator[Finding]:
    command = _aws(seen, "describe-nodegroup", f" --nodegroup-name {group.name}")
    if group.status not in ("ACTIVE", *_BUSY) or group.issues:
        issues = "; ".join(group.issues)
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"node group {group.name} is {group.status}" + (f": {issues}" if issues else ""),
            evidence="status and health of describe-nodegroup",
            why="its nodes may be missing or fail to join",
            command=command,
        )
    has_gpus = [machine for machine in group.machines if gpus_of(machine)]
    if has_gpus and group.image.endswith(("_STANDARD", "_x86_64", "_ARM_64", "_FIPS")) and not _drives(group):
        yield Finding(
            area=AREA,
            level=Level.WARNING,  # the nodes themselves report whether they offer GPUs
            what=f"node group {group.name} has GPUs ({list_names(has_gpus)}) but an image without a driver",
            evidence=f"amiType is {group.image}",
            why="the GPUs of these nodes are unusable, unless NVIDIA's operator installs the driver",
            command=f"create another group with --ami-type AL2023_x86_64_NVIDIA; see {command}",
        )
    if group.image.startswith("AL2_"):
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"node group {group.name} runs Amazon Linux 2",
            evidence=f"amiType is {group.image}",
            why="EKS publishes no new images of it: a newer Kubernetes needs AL2023 or Bottlerocket",
            command=command,
        )
    if group.image.startswith("BOTTLEROCKET") and has_gpus and _drives(group):
        yield ok_finding(AREA, f"node group {group.name} is Bottlerocket: its image includes a device plugin")


def _drives(group: NodeGroup) -> bool:
    return "NVIDIA" in group.image or group.image.endswith("_GPU")


def _addon(seen: EksFacts, addon: Addon, need: Need) -> Iterator[Finding]:
    command = _aws(seen, "describe-addon", f" --addon-name {addon.name}")
    matters = addon.name in _FOR_HYPERPOD and need.target is Target.HYPERPOD
    if addon.status not in ("ACTIVE", *_BUSY) or addon.issues:
        issues = "; ".join(addon.issues)
        yield Finding(
            area=AREA,
            level=need.broken(matters=matters) if matters else Level.WARNING,
            what=f"add-on {addon.name} is {addon.status}" + (f": {issues}" if issues else ""),
            evidence="status and health of describe-addon",
            why="EKS could not start it, or keep it running",
            command=command,
        )
    offer = seen.offers.get(addon.name)
    if offer is not None and addon.version not in offer.versions:
        request = AddonRequest(
            **_of(seen), name=addon.name, version=offer.usual, before=addon.version or "unknown"
        )
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"add-on {addon.name} {addon.version} does not support Kubernetes {seen.version}",
            evidence=f"describe-addon-versions offers {offer.usual}",
            why="it may not work; AWS does not test this combination",
            command=request.command(),
            cure="addon",
            addon=request,
        )


def _missing(seen: EksFacts, need: Need) -> Iterator[Finding]:
    """Auto Mode has an agent for pod identities inside; HyperPod's operator it has not."""
    if need.target is not Target.HYPERPOD or not seen.knows("eks:ListAddons"):
        return
    for name in _FOR_HYPERPOD:
        if seen.addon(name) is not None or (seen.is_auto and name != HYPERPOD_OPERATOR):
            continue
        offer = seen.offers.get(name)
        request = None if offer is None else AddonRequest(**_of(seen), name=name, version=offer.usual)
        by_hand = _aws(seen, "create-addon", f" --addon-name {name}")
        yield Finding(
            area=AREA,
            level=need.absent(matters=True),
            what=f"add-on {name} is not installed",
            evidence="list-addons does not name it",
            why="HyperPodPyTorchJobs need it",
            command=by_hand if request is None else request.command(),
            cure="" if request is None else "addon",
            addon=request,
        )


def _access(seen: EksFacts) -> Iterator[Finding]:
    if seen.auth_mode == "CONFIG_MAP":
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="access is controlled only by the ConfigMap aws-auth",
            evidence="accessConfig.authenticationMode is CONFIG_MAP",
            why="a mistake in it locks all users out; access entries avoid that risk",
            command=f"aws eks update-cluster-config --name {seen.name} --region {seen.region}"
            " --access-config authenticationMode=API_AND_CONFIG_MAP",
        )
    knows = seen.me and seen.knows("eks:ListAccessEntries")
    if seen.auth_mode == "API" and knows and not _is_among(seen.me, seen.entries):
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what="you have no access entry in this cluster",
            evidence=f"list-access-entries does not name {seen.me}",
            why="Kubernetes will respond 401, regardless of your IAM permissions",
            command=_aws(seen, "create-access-entry", f" --principal-arn {seen.me}"),
        )


def _is_among(caller: str, entries: Sequence[str]) -> bool:
    """An access entry names a role with its path; the ARN of an assumed role omits the path."""
    account = caller.split(":")[4:5]
    role = caller.rpartition("/")[2]
    return any(
        entry == caller or (entry.split(":")[4:5] == account and entry.endswith(f"/{role}"))
        for entry in entries
    )


def _hyperpod(seen: EksFacts, need: Need) -> Iterator[Finding]:
    if not seen.hyperpods and need.target is Target.HYPERPOD and seen.knows("sagemaker:ListClusters"):
        yield Finding(
            area=AREA,
            level=need.absent(matters=True),
            what=f"no HyperPod cluster is orchestrated by {seen.name}",
            evidence="Orchestrator.Eks of sagemaker describe-cluster",
            why="health checks and spare machines need HyperPod",
            command=f"aws sagemaker list-clusters --region {seen.region}",
        )
    for cluster in seen.hyperpods:
        command = f"aws sagemaker describe-cluster --cluster-name {cluster.name} --region {seen.region}"
        if cluster.status not in ("InService", *_BUSY):
            yield Finding(
                area=AREA,
                level=need.broken(matters=need.target is Target.HYPERPOD),
                what=f"HyperPod cluster {cluster.name} is {cluster.status}"
                + (f": {cluster.failure}" if cluster.failure else ""),
                evidence="ClusterStatus of sagemaker describe-cluster",
                command=command,
            )
        elif cluster.short:
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what=f"HyperPod cluster {cluster.name} has fewer machines than its target:"
                f" {list_names(cluster.short)}",
                evidence="CurrentCount and TargetCount of its instance groups",
                why="machines are being replaced, or AWS has no capacity",
                command=command,
            )
        else:
            recovery = "replaces" if cluster.node_recovery == "Automatic" else "does not replace"
            yield ok_finding(
                AREA, f"HyperPod cluster {cluster.name} is {cluster.status}, and {recovery} bad machines"
            )


def _of(seen: EksFacts) -> dict[str, str]:
    return {"cluster": seen.name, "region": seen.region}


def _aws(seen: EksFacts, verb: str, more: str = "") -> str:
    return f"aws eks {verb} --cluster-name {seen.name} --region {seen.region}{more}"
