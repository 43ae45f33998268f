"""Pre-flight checks of a job: rights, kinds, what its pods refer to, its operator, room, and a dry run.

Everything is asked before anything exists. What the user may not look at is noted, and stops nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.errors import Problem
from paceline.k8s.check.checks import OPERATORS
from paceline.k8s.check.findings import namespaced_name, readiness
from paceline.k8s.check.operators import TRAINER_CONFIG, TRAINER_NAMESPACE, version_in
from paceline.k8s.client.api import (
    Api,
    ConflictError,
    ForbiddenError,
    Manifest,
    NotThereError,
    is_allowed,
    user_of,
)
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    NODE,
    PRIORITY_CLASS,
    QUOTA,
    RESOURCE_SLICE,
    SECRET,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    Kind,
    kind_of,
)
from paceline.k8s.objects import mapping
from paceline.k8s.rbac import advice, rights_for
from paceline.k8s.submit.capacity import (
    CapacityRow,
    check_capacity,
    has_claims,
    quota_rows,
    with_claims,
    with_devices,
)
from paceline.k8s.submit.job_objects import existing_companions, find_job
from paceline.k8s.submit.pending_attempts import find_pending
from paceline.k8s.submit.requirements import (
    Reference,
    Role,
    find_version_mismatch,
    has_train_job,
    prerequisites,
    references,
    roles,
)

_NODE_POOL = Kind("NodePool", "nodepools", "v1", "karpenter.sh", is_namespaced=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    problems: list[Problem] = field(default_factory=list)
    rows: list[CapacityRow] = field(default_factory=list)  # need and has
    notes: list[str] = field(default_factory=list)
    to_make: list[Manifest] = field(default_factory=list)  # beside the job

    @property
    def is_fine(self) -> bool:
        return not self.problems and all(row.is_enough for row in self.rows)


def preflight(
    api: Api, beside: Sequence[Manifest], job: Manifest, namespace: str, *, fits: bool = True
) -> Preflight:
    """`fits`: refuse what has no room on any nodes. Raises ApiError where the server says no."""
    missing = _kinds_missing(api, [*beside, job])
    if missing:
        return Preflight(problems=missing)
    unfit = trainer_version_mismatch(api, [*beside, job])
    if unfit is not None:
        return Preflight(problems=[unfit])
    refused = _rights_missing(api, [*beside, job], kind_of(dict(job)), namespace)
    if refused:
        return Preflight(problems=refused)
    found = find_job(api, name_of(job), namespace)
    if found is not None:
        what = f"{found[0].name} {name_of(job)} is in namespace {namespace} already"
        hint = f"choose another name, or remove it: paceline job stop {name_of(job)} -n {namespace}"
        raise ConflictError(what, hint, status=409)
    if find_pending(api, name_of(job), namespace) is not None:
        what = f"job {name_of(job)} is being started again in namespace {namespace}"
        hint = f"choose another name, or remove it: paceline job stop {name_of(job)} -n {namespace}"
        raise ConflictError(what, hint, status=409)
    same = existing_companions(api, beside)
    to_make = [one for one in beside if one not in same]
    absent, unseen = _references_missing(api, [*beside, job], namespace)
    idle, unwatched = _operator_missing(api, job)
    if absent or idle:
        return Preflight(problems=[*idle, *absent])
    rows, notes = _room(api, [*beside, job], namespace, fits=fits)
    notes += [*unwatched, *unseen]
    notes += [f"{one['kind']} {name_of(one)} is there already, and the same" for one in same]
    if all(row.is_enough for row in rows):
        for one in to_make:
            api.create(one, dry_run=True)
        if not prerequisites(job, to_make):  # else its webhook refuses it until that object is there
            api.create(job, dry_run=True)
    return Preflight(rows=rows, notes=notes, to_make=to_make)


def _kinds_missing(api: Api, manifests: Sequence[Manifest]) -> list[Problem]:
    kinds = {kind_of(dict(one)) for one in manifests}
    return [
        Problem(
            f"the cluster has no {kind.name} ({kind.api_version})",
            f"paceline cluster check says what is installed; it takes {kind.api_version}",
        )
        for kind in sorted(kinds, key=lambda kind: kind.plural)
        if not api.serves(kind)
    ]


def trainer_version_mismatch(api: Api, manifests: Sequence[Object]) -> Problem | None:
    """None also where the version cannot be read: then the server's own dry run must do."""
    if not has_train_job(manifests):
        return None
    try:
        version = version_in(api.get(CONFIG_MAP, TRAINER_CONFIG, TRAINER_NAMESPACE))
    except (NotThereError, ForbiddenError):
        return None
    return find_version_mismatch(manifests, version)


def _rights_missing(api: Api, manifests: Sequence[Manifest], job: Kind, namespace: str) -> list[Problem]:
    beside = [kind_of(dict(one)).resource for one in manifests if kind_of(dict(one)) != job]
    required = [right for right in rights_for(job.resource, beside) if right.is_required]
    missing = [right for right in required if not is_allowed(api, right, namespace)]
    if not missing:
        return []
    what = f"you may not {', '.join(right.key for right in missing)} in namespace {namespace}"
    return [Problem(what, advice(missing, namespace, user_of(api)))]


_OF_REFERENCES = {kind.name: kind for kind in (CLAIM, SECRET, CONFIG_MAP, SERVICE_ACCOUNT, PRIORITY_CLASS)}


