"""Cluster fix: take a snapshot, plan, try everything by a dry run, and only then write; each step is
recorded.

A second run finds that everything is there, and writes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core import clock
from paceline.core.errors import ClusterOptionError, NotReadyError, PacelineError, Problem
from paceline.k8s.charts import Chart
from paceline.k8s.check.checks import run_checks
from paceline.k8s.check.eks import check as check_eks
from paceline.k8s.check.findings import Need
from paceline.k8s.check.snapshot import Addon, AddonRequest, EksFacts
from paceline.k8s.client.connection import ClusterTarget, open_cluster
from paceline.k8s.client.helm import Helm
from paceline.k8s.fix.actions import ByHand, ChangeAddon, Create, Fix, Install, RemovePod
from paceline.k8s.fix.plan import FixRequest, finished_helpers, plan_fixes
from paceline.k8s.fix.record import Record, Step, new_record
from paceline.k8s.objects import mapping
from paceline.k8s.render.pod import Object
from paceline.k8s.transfer.pod_manifest import SELECTOR

if TYPE_CHECKING:
    from paceline.k8s.client.eks import Aws
    from paceline.k8s.client.helm import Helm
    from paceline.k8s.client.kubernetes_api import KubernetesApi


State = Literal["there", "would", "done", "waits", "by hand"]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    fix: Fix
    state: State  # waits: planned, and needs --apply


@dataclass(frozen=True, slots=True)
class FixResult:
    outcomes: tuple[Outcome, ...]
    record: Record | None  # None: nothing was written

    def of(self, state: State) -> list[Fix]:
        return [outcome.fix for outcome in self.outcomes if outcome.state == state]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixContext:
    """Clients and folders that a fix uses."""

    api: "KubernetesApi"
    helm: "Helm"
    records: Path  # folder
    say: Notify
    aws: "Aws | None" = None  # set for EKS clusters
    eks: EksFacts | None = None


def fix_cluster(
    context: FixContext, space: str, need: Need, request: FixRequest, *, dry_run: bool, apply: bool
) -> FixResult:
    """Raises ApiError, HelmError; what was done until then is in the record."""
    fixes = _planned(context, space, need, request)
    for fix in fixes:
        for line in fix.lines():
            context.say(line)
    states = [_state(context, fix, apply=apply) for fix in fixes]
    _try_out(context, [fix for fix, state in zip(fixes, states, strict=True) if state == "would"])
    record = None
    if not dry_run and "would" in states:
        record = new_record(context.records, _stamp(), context.api.server)
        for number, fix in enumerate(fixes):
            if states[number] == "would":
                _recorded(context, fix, record)
                states[number] = "done"
    return FixResult(tuple(Outcome(fix, state) for fix, state in zip(fixes, states, strict=True)), record)


def _recorded(context: FixContext, fix: Fix, record: Record) -> None:
    try:
        _carry_out(context, fix, record)
    except PacelineError:
        context.say(f"failed: {fix.what}")
        context.say(f"earlier fixes were applied; undo them: paceline cluster fix --undo {record.id}")
        raise


def _planned(context: FixContext, space: str, need: Need, request: FixRequest) -> list[Fix]:
    from paceline.k8s.check.cluster import take_snapshot
    from paceline.k8s.client.api import ForbiddenError
    from paceline.k8s.kinds import POD

    seen = take_snapshot(context.api, space, need.target)
    amazon = () if context.eks is None else tuple(check_eks(context.eks, need))
    fixes = plan_fixes(seen, [*amazon, *run_checks(seen, need).findings], request)
    if request.only and "helpers" not in request.only:
        return fixes
    try:
        return [*fixes, *finished_helpers(context.api.find(POD, space, labels=SELECTOR).items)]
    except ForbiddenError:  # without the right to list pods there are no helpers of this user
        return fixes


def _state(context: FixContext, fix: Fix, *, apply: bool) -> State:
    from paceline.k8s.fix.objects import object_exists

    match fix.action:
        case ByHand():
            return "by hand"
        case Install() | ChangeAddon() if not apply:
            return "waits"
        case ChangeAddon(request):
            return "there" if is_addon_current(_amazon(context), request) else "would"
        case Install(chart):
            release = context.helm.release(chart.release, chart.namespace)
            return "there" if release is not None and release.is_of(chart) else "would"
        case Create(manifest):
            return "there" if object_exists(context.api, manifest) else "would"
        case RemovePod():
            return "would"


def _try_out(context: FixContext, fixes: Sequence[Fix]) -> None:
    """Server-side dry run before any write. Not possible in a namespace that does not exist yet."""
    coming = {_name(fix.action) for fix in fixes if fix.name == "namespace"}
    for fix in fixes:
        match fix.action:
            case Create(manifest) if mapping(manifest, "metadata").get("namespace") not in coming:
                context.api.create(manifest, dry_run=True)
            case Install(chart):
                context.helm.upgrade(chart, dry_run=True)
            case _:
                continue


def _carry_out(context: FixContext, fix: Fix, record: Record) -> None:
    match fix.action:
        case Create(manifest):
            _create(context, fix, manifest, record)
        case RemovePod(manifest):
            from paceline.k8s.fix.objects import remove_pod

            step = _step(fix.name, "remove", manifest)
            number = record.begin(step, manifest)
            remove_pod(context.api, manifest)
            record.end(number, replace(step, state="done"), None)
        case Install(chart):
            _install(context, fix, chart, record)
        case ChangeAddon(request):
            change_addon(_amazon(context), fix.name, request, record)
        case ByHand():
            raise AssertionError("only a person carries out such a fix")


def _amazon(context: FixContext) -> "Aws":
    assert context.aws is not None, "an add-on is planned from what Amazon said"
    return context.aws


def _create(context: FixContext, fix: Fix, manifest: Object, record: Record) -> None:
    from paceline.k8s.fix.objects import with_fix_label

    step = _step(fix.name, "create", manifest)
    number = record.begin(step, None)
    labelled = with_fix_label(manifest, record.id)
    context.api.create(labelled, dry_run=True)
    record.end(number, replace(step, state="done"), context.api.create(labelled))


def _install(context: FixContext, fix: Fix, chart: Chart, record: Record) -> None:
    before = context.helm.release(chart.release, chart.namespace)
    step = Step(
        name=fix.name,
        verb="install",
        object=chart.release,
        namespace=chart.namespace,
        revision=None if before is None else before.revision,
    )
    number = record.begin(step, None if before is None else asdict(before))
    context.helm.upgrade(chart)
    after = context.helm.release(chart.release, chart.namespace)
    done = replace(step, state="done", made=None if after is None else after.revision)
    record.end(number, done, None if after is None else asdict(after))


def _step(name: str, verb: str, manifest: object) -> Step:
    metadata = mapping(manifest, "metadata")
    whole = mapping(manifest)
    return Step(
        name=name,
        verb=verb,
        kind=str(whole.get("kind")),
        api_version=str(whole.get("apiVersion")),
        object=str(metadata.get("name")),
        namespace=str(metadata.get("namespace", "")),
    )


def _name(action: object) -> object:
    assert isinstance(action, Create), "a namespace is created"
    return mapping(action.manifest, "metadata").get("name")


def _stamp() -> str:
    return datetime.fromtimestamp(clock.unix_now_s(), UTC).strftime("%Y%m%d-%H%M%S")


@dataclass(frozen=True, slots=True)
class UndoneStep:
    step: Step
    why: str  # why it stays; empty: it is undone


def undo(context: FixContext, record: Record) -> list[UndoneStep]:
    """Undo a record. Idempotent. Raises ApiError, HelmError, ConfigError."""
    if record.server != context.api.server:
        message = f"fix {record.id} was applied to {record.server}, but this is {context.api.server}"
        raise ClusterOptionError([Problem(message, "name its cluster: --context NAME", "--undo")])
    results: list[UndoneStep] = []
    for number in range(len(record.steps) - 1, -1, -1):
        step = record.steps[number]
        if step.state == "undone":
            continue  # a kept step is checked again: it may be empty by now
        why = _undo_step(context, step, record.id)
        record.steps[number] = replace(step, state="kept" if why else "undone")
        record.save()
        results.append(UndoneStep(step, why))
    return results


def _undo_step(context: FixContext, step: Step, fix: str) -> str:
    """Undo a step, and return "", or why it stays."""
    if step.verb == "remove":
        return "a finished pod is not recreated; its manifest is in the record's folder"
    if step.verb == "install":
        return context.helm.take_back(step.object, step.namespace, step.revision, step.made)
    if step.verb == "addon":
        return revert_addon(context.aws, step)
    from paceline.k8s.client.api import NotThereError
    from paceline.k8s.fix.objects import reason_to_keep
    from paceline.k8s.kinds import kind_of

    kind = kind_of({"kind": step.kind, "apiVersion": step.api_version})
    space = step.namespace if kind.is_namespaced else None
    try:
        created = context.api.get(kind, step.object, space)
    except NotThereError:
        return ""  # it is removed already
    why = reason_to_keep(context.api, kind, created, fix)
    if not why:
        context.api.delete(kind, step.object, space)
    return why


def installed_addon(aws: "Aws", request: AddonRequest) -> Addon | None:
    from paceline.k8s.check.eks_probe import read_addon
    from paceline.k8s.client.eks import AbsentError

    try:
        return read_addon(aws, request.cluster, request.name)
    except AbsentError:
        return None


def is_addon_current(aws: "Aws", request: AddonRequest) -> bool:
    installed = installed_addon(aws, request)
    return (
        installed is not None
        and installed.version == request.version
        and installed.status in ("ACTIVE", "UPDATING")
    )


def change_addon(aws: "Aws", name: str, request: AddonRequest, record: Record) -> None:
    """Raises AwsError; what was written down until then can be undone. Settings of others are preserved."""
    before = installed_addon(aws, request)
    step = Step(
        name=name,
        verb="addon",
        object=request.name,
        cluster=request.cluster,
        region=request.region,
        version="" if before is None else before.version,
        wanted=request.version,
    )
    number = record.begin(step, None if before is None else asdict(before))
    parameters = {"clusterName": request.cluster, "addonName": request.name, "addonVersion": request.version}
    if before is None:
        aws.ask("eks", "create_addon", **parameters, resolveConflicts="NONE")
    else:
        aws.ask("eks", "update_addon", **parameters, resolveConflicts="PRESERVE")
    aws.wait_for_addon(request.cluster, request.name, "addon_active")
    after = installed_addon(aws, request)
    record.end(number, replace(step, state="done"), None if after is None else asdict(after))


def revert_addon(aws: "Aws | None", step: Step) -> str:
    """Revert to the previous version, or remove a new add-on. Returns why not; empty on success."""
    if aws is None:
        hint = f"use --eks {step.cluster} --region {step.region}"
        raise NotReadyError(f"add-on {step.object} is an EKS add-on, but no EKS cluster is given", hint)
    request = AddonRequest(cluster=step.cluster, region=step.region, name=step.object, version=step.version)
    installed = installed_addon(aws, request)
    if installed is None or installed.version == step.version:
        return ""  # it was never created, or is removed already
    if step.wanted and installed.version != step.wanted:
        return f"add-on {step.object} is {installed.version}, but this fix installed {step.wanted}"
    parameters = {"clusterName": step.cluster, "addonName": step.object}
    if not step.version:
        aws.ask("eks", "delete_addon", **parameters)
        aws.wait_for_addon(step.cluster, step.object, "addon_deleted")
        return ""
    aws.ask("eks", "update_addon", **parameters, addonVersion=step.version, resolveConflicts="PRESERVE")
    aws.wait_for_addon(step.cluster, step.object, "addon_active")
    return ""


@contextmanager
def open_fix_context(
    kubeconfig: Path | None, context: str | None, records: Path, notify: Notify
) -> Iterator[tuple[FixContext, str]]:
    """Fix context with the namespace of the kubeconfig context. Raises NotReadyError."""
    target = ClusterTarget(kubeconfig=kubeconfig, context=context)
    with open_cluster(target, without="plan for a snapshot: --from SNAPSHOT.json") as cluster:
        helm = Helm(cluster.kubeconfig, context)
        yield FixContext(api=cluster.api, helm=helm, records=records, say=notify), cluster.namespace
