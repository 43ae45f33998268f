"""`paceline cluster fix`: fix what a check found, in tiers, and undo it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.k8s_options import context_option, kubeconfig_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ClusterOptionError, NotReadyError, PacelineError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.fix.actions import Fix
    from paceline.k8s.fix.apply import FixContext, FixResult, UndoneStep
    from paceline.k8s.fix.plan import ClaimRequest, FixRequest
    from paceline.plan.codec import Json

_PATH = click.Path(path_type=Path)
_RECORDS = Path("runs") / "fixes"
_ONLY = [
    *("namespace", "claim", "secret", "rights", "runtime", "helpers"),
    *("kuberay", "trainer", "gpu-plugin", "efa-plugin", "addon", "by-hand"),
]
_TARGETS = ["job", "pytorchjob", "trainjob", "rayjob", "raycluster", "hyperpod"]


@click.command("fix")
@kubeconfig_option
@context_option
@click.option("--namespace", "-n", metavar="NAME", help="Namespace of the jobs. [default: the context's]")
@click.option(
    "--need",
    default="",
    metavar="WORDS",
    help="Requirements, as for check: gpus=N, nodes=N, efa, rwx.",
)
@click.option("--target", type=click.Choice(_TARGETS), help="Kind of job to run.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the plan, validate it with a server-side dry run, and change nothing.",
)
@click.option("--apply", is_flag=True, help="Also apply planned cluster-wide changes, such as Helm charts.")
@click.option("--undo", metavar="ID", help="Undo the fix with this id.")
@click.option("--only", multiple=True, type=click.Choice(_ONLY), help="Apply only this fix. Repeatable.")
@click.option(
    "--claim",
    multiple=True,
    metavar="NAME=SIZE[/CLASS][:rwx|:rox]",
    help="PersistentVolumeClaim to create if missing. Repeatable.",
)
@click.option("--account", metavar="NAME", help="ServiceAccount that needs permission to run --target.")
@click.option(
    "--image", metavar="NAME:TAG", help="Image of a TrainingRuntime for torch to create in the namespace."
)
@click.option(
    "--hf-token", is_flag=True, help="Also create the Secret hf-token from your local Hugging Face login."
)
@click.option("--eks", metavar="NAME", help="Name of the Amazon EKS cluster, to fix its add-ons too.")
@click.option(
    "--region", metavar="NAME", help="AWS region of --eks. [default: the region in your AWS settings]"
)
@click.option("--aws-profile", metavar="NAME", help="AWS profile, with --eks.")
@click.option(
    "--from",
    "file",
    type=_PATH,
    metavar="SNAPSHOT.json",
    help="Plan from a saved recording instead of a live cluster.",
)
@common_options
def fix(session: Session, *, undo: str | None, file: Path | None, **said: Any) -> None:  # Any: from click
    """Fix what `check` finds. Safe, reversible fixes in your namespace are applied; cluster-wide changes need
    --apply; instructions are printed for changes that need an administrator. Changes are recorded in
    runs/fixes/ID and undone with --undo ID. A second run changes nothing."""
    if undo is not None:
        _refuse_with_undo(said, file)
        _undo(session, undo, said)
    elif file is not None:
        _plan_only(session, session.folder / file, said)
    else:
        _fix(session, said)


def _refuse_with_undo(said: dict[str, Any], file: Path | None) -> None:
    """Options that select fixes are refused with --undo, which has no dry run either."""
    names = ("dry_run", "apply", "need", "target", "only", "claim", "account", "image", "hf_token")
    wrong = [name for name in names if said[name]] + (["from"] if file is not None else [])
    if wrong:
        flags = [f"--{name.replace('_', '-')}" for name in wrong]
        hint = "leave it out: --undo reverts the record in runs/fixes"
        raise ClusterOptionError(
            [Problem(f"{flag} cannot be used with --undo", hint, flag) for flag in flags]
        )


def _fix(session: Session, said: dict[str, Any]) -> None:
    from paceline.k8s.check.findings import read_need
    from paceline.k8s.fix.apply import fix_cluster
    from paceline.k8s.spec.job import Target

    target = None if said["target"] is None else Target(said["target"])
    need = read_need(said["need"], target)
    asked = _fix_options(said)
    place = _target(session, said)
    with _fix_session(session, said, place) as (shop, usual):
        space = said["namespace"] or usual
        done = fix_cluster(shop, space, need, asked, dry_run=said["dry_run"], apply=said["apply"])
    _show(session, done)


def _show(session: Session, done: "FixResult") -> None:
    rows: list[Json] = [{**one.fix.to_json(), "state": one.state} for one in done.outcomes]
    lines = [f"{one.state:<8} {one.fix.name:<12} {one.fix.what}" for one in done.outcomes]
    lines = lines or ["nothing to fix"]
    if done.record is not None:
        lines.append(f"recorded in {done.record.folder}")
        lines.append(f"undo it: paceline cluster fix --undo {done.record.id}")
    if waiting := len(done.of("waits")):
        lines.append(f"{waiting} planned for the whole cluster; to apply: --apply")
    name = None if done.record is None else done.record.id
    emit(session, "cluster.fix", {"id": name, "fixes": rows}, lines)


def _plan_only(session: Session, file: Path, said: dict[str, Any]) -> None:
    from paceline.k8s.check.cluster import check_cluster, load_snapshot
    from paceline.k8s.check.findings import read_need
    from paceline.k8s.fix.actions import Tier
    from paceline.k8s.fix.plan import plan_fixes
    from paceline.k8s.spec.job import Target

    for name in ("apply", "kubeconfig", "context", "namespace", "eks"):
        if said[name]:
            what = f"--{name} selects a live cluster, but --from reads a recording"
            raise ClusterOptionError([Problem(what, "leave out one of the two", f"--{name}")])
    seen = load_snapshot(file)
    need = read_need(said["need"], None if said["target"] is None else Target(said["target"]))
    fixes: list[Fix] = plan_fixes(seen, check_cluster(seen, need).findings, _fix_options(said))
    states = {Tier.SAFE: "would", Tier.PLANNED: "waits", Tier.NEVER: "by hand"}
    rows: list[Json] = [{**one.to_json(), "state": states[one.tier]} for one in fixes]
    lines = [line for one in fixes for line in one.lines()] or ["nothing to fix"]
    emit(session, "cluster.fix", {"id": None, "fixes": rows}, lines)


def _undo(session: Session, name: str, said: dict[str, Any]) -> None:
    from paceline.k8s.fix.apply import undo
    from paceline.k8s.fix.record import read_record

    record = read_record(session.folder / _RECORDS, name)
    place = _target(session, said)
    with _fix_session(session, said, place) as (shop, _usual):
        found: list[UndoneStep] = undo(shop, record)
    rows: list[Json] = [
        {"name": one.step.name, "object": one.step.object, "undone": not one.why, "why": one.why}
        for one in found
    ]
    lines = [
        f"kept     {one.step.name:<12} {one.why}"
        if one.why
        else f"undone   {one.step.name:<12} {one.step.kind or 'release'} {one.step.object}"
        for one in found
    ]
    emit(session, "cluster.undo", {"id": name, "steps": rows}, lines or ["nothing to undo"])


@contextmanager
def _fix_session(
    session: Session, said: dict[str, Any], place: tuple[Path | None, str | None]
) -> "Iterator[tuple[FixContext, str]]":
    """With Amazon at hand, if it is a cluster of EKS; undo needs no look at it."""
    from paceline.k8s.check.cluster import open_aws, require_context
    from paceline.k8s.fix.apply import open_fix_context

    if said["eks"] is None:
        _needs_eks(said)
        with open_fix_context(
            *place, session.folder / _RECORDS, lambda line: print_message(session, line)
        ) as found:
            yield found
        return
    from dataclasses import replace

    with open_aws(said["region"], said["aws_profile"]) as aws:
        from paceline.k8s.check.eks_probe import read_eks_facts

        facts = read_eks_facts(aws, said["eks"])
        context = require_context(facts, place[0], place[1])
        with open_fix_context(
            place[0], context, session.folder / _RECORDS, lambda line: print_message(session, line)
        ) as (
            shop,
            usual,
        ):
            yield replace(shop, aws=aws, eks=facts), usual


def _needs_eks(said: dict[str, Any]) -> None:
    for name in ("region", "aws_profile"):
        if said[name]:
            flag = f"--{name.replace('_', '-')}"
            raise ClusterOptionError([Problem(f"{flag} needs --eks", "add --eks NAME", flag)])


def _target(session: Session, said: dict[str, Any]) -> tuple[Path | None, str | None]:
    return session.resolve_path(said["kubeconfig"]), said["context"]


def _fix_options(said: dict[str, Any]) -> "FixRequest":
    from paceline.k8s.fix.plan import FixRequest
    from paceline.k8s.spec.job import Target

    return FixRequest(
        claims=tuple(_claim(text) for text in said["claim"]),
        account=said["account"],
        target=Target(said["target"] or "job"),
        image=said["image"],
        hf_token=_hf_token() if said["hf_token"] else None,
        only=tuple(said["only"]),
    )


def _claim(text: str) -> "ClaimRequest":
    from paceline.k8s.fix.plan import ClaimRequest
    from paceline.k8s.objects import DNS_LABEL, read_quantity

    name, _, rest = text.partition("=")
    amount, colon, shared = rest.partition(":")
    size, slash, storage_class = amount.partition("/")
    is_whole = bool(storage_class) == bool(slash) and (shared in ("rwx", "rox")) == bool(colon)
    if not DNS_LABEL.fullmatch(name) or not read_quantity(size) or not is_whole:
        hint = "write NAME=SIZE, NAME=SIZE/STORAGECLASS or NAME=SIZE:rwx (or :rox), such as data=10Gi"
        raise ClusterOptionError([Problem(f"{text!r} is not a claim", hint, "--claim")])
    return ClaimRequest(
        name=name,
        size=size,
        is_shared=bool(colon),
        is_read_only=shared == "rox",
        storage_class=storage_class if slash else None,
    )


def _hf_token() -> str:
    """Never said, and never written down: it goes to the cluster alone."""
    from paceline.core import environ

    path = environ.hugging_face_token_file()
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"there is no Hugging Face login in {path}", "log in: hf auth login") from error
    if not found:
        raise PacelineError(f"{path} is empty", "log in: hf auth login")
    return found
