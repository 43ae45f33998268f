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
        return [one.fix for one in self.outcomes if one.state == state]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixContext:
    """What mending needs at hand."""

    api: "KubernetesApi"
    helm: "Helm"
    records: Path  # folder
    say: Notify
    aws: "Aws | None" = None  # where it is a cluster of EKS
    eks: EksFacts | None = None


def fix_cluster(
    shop: FixContext, space: str, need: Need, asked: FixRequest, *, dry_run: bool, apply: bool
) -> FixResult:
    """Raises ApiError, HelmError; what was done until then is in the record."""
    fixes = _planned(shop, space, need, asked)
    for fix in fixes:
        for line in fix.lines():
            shop.say(line)
    states = [_state(shop, fix, apply=apply) for fix in fixes]
    _try_out(shop, [fix for fix, state in zip(fixes, states, strict=True) if state == "would"])
    record = None
    if not dry_run and "would" in states:
        record = new_record(shop.records, _stamp(), shop.api.server)
        for number, fix in enumerate(fixes):
            if states[number] == "would":
                _recorded(shop, fix, record)
                states[number] = "done"
    return FixResult(tuple(Outcome(fix, state) for fix, state in zip(fixes, states, strict=True)), record)


def _recorded(shop: FixContext, fix: Fix, record: Record) -> None:
    try:
        _carry_out(shop, fix, record)
    except PacelineError:
        shop.say(f"not done: {fix.what}")
        shop.say(f"what came before is done; take it back: paceline cluster fix --undo {record.id}")
        raise


def _planned(shop: FixContext, space: str, need: Need, asked: FixRequest) -> list[Fix]:
    from paceline.k8s.check.cluster import take_snapshot
    from paceline.k8s.client.api import ForbiddenError
    from paceline.k8s.kinds import POD

    seen = take_snapshot(shop.api, space, need.target)
    amazon = () if shop.eks is None else tuple(check_eks(shop.eks, need))
    fixes = plan_fixes(seen, [*amazon, *run_checks(seen, need).findings], asked)
    if asked.only and "helpers" not in asked.only:
        return fixes
    try:
        return [*fixes, *finished_helpers(shop.api.find(POD, space, labels=SELECTOR).items)]
    except ForbiddenError:  # who may not see pods has made none
        return fixes


def _state(shop: FixContext, fix: Fix, *, apply: bool) -> State:
    from paceline.k8s.fix.objects import object_exists

    match fix.action:
        case ByHand():
            return "by hand"
        case Install() | ChangeAddon() if not apply:
            return "waits"
        case ChangeAddon(wanted):
            return "there" if is_addon_current(_amazon(shop), wanted) else "would"
        case Install(chart):
            release = shop.helm.release(chart.release, chart.namespace)
            return "there" if release is not None and release.is_of(chart) else "would"
        case Create(manifest):
            return "there" if object_exists(shop.api, manifest) else "would"
        case RemovePod():
            return "would"


def _try_out(shop: FixContext, fixes: Sequence[Fix]) -> None:
    """Before anything is written, by the server itself. In a namespace that is yet to come it cannot."""
    coming = {_name(fix.action) for fix in fixes if fix.name == "namespace"}
    for fix in fixes:
        match fix.action:
            case Create(manifest) if mapping(manifest, "metadata").get("namespace") not in coming:
                shop.api.create(manifest, dry_run=True)
            case Install(chart):
                shop.helm.upgrade(chart, dry_run=True)
            case _:
                continue


def _carry_out(shop: FixContext, fix: Fix, record: Record) -> None:
    match fix.action:
        case Create(manifest):
            _create(shop, fix, manifest, record)
        case RemovePod(manifest):
            from paceline.k8s.fix.objects import remove_pod

            step = _step(fix.name, "remove", manifest)
            number = record.begin(step, manifest)
            remove_pod(shop.api, manifest)
            record.end(number, replace(step, state="done"), None)
        case Install(chart):
            _install(shop, fix, chart, record)
        case ChangeAddon(wanted):
            change_addon(_amazon(shop), fix.name, wanted, record)
        case ByHand():
            raise AssertionError("nobody but a person does this")


def _amazon(shop: FixContext) -> "Aws":
    assert shop.aws is not None, "an add-on is planned from what Amazon said"
    return shop.aws


def _create(shop: FixContext, fix: Fix, manifest: Object, record: Record) -> None:
    from paceline.k8s.fix.objects import with_fix_label

    step = _step(fix.name, "create", manifest)
    number = record.begin(step, None)
    wanted = with_fix_label(manifest, record.id)
    shop.api.create(wanted, dry_run=True)
    record.end(number, replace(step, state="done"), shop.api.create(wanted))


def _install(shop: FixContext, fix: Fix, chart: Chart, record: Record) -> None:
    before = shop.helm.release(chart.release, chart.namespace)
    step = Step(
        name=fix.name,
        verb="install",
        object=chart.release,
        namespace=chart.namespace,
        revision=None if before is None else before.revision,
    )
    number = record.begin(step, None if before is None else asdict(before))
    shop.helm.upgrade(chart)
    after = shop.helm.release(chart.release, chart.namespace)
    done = replace(step, state="done", made=None if after is None else after.revision)
    record.end(number, done, None if after is None else asdict(after))


def _step(name: str, verb: str, manifest: object) -> Step:
    about, whole = mapping(manifest, "metadata"), mapping(manifest)
    return Step(
        name=name,
        verb=verb,
        kind=str(whole.get("kind")),
        api_version=str(whole.get("apiVersion")),
        object=str(about.get("name")),
        namespace=str(about.get("namespace", "")),
    )


