"""Checks of an EKS cluster on Amazon's side: state, version, node groups, add-ons, access, HyperPod.

An add-on that is not there is no fault: it may be installed in another way, or be a part of Auto Mode. It is
missing only where what was asked for needs it.
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
    yield from _itself(seen, need)
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
            what=f"not everything may be seen: {list_names(seen.refused)}",
            evidence="Amazon refused these questions, or does not know them",
            why="what could not be looked at is neither fine nor wrong",
            command=f"have these actions allowed: {', '.join(seen.refused)}",
        )


def _itself(seen: EksFacts, need: Need) -> Iterator[Finding]:
    if seen.status == "ACTIVE" and not seen.issues:
        way = "Auto Mode: nodes, device plugins, network and disks are its own" if seen.is_auto else ""
        way = way or f"{len(seen.groups)} node groups, {len(seen.addons)} add-ons"
        yield ok_finding(AREA, f"{seen.name} is ACTIVE, Kubernetes {seen.version}; {way}")
    elif seen.status in _BUSY:
        yield _wrong(seen, Level.WARNING, f"{seen.name} is {seen.status}", "it is being changed: wait for it")
    elif seen.status != "ACTIVE":
        yield _wrong(seen, Level.PROBLEM, f"{seen.name} is {seen.status}", "nothing can run there")
    for issue in seen.issues:
        yield _wrong(seen, need.broken(matters=True), f"EKS complains of {seen.name}: {issue}", "")
    if not seen.is_public:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="its API server answers inside of its VPC only",
            evidence="resourcesVpcConfig.endpointPublicAccess is false",
            command="run paceline in the VPC, or through its VPN",
        )


def _wrong(seen: EksFacts, level: Level, what: str, why: str) -> Finding:
    command = f"aws eks describe-cluster --name {seen.name} --region {seen.region}"
    evidence = "status and health of describe-cluster"
    return Finding(area=AREA, level=level, what=what, evidence=evidence, why=why, command=command)


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
        what = f"Kubernetes {seen.version} is not supported any more"
        yield _wrong(seen, Level.WARNING, what, "EKS upgrades it by itself, at a time of its own")


def _group(seen: EksFacts, group: NodeGroup) -> Iterator[Finding]:
    told = _aws(seen, "describe-nodegroup", f" --nodegroup-name {group.name}")
    if group.status not in ("ACTIVE", *_BUSY) or group.issues:
        issues = "; ".join(group.issues)
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"node group {group.name} is {group.status}" + (f": {issues}" if issues else ""),
            evidence="status and health of describe-nodegroup",
            why="nodes of it may be missing, or not come",
            command=told,
        )
    has_gpus = [machine for machine in group.machines if gpus_of(machine)]
    if has_gpus and group.image.endswith(("_STANDARD", "_x86_64", "_ARM_64", "_FIPS")) and not _drives(group):
        yield Finding(
            area=AREA,
            level=Level.WARNING,  # whether its nodes offer their GPUs all the same, they say themselves
            what=f"node group {group.name} has GPUs ({list_names(has_gpus)}) and an image without a driver",
            evidence=f"amiType is {group.image}",
            why="nothing on these nodes can use their GPUs, unless NVIDIA's operator brings the driver",
            command=f"make another group with --ami-type AL2023_x86_64_NVIDIA; see {told}",
        )
    if group.image.startswith("AL2_"):
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"node group {group.name} runs Amazon Linux 2",
            evidence=f"amiType is {group.image}",
            why="EKS makes no new images of it: a newer Kubernetes needs AL2023 or Bottlerocket",
            command=told,
        )
    if group.image.startswith("BOTTLEROCKET") and has_gpus and _drives(group):
        yield ok_finding(AREA, f"node group {group.name} is Bottlerocket: its image hands out GPUs by itself")


def _drives(group: NodeGroup) -> bool:
    return "NVIDIA" in group.image or group.image.endswith("_GPU")


def _addon(seen: EksFacts, addon: Addon, need: Need) -> Iterator[Finding]:
    told = _aws(seen, "describe-addon", f" --addon-name {addon.name}")
    matters = addon.name in _FOR_HYPERPOD and need.target is Target.HYPERPOD
    if addon.status not in ("ACTIVE", *_BUSY) or addon.issues:
        issues = "; ".join(addon.issues)
        yield Finding(
            area=AREA,
            level=need.broken(matters=matters) if matters else Level.WARNING,
            what=f"add-on {addon.name} is {addon.status}" + (f": {issues}" if issues else ""),
            evidence="status and health of describe-addon",
            why="EKS could not bring it up, or keep it up",
            command=told,
        )
    offer = seen.offers.get(addon.name)
    if offer is not None and addon.version not in offer.versions:
        wanted = AddonRequest(
            **_of(seen), name=addon.name, version=offer.usual, before=addon.version or "unknown"
        )
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"add-on {addon.name} {addon.version} is not made for Kubernetes {seen.version}",
            evidence=f"describe-addon-versions offers {offer.usual}",
            why="it may work or not; nobody at Amazon tries it",
            command=wanted.command(),
            cure="addon",
            addon=wanted,
        )


def _missing(seen: EksFacts, need: Need) -> Iterator[Finding]:
    """Auto Mode has an agent for pod identities inside; HyperPod's operator it has not."""
    if need.target is not Target.HYPERPOD or not seen.knows("eks:ListAddons"):
        return
    for name in _FOR_HYPERPOD:
        if seen.addon(name) is not None or (seen.is_auto and name != HYPERPOD_OPERATOR):
            continue
        offer = seen.offers.get(name)
        wanted = None if offer is None else AddonRequest(**_of(seen), name=name, version=offer.usual)
        by_hand = _aws(seen, "create-addon", f" --addon-name {name}")
        yield Finding(
            area=AREA,
            level=need.absent(matters=True),
            what=f"add-on {name} is not installed",
            evidence="list-addons does not name it",
            why="HyperPodPyTorchJobs need it",
            command=by_hand if wanted is None else wanted.command(),
            cure="" if wanted is None else "addon",
            addon=wanted,
        )


