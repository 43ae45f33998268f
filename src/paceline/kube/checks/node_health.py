"""Which nodes are not well? Conditions, cordons, HyperPod's label."""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level, counted, named
from paceline.kube.checks.need import Need
from paceline.kube.checks.node_facts import facts_of
from paceline.kube.checks.snapshot import Snapshot
from paceline.kube.checks.workloads import fine

AREA = "node health"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.knows("nodes"):
        return
    nodes = [node for node in facts_of(seen) if node.is_worker]
    ill = [node for node in nodes if node.troubles]
    if nodes and not ill:
        yield fine(AREA, f"{counted(len(nodes), 'node')}, all well")
    if not ill:
        return
    yield Finding(
        area=AREA,
        level=need.broken(matters=True) if len(ill) == len(nodes) else Level.WARNING,
        what=f"{len(ill)} of {counted(len(nodes), 'node')} cannot be used: {named([n.name for n in ill])}",
        evidence="; ".join(f"{node.name}: {', '.join(node.troubles)}" for node in ill[:3]),
        why="pods are not put there, or fail there",
        command=f"kubectl describe node {ill[0].name}",
    )