def _name(action: object) -> object:
    assert isinstance(action, Create), "a namespace is created"
    return mapping(action.manifest, "metadata").get("name")


def _stamp() -> str:
    return datetime.fromtimestamp(clock.unix_now_s(), UTC).strftime("%Y%m%d-%H%M%S")


@dataclass(frozen=True, slots=True)
class UndoneStep:
    step: Step
    why: str  # empty: it is taken back


def undo(shop: FixContext, record: Record) -> list[UndoneStep]:
    """Raises ApiError, HelmError, ConfigError. Doing it twice does nothing the second time."""
    if record.server != shop.api.server:
        what = f"fix {record.id} was made on {record.server}, and this is {shop.api.server}"
        raise ClusterOptionError([Problem(what, "name its cluster: --context NAME", "--undo")])
    results: list[UndoneStep] = []
    for number in range(len(record.steps) - 1, -1, -1):
        step = record.steps[number]
        if step.state == "undone":
            continue  # what was kept is looked at again: it may be empty by now
        why = _take_back(shop, step, record.id)
        record.steps[number] = replace(step, state="kept" if why else "undone")
        record.save()
        results.append(UndoneStep(step, why))
    return results


def _take_back(shop: FixContext, step: Step, fix: str) -> str:
    """Why it stays as it is; empty: it is taken back."""
    if step.verb == "remove":
        return "a pod that had ended does not come back; what it was is in the record's folder"
    if step.verb == "install":
        return shop.helm.take_back(step.object, step.namespace, step.revision, step.made)
    if step.verb == "addon":
        return revert_addon(shop.aws, step)
    from paceline.k8s.client.api import NotThereError
    from paceline.k8s.fix.objects import reason_to_keep
    from paceline.k8s.kinds import kind_of

    kind = kind_of({"kind": step.kind, "apiVersion": step.api_version})
    space = step.namespace if kind.is_namespaced else None
    try:
        made = shop.api.get(kind, step.object, space)
    except NotThereError:
        return ""  # somebody was quicker
    why = reason_to_keep(shop.api, kind, made, fix)
    if not why:
        shop.api.delete(kind, step.object, space)
    return why


def installed_addon(aws: "Aws", wanted: AddonRequest) -> Addon | None:
    from paceline.k8s.check.eks_probe import read_addon
    from paceline.k8s.client.eks import AbsentError

    try:
        return read_addon(aws, wanted.cluster, wanted.name)
    except AbsentError:
        return None


def is_addon_current(aws: "Aws", wanted: AddonRequest) -> bool:
    found = installed_addon(aws, wanted)
    return found is not None and found.version == wanted.version and found.status in ("ACTIVE", "UPDATING")


def change_addon(aws: "Aws", name: str, wanted: AddonRequest, record: Record) -> None:
    """Raises AwsError; what was written down until then can be undone. Settings of others are preserved."""
    before = installed_addon(aws, wanted)
    step = Step(
        name=name,
        verb="addon",
        object=wanted.name,
        cluster=wanted.cluster,
        region=wanted.region,
        version="" if before is None else before.version,
        wanted=wanted.version,
    )
    number = record.begin(step, None if before is None else asdict(before))
    asked = {"clusterName": wanted.cluster, "addonName": wanted.name, "addonVersion": wanted.version}
    if before is None:
        aws.ask("eks", "create_addon", **asked, resolveConflicts="NONE")
    else:
        aws.ask("eks", "update_addon", **asked, resolveConflicts="PRESERVE")
    aws.wait_for_addon(wanted.cluster, wanted.name, "addon_active")
    after = installed_addon(aws, wanted)
    record.end(number, replace(step, state="done"), None if after is None else asdict(after))


def revert_addon(aws: "Aws | None", step: Step) -> str:
    """To the version before; or away, if there was none. Why not; empty: it is."""
    if aws is None:
        hint = f"say --eks {step.cluster} --region {step.region}"
        raise NotReadyError(f"add-on {step.object} is Amazon's, and nobody said how to reach it", hint)
    here = AddonRequest(cluster=step.cluster, region=step.region, name=step.object, version=step.version)
    found = installed_addon(aws, here)
    if found is None or found.version == step.version:
        return ""  # it never came to be, or somebody was quicker
    if step.wanted and found.version != step.wanted:
        return f"add-on {step.object} is {found.version}, and this fix made {step.wanted}"
    asked = {"clusterName": step.cluster, "addonName": step.object}
    if not step.version:
        aws.ask("eks", "delete_addon", **asked)
        aws.wait_for_addon(step.cluster, step.object, "addon_deleted")
        return ""
    aws.ask("eks", "update_addon", **asked, addonVersion=step.version, resolveConflicts="PRESERVE")
    aws.wait_for_addon(step.cluster, step.object, "addon_active")
    return ""


@contextmanager
def open_fix_context(
    kubeconfig: Path | None, context: str | None, records: Path, say: Notify
) -> Iterator[tuple[FixContext, str]]:
    """With the namespace that the context names. Raises NotReadyError."""
    place = ClusterTarget(kubeconfig=kubeconfig, context=context)
    with open_cluster(place, without="plan for a snapshot: --from SNAPSHOT.json") as cluster:
        helm = Helm(cluster.kubeconfig, context)
        yield FixContext(api=cluster.api, helm=helm, records=records, say=say), cluster.namespace