def _access(seen: EksFacts) -> Iterator[Finding]:
    if seen.auth_mode == "CONFIG_MAP":
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="who may enter is said by ConfigMap aws-auth alone",
            evidence="accessConfig.authenticationMode is CONFIG_MAP",
            why="whoever damages it locks everybody out; access entries cannot be lost that way",
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
            why="Kubernetes will answer 401, whatever your rights at Amazon are",
            command=_aws(seen, "create-access-entry", f" --principal-arn {seen.me}"),
        )


def _is_among(me: str, entries: Sequence[str]) -> bool:
    """A role is named with its path in an entry, and without it by whoever has taken it."""
    account, role = me.split(":")[4:5], me.rpartition("/")[2]
    return any(one == me or (one.split(":")[4:5] == account and one.endswith(f"/{role}")) for one in entries)


def _hyperpod(seen: EksFacts, need: Need) -> Iterator[Finding]:
    if not seen.hyperpods and need.target is Target.HYPERPOD and seen.knows("sagemaker:ListClusters"):
        yield Finding(
            area=AREA,
            level=need.absent(matters=True),
            what=f"no HyperPod cluster is orchestrated by {seen.name}",
            evidence="Orchestrator.Eks of sagemaker describe-cluster",
            why="its health checks and its spare machines are HyperPod's",
            command=f"aws sagemaker list-clusters --region {seen.region}",
        )
    for one in seen.hyperpods:
        told = f"aws sagemaker describe-cluster --cluster-name {one.name} --region {seen.region}"
        if one.status not in ("InService", *_BUSY):
            yield Finding(
                area=AREA,
                level=need.broken(matters=need.target is Target.HYPERPOD),
                what=f"HyperPod cluster {one.name} is {one.status}"
                + (f": {one.failure}" if one.failure else ""),
                evidence="ClusterStatus of sagemaker describe-cluster",
                command=told,
            )
        elif one.short:
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what=f"HyperPod cluster {one.name} has fewer machines than it shall: {list_names(one.short)}",
                evidence="CurrentCount and TargetCount of its instance groups",
                why="machines are being replaced, or Amazon has none of them",
                command=told,
            )
        else:
            recovery = "replaces" if one.node_recovery == "Automatic" else "does not replace"
            yield ok_finding(
                AREA, f"HyperPod cluster {one.name} is {one.status}, and {recovery} bad machines"
            )


def _of(seen: EksFacts) -> dict[str, str]:
    return {"cluster": seen.name, "region": seen.region}


def _aws(seen: EksFacts, verb: str, more: str = "") -> str:
    return f"aws eks {verb} --cluster-name {seen.name} --region {seen.region}{more}"
