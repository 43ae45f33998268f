"""How does Amazon's side of a cluster become a part of `cluster check` and `cluster fix`?"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cluster.kubeconfig import contexts, kubeconfig_files
from paceline.errors import ClusterWishError, MissingPackageError, NotReadyError, Problem
from paceline.kube.checks.check import Checked, check
from paceline.kube.checks.eks import AREA
from paceline.kube.checks.eks import check as check_eks
from paceline.kube.checks.eks_facts import EksFacts
from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need
from paceline.kube.checks.snapshot import Snapshot

if TYPE_CHECKING:
    from paceline.cluster.eks_door import Aws


@contextmanager
def amazon(region: str | None, profile: str | None) -> "Iterator[Aws]":
    """Raises NotReadyError without boto3, and UnreachableError."""
    try:
        from paceline.cluster.eks_door import Aws
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[aws]'"
        raise MissingPackageError(f"Amazon's client is not installed: {error}", hint) from error
    aws = Aws(region, profile)
    try:
        yield aws
    finally:
        aws.close()


def look_at_eks(name: str, region: str | None, profile: str | None) -> EksFacts:
    """Raises NotReadyError, UnreachableError."""
    with amazon(region, profile) as aws:
        from paceline.cluster.eks_look import look_at_eks as look

        return look(aws, name)


def context_of(facts: EksFacts, kubeconfig: Path | None, said: str | None) -> str | None:
    """The one that leads to this very server, whatever it is called. Raises ConfigError if `said` is none."""
    found = contexts(kubeconfig_files(kubeconfig))
    mine = [one.name for one in found if facts.server and one.server.lower() == facts.server.lower()]
    others = [one for one in found if one.name == said and one.name not in mine]
    if others:
        what = f"context {said} leads to {others[0].server}, and EKS says {facts.name} is {facts.server}"
        raise ClusterWishError([Problem(what, f"take one of it: {usable(facts)}", "--context")])
    return said or (mine[0] if mine else None)


def needs_context(facts: EksFacts, kubeconfig: Path | None, said: str | None) -> str:
    """For whoever writes: another cluster must not be taken for it. Raises NotReadyError."""
    found = context_of(facts, kubeconfig, said)
    if found is None:
        raise NotReadyError(
            f"no context of your kubeconfig leads to {facts.name} ({facts.server})", usable(facts)
        )
    return found


def usable(facts: EksFacts) -> str:
    return f"aws eks update-kubeconfig --name {facts.name} --region {facts.region}"


def both_sides(facts: EksFacts, seen: Snapshot, need: Need) -> Checked:
    """What Amazon says, and what the cluster itself says."""
    return Checked((*check_eks(facts, need), *check(seen, need).findings))


def one_side(facts: EksFacts, need: Need) -> tuple[Snapshot, Checked]:
    """For a cluster that no kubeconfig names: the other side is not known."""
    unseen = Finding(
        area=AREA,
        level=Level.WARNING if need.says_nothing else Level.PROBLEM,
        what="the cluster itself was not looked at: nodes, GPUs, operators and rights are not known",
        evidence=f"no context of your kubeconfig leads to {facts.server}",
        command=usable(facts),
    )
    empty = Snapshot(server=facts.server, version=f"v{facts.version}", namespace="", served={}, objects={})
    return empty, Checked((*check_eks(facts, need), unseen))
