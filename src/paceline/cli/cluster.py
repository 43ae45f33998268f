"""`paceline cluster`: which Kubernetes clusters are there, and what is one of them good for?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.cluster_fix import fix
from paceline.cli.k8s_options import context_option, kubeconfig_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ClusterOptionError, ExitCode, NotReadyError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.check.checks import CheckResult
    from paceline.k8s.check.findings import Need
    from paceline.k8s.check.snapshot import Snapshot
    from paceline.plan.codec import Json


@click.group("cluster")
@common_options
def cluster(session: Session) -> None:
    """See which Kubernetes clusters there are, what one of them is good for, and mend what can be mended."""


@cluster.command("list")
@kubeconfig_option
@click.option(
    "--eks", is_flag=True, help="Ask Amazon EKS too; its clusters come with the command to use them."
)
@click.option(
    "--region",
    multiple=True,
    metavar="NAME",
    help="Whose clusters, with --eks. Repeatable. [default: the one of your AWS settings]",
)
@click.option("--aws-profile", multiple=True, metavar="NAME", help="As whom, with --eks. Repeatable.")
@common_options
def list_clusters(
    session: Session,
    kubeconfig: Path | None,
    *,
    eks: bool,
    region: tuple[str, ...],
    aws_profile: tuple[str, ...],
) -> None:
    """The contexts of your kubeconfig; * marks the current one. No cluster is asked."""
    from paceline.k8s.check.cluster import list_contexts, list_eks_clusters

    for flag, said in (("--region", region), ("--aws-profile", aws_profile)):
        if said and not eks:
            raise ClusterOptionError([Problem(f"{flag} is for Amazon EKS", "add --eks", flag)])

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
            session, "no kubeconfig names a cluster; make one: aws eks update-kubeconfig --name CLUSTER"
        )
    emit(session, "cluster.list", {"contexts": rows, "eks": [to_json(one) for one in asked]}, lines)


@cluster.command("check")
@kubeconfig_option
@context_option
@click.option("--namespace", "-n", metavar="NAME", help="Where jobs shall run. [default: the context's]")
@click.option(
    "--need", default="", metavar="WORDS", help="What it must be good for: gpus=N, nodes=N, efa, rwx."
)
@click.option(
    "--target",
    type=click.Choice(["job", "pytorchjob", "trainjob", "rayjob", "raycluster", "hyperpod"]),
    help="The kind of job that shall run.",
)
@click.option("--eks", metavar="NAME", help="This cluster of Amazon EKS: Amazon's side is looked at too.")
@click.option("--region", metavar="NAME", help="Of --eks. [default: the one of your AWS settings]")
@click.option("--aws-profile", metavar="NAME", help="Of your AWS settings, with --eks.")
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path),
    metavar="SNAPSHOT.json",
    help="Check what was saved, and ask no cluster.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="SNAPSHOT.json",
    help="Keep what was seen. No secrets, commands or variables are in it.",
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
    """Say what a cluster is good for: nodes and GPUs, what hands them out, EFA, operators, queues, storage,
    policies, rights, health. It only looks, in at most 25 questions for 200 nodes. Exit code 4 when what was
    asked for (or, with nothing asked for, something that is installed) will not work."""
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
            raise ClusterOptionError([Problem(f"{flag} is for Amazon EKS", "add --eks NAME", flag)])
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
            what, hint = (
                "there is nothing to save: no context leads to the cluster",
                kubeconfig_command(facts),
            )
            raise NotReadyError(what, hint)
        return _show(session, *check_eks_only(facts, wanted))
    seen = probe_cluster(config, context, space, wanted.target)
    if save is not None:
        save_snapshot(seen, session.folder / save)
    return _show(session, seen, check_both_sides(facts, seen, wanted))


def _refuse_with_file(**said: object) -> None:
    for name, value in said.items():
        if value is not None:
            what = f"--{name} is for a cluster that is asked, and --from asks none"
            raise ClusterOptionError([Problem(what, "leave out one of the two", f"--{name}")])


def _show(session: Session, seen: "Snapshot", checked: "CheckResult") -> ExitCode:
    from paceline.k8s.check.findings import Level, pluralize

    problems, warnings = len(checked.of(Level.PROBLEM)), len(checked.of(Level.WARNING))
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
