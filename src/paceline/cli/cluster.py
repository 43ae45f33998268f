"""`paceline cluster`: list Kubernetes clusters, and check what a cluster can run."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.cluster_fix import fix
from paceline.cli.deploy import deploy
from paceline.cli.k8s_options import context_option, kubeconfig_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ClusterOptionError, ExitCode, NotReadyError, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.check.checks import CheckResult
    from paceline.k8s.check.findings import Need
    from paceline.k8s.check.snapshot import Snapshot
    from paceline.plan.codec import Json


@click.group("cluster")
@common_options
def cluster(session: Session) -> None:
    """Check and fix a Kubernetes cluster; deploy the coordinator or a dashboard on it."""


@cluster.command("list")
@kubeconfig_option
@click.option(
    "--eks", is_flag=True, help="Also list the clusters in Amazon EKS, with the command to use each."
)
@click.option(
    "--region",
    multiple=True,
    metavar="NAME",
    help="AWS region, with --eks. Repeatable. [default: the region in your AWS settings]",
)
@click.option("--aws-profile", multiple=True, metavar="NAME", help="AWS profile, with --eks. Repeatable.")
@common_options
def list_clusters(
    session: Session,
    kubeconfig: Path | None,
    *,
    eks: bool,
    region: tuple[str, ...],
    aws_profile: tuple[str, ...],
) -> None:
    """List the contexts of your kubeconfig; * marks the current one. No cluster is contacted."""
    from paceline.k8s.check.cluster import list_contexts, list_eks_clusters

    for flag, said in (("--region", region), ("--aws-profile", aws_profile)):
        if said and not eks:
            raise ClusterOptionError([Problem(f"{flag} needs --eks", "add --eks", flag)])

    from paceline.plan.codec import to_json

    found = list_contexts(session.resolve_path(kubeconfig))
    rows: list[Json] = [
        {
            "name": one.name,
            "cluster": one.cluster,
            "server": one.server,
            "namespace": one.namespace,
            "current": one.is_current,
        }
        for one in found
    ]
    lines = [f"{'*' if c.is_current else ' '} {c.name}  {c.server}  namespace {c.namespace}" for c in found]
    places = [(where, who) for who in aws_profile or (None,) for where in region or (None,)] if eks else []
    asked = [one for where, who in places for one in list_eks_clusters(where, who)]
    for one in asked:
        lines.append(f"  eks {one.name}  {one.region}  {one.status}  Kubernetes {one.version}: {one.command}")
        lines += [f"    {issue}" for issue in one.issues]
    if not found and not asked:
        print_message(
            session, "no kubeconfig has a cluster; create one: aws eks update-kubeconfig --name CLUSTER"
        )
    emit(session, "cluster.list", {"contexts": rows, "eks": [to_json(one) for one in asked]}, lines)


@cluster.command("check")
@kubeconfig_option
@context_option
@click.option("--namespace", "-n", metavar="NAME", help="Namespace of the jobs. [default: the context's]")
@click.option(
    "--need",
    default="",
    metavar="WORDS",
    help="Requirements to check: gpus=N, nodes=N, efa, rwx.",
)
@click.option(
    "--target",
    type=click.Choice(["job", "pytorchjob", "trainjob", "rayjob", "raycluster", "hyperpod"]),
    help="Kind of job to run.",
)
@click.option("--eks", metavar="NAME", help="Name of the Amazon EKS cluster, to check its AWS side too.")
@click.option(
    "--region", metavar="NAME", help="AWS region of --eks. [default: the region in your AWS settings]"
)
@click.option("--aws-profile", metavar="NAME", help="AWS profile, with --eks.")
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path),
    metavar="SNAPSHOT.json",
    help="Check a saved recording instead of a live cluster.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="SNAPSHOT.json",
    help="Save the observations to a file, without secrets, commands or variables.",
)
@common_options
def check(
    session: Session,
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    need: str,
    target: str | None,
    eks: str | None,
    region: str | None,
    aws_profile: str | None,
    file: Path | None,
    save: Path | None,
) -> ExitCode:
    """Check what a cluster can run: nodes and GPUs, device plugins, EFA, operators, queues, storage,
    policies, permissions and health. Read-only, with at most 25 requests for 200 nodes. Exit code 4 if a
    requirement is not met or, without requirements, if an installed component does not work."""
    from paceline.k8s.check.cluster import check_cluster, load_snapshot, probe_cluster, save_snapshot
    from paceline.k8s.check.findings import read_need
    from paceline.k8s.spec.job import Target

    kind = None if target is None else Target(target)
    wanted = read_need(need, kind)
    config = session.resolve_path(kubeconfig)
    if eks is not None:
        _refuse_with_file(**({} if file is None else {"eks": eks}))
        place = (config, context, namespace)
        return _check_eks(session, wanted, (eks, region, aws_profile), place, save)
    for flag, said in (("--region", region), ("--aws-profile", aws_profile)):
        if said is not None:
            raise ClusterOptionError([Problem(f"{flag} needs --eks", "add --eks NAME", flag)])
    if file is None:
        seen = probe_cluster(config, context, namespace, kind)
    else:
        _refuse_with_file(kubeconfig=kubeconfig, context=context, namespace=namespace)
        seen = load_snapshot(session.folder / file)
    if save is not None:
        save_snapshot(seen, session.folder / save)
    return _show(session, seen, check_cluster(seen, wanted))


def _check_eks(
    session: Session,
    wanted: "Need",
    name: tuple[str, str | None, str | None],
    place: tuple[Path | None, str | None, str | None],
    save: Path | None,
) -> ExitCode:
    """Both sides, if a context leads to it."""
    from paceline.k8s.check.cluster import (
        check_both_sides,
        check_eks_only,
        context_of,
        kubeconfig_command,
        probe_cluster,
        probe_eks,
        save_snapshot,
    )

    facts = probe_eks(*name)
    config, said, space = place
    context = context_of(facts, config, said)
    if context is None:
        if save is not None:
            what = "there is nothing to save: no context connects to the cluster"
            hint = kubeconfig_command(facts)
            raise NotReadyError(what, hint)
        return _show(session, *check_eks_only(facts, wanted))
    seen = probe_cluster(config, context, space, wanted.target)
    if save is not None:
        save_snapshot(seen, session.folder / save)
    return _show(session, seen, check_both_sides(facts, seen, wanted))


def _refuse_with_file(**said: object) -> None:
    for name, value in said.items():
        if value is not None:
            what = f"--{name} selects a live cluster, but --from reads a recording"
            raise ClusterOptionError([Problem(what, "leave out one of the two", f"--{name}")])


def _show(session: Session, seen: "Snapshot", checked: "CheckResult") -> ExitCode:
    from paceline.k8s.check.findings import Level

    problems = len(checked.of(Level.PROBLEM))
    warnings = len(checked.of(Level.WARNING))
    judged = f"{pluralize(problems, 'problem')}, {pluralize(warnings, 'warning')}"
    verdict = (
        f"{'fine' if checked.is_fine else 'not fine'}: {judged} ({seen.server}, Kubernetes {seen.version})"
    )
    answer: dict[str, Json] = {
        "server": seen.server,
        "version": seen.version,
        "namespace": seen.namespace,
        "fine": checked.is_fine,
        "findings": [one.to_json() for one in checked.findings],
    }
    emit(
        session,
        "cluster.check",
        answer,
        [*(line for one in checked.findings for line in one.lines()), verdict],
    )
    return ExitCode.OK if checked.is_fine else ExitCode.NOT_READY


cluster.add_command(fix)
cluster.add_command(deploy)
