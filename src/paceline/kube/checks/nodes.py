"""Are there nodes, and how many GPUs can be used? Truth is `allocatable` and the ResourceSlices."""

from collections import Counter
from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level, counted, miscounted, named
from paceline.kube.checks.machines import gpus_of
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.node_facts import NodeFacts, facts_of
from paceline.kube.checks.snapshot import Snapshot, name_of
from paceline.kube.checks.workloads import fine
from paceline.kube.well_known import INSTANCE_TYPE

AREA = "nodes and GPUs"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        if need.gpus or need.nodes:
            why = "nodes may not be listed, and nothing else says what they have"
            yield _problem("whether the cluster is large enough cannot be seen", "", why, "")
        return
    nodes = facts_of(seen)
    usable = [node for node in nodes if node.is_usable]
    gpus = sum(node.gpus for node in usable)
    yield fine(AREA, f"{counted(len(usable), 'usable node')}, {counted(gpus, 'GPU')}{_machines(usable)}")
    yield from _lost_gpus(nodes, need)
    yield from _offered_twice(nodes)
    yield from _by_claims(usable, need)
    yield from _enough(seen, need, usable)


def _machines(nodes: list[NodeFacts]) -> str:
    kinds = Counter(node.machine for node in nodes if node.machine)
    listed = ", ".join(f"{number} × {machine}" for machine, number in sorted(kinds.items()))
    return f" ({listed})" if listed else ""


def _lost_gpus(nodes: list[NodeFacts], need: Need) -> Iterator[Finding]:
    """Machines that have GPUs, and nodes that do not offer them. What is not Ready is told elsewhere."""
    ready = [node for node in nodes if node.is_usable and not node.has_gpu_parts]
    blind = [node for node in ready if node.shall_have_gpus and node.gpus == 0]
    if blind:
        all_of_them = all(node.gpus == 0 for node in nodes)
        why = "no device plugin or DRA driver works there: pods that ask for GPUs wait"
        yield Finding(
            area=AREA,
            level=need.broken(matters=need.gpus > 0) if all_of_them else Level.WARNING,
            what=f"GPUs are not offered by {counted(len(blind), 'node')} with GPUs: "
            f"{named([n.name for n in blind])}",
            evidence="status.allocatable has no nvidia.com/gpu, and no ResourceSlice names the node",
            why=why,
            command=f"kubectl describe node {blind[0].name}",
            cure="gpu-plugin",
        )
    fewer = [node for node in ready if 0 < node.gpus < (gpus_of(node.machine) or 0)]
    if fewer:
        first = fewer[0]
        yield miscounted(
            AREA,
            "fewer GPUs are offered than there are",
            [node.name for node in fewer],
            evidence=f"{first.gpus} of {gpus_of(first.machine)} ({first.machine})",
            why="a GPU that fell off the bus, or was found unhealthy, is not offered any more",
        )


def _offered_twice(nodes: list[NodeFacts]) -> Iterator[Finding]:
    both = [node.name for node in nodes if node.plugin_gpus and node.claimed_gpus]
    if both:
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"the same GPUs are offered twice by {counted(len(both), 'node')}: {named(both)}",
            evidence="nvidia.com/gpu in status.allocatable, and a ResourceSlice of gpu.nvidia.com",
            why="the device plugin and the DRA driver do not know of each other: two pods may get one GPU",
            command="kubectl get daemonsets -A",
        )


def _by_claims(usable: list[NodeFacts], need: Need) -> Iterator[Finding]:
    """GPUs that only a ResourceClaim gets."""
    claimed = sum(node.claimed_gpus for node in usable if not node.plugin_gpus)
    plugged = sum(node.plugin_gpus for node in usable)
    if not claimed:
        return
    blocks = need.target is not None and need.gpus > 0 and plugged < need.gpus
    why = "pods get them by a ResourceClaim; nvidia.com/gpu waits, unless a DeviceClass stands for it"
    if need.target is Target.TRAINJOB:
        why += ", and a TrainJob cannot carry a claim"
    elif need.target in (Target.RAYJOB, Target.RAYCLUSTER):
        why += ", and job render makes no claims for Ray"
    else:
        why += ": job render --gpu-claims asks in that way"
    yield Finding(
        area=AREA,
        level=Level.WARNING if blocks else Level.NOTE,
        what=f"{counted(claimed, 'GPU')} are handed out by DRA, {plugged} by device plugins",
        evidence="ResourceSlices of gpu.nvidia.com",
        why=why,
        command="kubectl get deviceclasses,resourceslices",
    )


def _enough(seen: Snapshot, need: Need, usable: list[NodeFacts]) -> Iterator[Finding]:
    gpus = sum(node.gpus for node in usable)
    short = [
        f"{wanted} {thing} wanted, {there} usable"
        for thing, wanted, there in (("GPUs", need.gpus, gpus), ("nodes", need.nodes, len(usable)))
        if wanted > there
    ]
    if not short:
        if need.gpus or need.nodes:
            yield fine(AREA, "what was asked for fits, if nobody else uses it")
        return
    grows = _autoscaler(seen)
    why = f"{grows} may add nodes when a job asks for them; nobody promised that" if grows else ""
    yield Finding(
        area=AREA,
        level=Level.WARNING if grows else Level.PROBLEM,
        what="too small: " + "; ".join(short),
        evidence="status.allocatable and ResourceSlices of nodes that are Ready and not cordoned",
        why=why or "a job that can never fit waits for ever",
        command=f"kubectl get nodes -L {INSTANCE_TYPE}",
    )


def _autoscaler(seen: Snapshot) -> str:
    if "nodepools.karpenter.sh" in seen.served:
        return "Karpenter"
    names = [name_of(one) for one in seen.of("deployments.apps")]
    return "the cluster autoscaler" if any("cluster-autoscaler" in name for name in names) else ""


def _problem(what: str, evidence: str, why: str, command: str) -> Finding:
    return Finding(area=AREA, level=Level.PROBLEM, what=what, evidence=evidence, why=why, command=command)
