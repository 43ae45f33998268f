"""How is a cluster mended? Look, plan, try everything on the server, and only then write: each step recorded.

A second run finds that everything is there, and writes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline import clock
from paceline.app.fix_record import Record, Step, new_record
from paceline.errors import PacelineError
from paceline.kube.checks.check import check
from paceline.kube.checks.eks import check as check_eks
from paceline.kube.checks.eks_facts import EksFacts
from paceline.kube.checks.need import Need
from paceline.kube.fixes.action import ByHand, ChangeAddon, Create, Fix, Install, RemovePod
from paceline.kube.fixes.charts import Chart
from paceline.kube.fixes.plan import Asked, finished_helpers, plan
from paceline.kube.parts import Object
from paceline.kube.reading import mapping
from paceline.kube.transfer.helper import SELECTOR

if TYPE_CHECKING:
    from paceline.cluster.eks_door import Aws
    from paceline.cluster.helm_door import Helm
    from paceline.cluster.kubernetes_door import KubernetesApi

State = Literal["there", "would", "done", "waits", "by hand"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    fix: Fix
    state: State  # waits: planned, and needs --apply


@dataclass(frozen=True, slots=True)
class Fixed:
    outcomes: tuple[Outcome, ...]
    record: Record | None  # None: nothing was written

    def of(self, state: State) -> list[Fix]:
        return [one.fix for one in self.outcomes if one.state == state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What mending needs at hand."""

    api: "KubernetesApi"
    helm: "Helm"
    records: Path  # folder
    say: Say
    aws: "Aws | None" = None  # where it is a cluster of EKS
    eks: EksFacts | None = None


def fix_cluster(shop: Workshop, space: str, need: Need, asked: Asked, *, dry_run: bool, apply: bool) -> Fixed:
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
    return Fixed(tuple(Outcome(fix, state) for fix, state in zip(fixes, states, strict=True)), record)


def _recorded(shop: Workshop, fix: Fix, record: Record) -> None:
    try:
        _carry_out(shop, fix, record)
    except PacelineError:
        shop.say(f"not done: {fix.what}")
        shop.say(f"what came before is done; take it back: paceline cluster fix --undo {record.id}")
        raise


def _planned(shop: Workshop, space: str, need: Need, asked: Asked) -> list[Fix]:
    from paceline.cluster.kinds import POD
    from paceline.cluster.port import ForbiddenError
    from paceline.cluster.snapshot import take_snapshot

    seen = take_snapshot(shop.api, space, need.target)
    amazon = () if shop.eks is None else tuple(check_eks(shop.eks, need))
    fixes = plan(seen, [*amazon, *check(seen, need).findings], asked)
    if asked.only and "helpers" not in asked.only:
        return fixes
    try:
        return [*fixes, *finished_helpers(shop.api.find(POD, space, labels=SELECTOR).items)]
    except ForbiddenError:  # who may not see pods has made none
        return fixes


def _state(shop: Workshop, fix: Fix, *, apply: bool) -> State:
    from paceline.cluster.fixing import is_there

    match fix.action:
        case ByHand():
            return "by hand"
        case Install() | ChangeAddon() if not apply:
            return "waits"
        case ChangeAddon(wanted):
            from paceline.app.addon_fix import is_as_wanted

            return "there" if is_as_wanted(_amazon(shop), wanted) else "would"
        case Install(chart):
            release = shop.helm.release(chart.release, chart.namespace)
            return "there" if release is not None and release.is_of(chart) else "would"
        case Create(manifest):
            return "there" if is_there(shop.api, manifest) else "would"
        case RemovePod():
            return "would"


def _try_out(shop: Workshop, fixes: Sequence[Fix]) -> None:
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


def _carry_out(shop: Workshop, fix: Fix, record: Record) -> None:
    match fix.action:
        case Create(manifest):
            _create(shop, fix, manifest, record)
        case RemovePod(manifest):
            from paceline.cluster.fixing import remove_pod

            step = _step(fix.name, "remove", manifest)
            number = record.begin(step, manifest)
            remove_pod(shop.api, manifest)
            record.end(number, replace(step, state="done"), None)
        case Install(chart):
            _install(shop, fix, chart, record)
        case ChangeAddon(wanted):
            from paceline.app.addon_fix import change_addon

            change_addon(_amazon(shop), fix.name, wanted, record)
        case ByHand():
            raise AssertionError("nobody but a person does this")


def _amazon(shop: Workshop) -> "Aws":
    assert shop.aws is not None, "an add-on is planned from what Amazon said"
    return shop.aws


def _create(shop: Workshop, fix: Fix, manifest: Object, record: Record) -> None:
    from paceline.cluster.fixing import marked

    step = _step(fix.name, "create", manifest)
    number = record.begin(step, None)
    wanted = marked(manifest, record.id)
    shop.api.create(wanted, dry_run=True)
    record.end(number, replace(step, state="done"), shop.api.create(wanted))


def _install(shop: Workshop, fix: Fix, chart: Chart, record: Record) -> None:
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