def _references_missing(
    api: Api, manifests: Sequence[Manifest], namespace: str
) -> tuple[list[Problem], list[str]]:
    """Problems, and notes on what is not checked or not as it should be."""
    problems, notes, hidden = list[Problem](), list[str](), list[str]()
    for one in references(manifests):
        kind = _OF_REFERENCES[one.kind]
        where = namespace if kind.is_namespaced else None
        called = f"{one.kind} {one.name}"
        try:
            if kind is CLAIM:
                notes += _claim_notes(api, one.name, namespace, problems)
            else:
                api.about(kind, one.name, where)
        except ForbiddenError:
            hidden.append(called)
        except NotThereError:
            if one.is_required:
                problems.append(_absent(one, namespace if kind.is_namespaced else ""))
            else:
                notes.append(f"{called} is not in namespace {namespace}; pods start without it")
    if hidden:
        notes.append(f"not checked, because you may not look: {', '.join(hidden)}")
    return problems, notes


def _absent(one: Reference, namespace: str) -> Problem:
    where = f" in namespace {namespace}" if namespace else ""
    what = f"the job's pods need {one.kind} {one.name}, which is not there{where}"
    option = f" -n {namespace}" if namespace else ""
    resource = _OF_REFERENCES[one.kind].resource
    return Problem(what, f"create it, or change the name; kubectl get {resource}{option} lists what is there")


def _claim_notes(api: Api, name: str, namespace: str, problems: list[Problem]) -> list[str]:
    claim = api.get(CLAIM, name, namespace)
    phase = mapping(claim, "status").get("phase")
    if phase == "Lost":
        what = f"PersistentVolumeClaim {name} has lost its volume"
        problems.append(Problem(what, f"kubectl -n {namespace} describe pvc {name}"))
    if phase in ("Bound", "Lost", None):
        return []
    storage = str(mapping(claim, "spec").get("storageClassName", ""))
    try:
        mode = api.get(STORAGE_CLASS, storage).get("volumeBindingMode") if storage else None
    except (ForbiddenError, NotThereError):
        mode = None
    if mode == "WaitForFirstConsumer":
        return []
    return [f"PersistentVolumeClaim {name} is {phase}, not Bound: pods wait until it is"]


def _operator_missing(api: Api, job: Manifest) -> tuple[list[Problem], list[str]]:
    """A Deployment that is not ready is a problem. None at all is not: the operator may run elsewhere."""
    wanted = OPERATORS.get(str(job["kind"]), ())
    if not wanted:
        return [], []
    try:
        deployed = api.find(DEPLOYMENT).items
    except (ForbiddenError, NotThereError):
        names = " and ".join(name for name, _ in wanted)
        return [], [f"not checked, because you may not list deployments: whether {names} is at work"]
    problems: list[Problem] = []
    notes: list[str] = []
    for name, is_it in wanted:
        found = [one for one in deployed if is_it(one)]
        if not found:
            notes.append(f"no Deployment of {name} is to be seen: without it nothing happens to the job")
        elif all(readiness(one)[0] < 1 for one in found):
            space, _, its = namespaced_name(found[0]).partition("/")
            what = f"{name} is not at work: Deployment {space}/{its} has no ready pod"
            hint = f"kubectl -n {space} describe deployment {its}; the job would wait without a word"
            problems.append(Problem(what, hint))
    return problems, notes


def _room(
    api: Api, manifests: Sequence[Manifest], namespace: str, *, fits: bool
) -> tuple[list[CapacityRow], list[str]]:
    gang, notes, rows = roles(manifests), list[str](), list[CapacityRow]()
    claiming = with_claims(gang, manifests)
    try:
        rows += quota_rows(claiming, api.find(QUOTA, namespace).items)
    except (ForbiddenError, NotThereError):
        notes.append("quotas may not be seen: the server will say if one is too small")
    try:
        adding = _adds_nodes(api) if fits else ""
        found = [] if not fits or adding else _on_nodes(api, gang, claiming, notes)
        if fits and gang and not found:
            notes.append(f"{adding or 'an autoscaler'} may bring nodes: whether it fits is not known")
        rows += found
    except (ForbiddenError, NotThereError):
        notes.append("nodes may not be seen: whether it fits is not known")
    return rows, notes


def _on_nodes(
    api: Api, gang: Sequence[Role], claiming: Sequence[Role], notes: list[str]
) -> list[CapacityRow]:
    """`claiming` counts what is claimed by DRA, too; where nobody says what nodes offer, `gang` must do."""
    nodes = api.find(NODE).items
    if not has_claims(gang):
        return check_capacity(gang, nodes)
    try:
        return check_capacity(claiming, with_devices(nodes, api.find(RESOURCE_SLICE).items))
    except (ForbiddenError, NotThereError):
        notes.append("ResourceSlices may not be seen: whether there are GPUs for its claims is not known")
        return check_capacity(gang, nodes)


def _adds_nodes(api: Api) -> str:
    """Who does, or nothing. Karpenter has a kind of its own; a cluster autoscaler keeps its state in a
    ConfigMap."""
    if api.serves(_NODE_POOL):
        return "Karpenter"
    try:
        api.get(CONFIG_MAP, "cluster-autoscaler-status", "kube-system")
    except (NotThereError, ForbiddenError):
        return ""
    return "the cluster autoscaler"
