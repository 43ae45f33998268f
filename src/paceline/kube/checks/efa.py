"""Can nodes talk by EFA, and are enough of them in one zone? EFA does not cross zones."""

from collections import defaultdict
from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level, counted, miscounted, named
from paceline.kube.checks.machines import efa_of
from paceline.kube.checks.need import Need
from paceline.kube.checks.node_facts import NodeFacts, facts_of
from paceline.kube.checks.snapshot import Snapshot
from paceline.kube.checks.workloads import daemon_sets, fine, has_label, place_of, readiness
from paceline.kube.well_known import ZONE

AREA = "EFA"
_PLUGIN = "aws-efa-k8s-device-plugin"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        return
    usable = [node for node in facts_of(seen) if node.is_usable]
    having = [node for node in usable if node.efa]
    if having:
        devices = counted(sum(node.efa for node in having), "device")
        yield fine(AREA, f"{devices} on {counted(len(having), 'node')}")
    else:
        yield from _none(usable, need)
    yield from _plugin(seen, need, usable)
    yield from _numbers(having)
    yield from _in_one_zone(having, need)


def _none(usable: list[NodeFacts], need: Need) -> Iterator[Finding]:
    could = [node for node in usable if efa_of(node.machine)]
    if not could and not need.efa:
        return
    yield Finding(
        area=AREA,
        level=need.absent(matters=need.efa),
        what="no node offers EFA",
        evidence="no vpc.amazonaws.com/efa in status.allocatable, no ResourceSlice of an EFA driver",
        why=f"{named([n.name for n in could])} could, if a launch template or NodeClass attached it"
        if could
        else "no usable node is of a machine type with EFA",
        command=f"kubectl describe node {could[0].name}" if could else "",
        cure="efa-plugin" if could else "",
    )


def _plugin(seen: Snapshot, need: Need, usable: list[NodeFacts]) -> Iterator[Finding]:
    for one in daemon_sets(seen, lambda found: has_label(found, "app.kubernetes.io/name", _PLUGIN)):
        ready, wanted = readiness(one)
        if ready >= wanted:
            continue
        space, _, name = place_of(one).partition("/")
        works = any(node.efa for node in usable)
        yield Finding(
            area=AREA,
            level=Level.WARNING if works else need.broken(matters=need.efa),
            what="the EFA device plugin does not run on every node that should have it",
            evidence=f"DaemonSet {space}/{name}: {ready} of {wanted} ready",
            why="nodes without it offer no EFA: training would fall back to TCP, several times slower",
            command=f"kubectl -n {space} describe daemonset {name}",
        )


def _numbers(having: list[NodeFacts]) -> Iterator[Finding]:
    """Of device plugins: what a DRA driver lists may be other devices too."""
    more = [node for node in having if node.plugin_efa > (efa_of(node.machine) or node.plugin_efa)]
    fewer = [node for node in having if 0 < node.plugin_efa < (efa_of(node.machine) or 0)]
    if more:
        yield miscounted(
            AREA,
            "more EFA devices are offered than there are",
            [node.name for node in more],
            evidence=_offered(more[0]),
            why="plugins before v0.5.10 take NVLink's ibp* devices for EFA; pods that get them fail",
            command="kubectl get daemonsets -A -l app.kubernetes.io/name=aws-efa-k8s-device-plugin -o wide",
        )
    if fewer:
        yield miscounted(
            AREA,
            "fewer EFA devices are offered than there are",
            [node.name for node in fewer],
            evidence=_offered(fewer[0]),
            why="bandwidth is lost, and a job that asks for all of them does not fit there",
        )


def _offered(node: NodeFacts) -> str:
    return f"{node.plugin_efa} of {efa_of(node.machine)} ({node.machine})"


def _in_one_zone(having: list[NodeFacts], need: Need) -> Iterator[Finding]:
    gpus, nodes = defaultdict[str, int](int), defaultdict[str, int](int)
    for node in having:
        gpus[node.zone] += node.gpus
        nodes[node.zone] += 1
    fits = any(gpus[zone] >= need.gpus and nodes[zone] >= need.nodes for zone in gpus)
    if not need.efa or not having or (fits and len(gpus) == 1):
        return
    there = [
        f"{zone or 'no zone'}: {counted(nodes[zone], 'node')}, {counted(gpus[zone], 'GPU')}" for zone in gpus
    ]
    yield Finding(
        area=AREA,
        level=Level.NOTE if fits else Level.PROBLEM,
        what="what has EFA lies in several zones" if fits else "in no zone there is enough with EFA",
        evidence="; ".join(sorted(there)),
        why="EFA does not cross zones: all pods of a run must be in one",
        command=f"kubectl get nodes -L {ZONE}",
    )
