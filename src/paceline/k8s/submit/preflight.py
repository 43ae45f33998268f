"""Pre-flight checks of a job: rights, kinds, references of its pods, its operator, capacity, and a dry run.

All checks run before anything is created. A check without the right to read is noted, and not fatal.
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
    to_make: list[Manifest] = field(default_factory=list)  # companions of the job

    @property
    def is_fine(self) -> bool:
        return not self.problems and all(row.is_enough for row in self.rows)


def preflight(
    api: Api, companions: Sequence[Manifest], job: Manifest, namespace: str, *, fits: bool = True
) -> Preflight:
    """`fits`: refuse what has no room on any nodes. Raises ApiError if the server refuses."""
    missing = _kinds_missing(api, [*companions, job])
    if missing:
        return Preflight(problems=missing)
    unfit = trainer_version_mismatch(api, [*companions, job])
    if unfit is not None:
        return Preflight(problems=[unfit])
    refused = _rights_missing(api, [*companions, job], kind_of(dict(job)), namespace)
    if refused:
        return Preflight(problems=refused)
    existing = find_job(api, name_of(job), namespace)
    if existing is not None:
        message = f"{existing[0].name} {name_of(job)} exists already in namespace {namespace}"
        hint = f"choose another name, or remove it: paceline job stop {name_of(job)} -n {namespace}"
        raise ConflictError(message, hint, status=409)
    if find_pending(api, name_of(job), namespace) is not None:
        message = f"job {name_of(job)} is being restarted in namespace {namespace}"
        hint = f"choose another name, or remove it: paceline job stop {name_of(job)} -n {namespace}"
        raise ConflictError(message, hint, status=409)
    same = existing_companions(api, companions)
    to_make = [companion for companion in companions if companion not in same]
    absent, unseen = _references_missing(api, [*companions, job], namespace)
    idle, unwatched = _operator_missing(api, job)
    if absent or idle:
        return Preflight(problems=[*idle, *absent])
    rows, notes = _capacity(api, [*companions, job], namespace, fits=fits)
    notes += [*unwatched, *unseen]
    notes += [
        f"{manifest['kind']} {name_of(manifest)} exists already, with the same content" for manifest in same
    ]
    if all(row.is_enough for row in rows):
        for manifest in to_make:
            api.create(manifest, dry_run=True)
        if not prerequisites(job, to_make):  # else its webhook refuses it until that object exists
            api.create(job, dry_run=True)
    return Preflight(rows=rows, notes=notes, to_make=to_make)


def _kinds_missing(api: Api, manifests: Sequence[Manifest]) -> list[Problem]:
    kinds = {kind_of(dict(manifest)) for manifest in manifests}
    return [
        Problem(
            f"the cluster has no {kind.name} ({kind.api_version})",
            f"{kind.api_version} is required; see what is installed: paceline cluster check",
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
    companions = [
        kind_of(dict(manifest)).resource for manifest in manifests if kind_of(dict(manifest)) != job
    ]
    required = [right for right in rights_for(job.resource, companions) if right.is_required]
    missing = [right for right in required if not is_allowed(api, right, namespace)]
    if not missing:
        return []
    message = f"you may not {', '.join(right.key for right in missing)} in namespace {namespace}"
    return [Problem(message, advice(missing, namespace, user_of(api)))]


_OF_REFERENCES = {kind.name: kind for kind in (CLAIM, SECRET, CONFIG_MAP, SERVICE_ACCOUNT, PRIORITY_CLASS)}


def _references_missing(
    api: Api, manifests: Sequence[Manifest], namespace: str
) -> tuple[list[Problem], list[str]]:
    """Problems, and notes on what is not checked or not as it should be."""
    problems = list[Problem]()
    notes = list[str]()
    hidden = list[str]()
    for reference in references(manifests):
        kind = _OF_REFERENCES[reference.kind]
        where = namespace if kind.is_namespaced else None
        called = f"{reference.kind} {reference.name}"
        try:
            if kind is CLAIM:
                notes += _claim_notes(api, reference.name, namespace, problems)
            else:
                api.about(kind, reference.name, where)
        except ForbiddenError:
            hidden.append(called)
        except NotThereError:
            if reference.is_required:
                problems.append(_absent(reference, namespace if kind.is_namespaced else ""))
            else:
                notes.append(f"{called} is not in namespace {namespace}; pods start without it")
    if hidden:
        notes.append(f"not checked, for lack of permission: {', '.join(hidden)}")
    return problems, notes


def _absent(reference: Reference, namespace: str) -> Problem:
    where = f" in namespace {namespace}" if namespace else ""
    message = f"the job's pods need {reference.kind} {reference.name}, which does not exist{where}"
    option = f" -n {namespace}" if namespace else ""
    resource = _OF_REFERENCES[reference.kind].resource
    return Problem(
        message, f"create it, or change the name; kubectl get {resource}{option} lists what is there"
    )


def _claim_notes(api: Api, name: str, namespace: str, problems: list[Problem]) -> list[str]:
    claim = api.get(CLAIM, name, namespace)
    phase = mapping(claim, "status").get("phase")
    if phase == "Lost":
        message = f"PersistentVolumeClaim {name} has lost its volume"
        problems.append(Problem(message, f"kubectl -n {namespace} describe pvc {name}"))
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
    """A Deployment that is not ready is a problem. An absent one is not: the operator may run elsewhere."""
    operator_names = OPERATORS.get(str(job["kind"]), ())
    if not operator_names:
        return [], []
    try:
        deployed = api.find(DEPLOYMENT).items
    except (ForbiddenError, NotThereError):
        names = " and ".join(name for name, _ in operator_names)
        return [], [f"not checked, because you may not list deployments: whether {names} is running"]
    problems: list[Problem] = []
    notes: list[str] = []
    for name, is_it in operator_names:
        operators = [operator for operator in deployed if is_it(operator)]
        if not operators:
            notes.append(f"no Deployment of {name} is visible: without it the job does not start")
        elif all(readiness(operator)[0] < 1 for operator in operators):
            space, _, its = namespaced_name(operators[0]).partition("/")
            message = f"{name} is not running: Deployment {space}/{its} has no ready pod"
            hint = f"kubectl -n {space} describe deployment {its}; the job would wait without a word"
            problems.append(Problem(message, hint))
    return problems, notes


def _capacity(
    api: Api, manifests: Sequence[Manifest], namespace: str, *, fits: bool
) -> tuple[list[CapacityRow], list[str]]:
    gang = roles(manifests)
    notes = list[str]()
    rows = list[CapacityRow]()
    claiming = with_claims(gang, manifests)
    try:
        rows += quota_rows(claiming, api.find(QUOTA, namespace).items)
    except (ForbiddenError, NotThereError):
        notes.append("quotas cannot be read: the server rejects the job if one is too small")
    try:
        adding = _adds_nodes(api) if fits else ""
        node_rows = [] if not fits or adding else _on_nodes(api, gang, claiming, notes)
        if fits and gang and not node_rows:
            notes.append(f"{adding or 'an autoscaler'} may add nodes: whether the job fits is unknown")
        rows += node_rows
    except (ForbiddenError, NotThereError):
        notes.append("nodes cannot be read: whether the job fits is unknown")
    return rows, notes


def _on_nodes(
    api: Api, gang: Sequence[Role], claiming: Sequence[Role], notes: list[str]
) -> list[CapacityRow]:
    """`claiming` also counts DRA claims; where no ResourceSlices are known, `gang` is used."""
    nodes = api.find(NODE).items
    if not has_claims(gang):
        return check_capacity(gang, nodes)
    try:
        return check_capacity(claiming, with_devices(nodes, api.find(RESOURCE_SLICE).items))
    except (ForbiddenError, NotThereError):
        notes.append("ResourceSlices cannot be read: whether there are GPUs for its claims is unknown")
        return check_capacity(gang, nodes)


def _adds_nodes(api: Api) -> str:
    """Name of the autoscaler, or empty. Karpenter has its own kind; a cluster autoscaler stores its state in
    a ConfigMap."""
    if api.serves(_NODE_POOL):
        return "Karpenter"
    try:
        api.get(CONFIG_MAP, "cluster-autoscaler-status", "kube-system")
    except (NotThereError, ForbiddenError):
        return ""
    return "the cluster autoscaler"
