"""Rights in a cluster: the one list of what submit, follow, retry, explain, stop, list and fetch ask for.

`cluster fix` grants this list, `cluster check` and the pre-flight compare it with what the user has, and a
403 of the server is answered with the part of it that is missing. A required right stops a submission; an
optional one only narrows what can be checked, resumed or explained.

Two reads are not granted on purpose, and are skipped where they are refused: `get secrets`, which would show
the contents (only the presence of a named Secret is checked), and `get configmaps` in the namespaces of the
operators (their versions).
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.plan.codec import Json

_RBAC = "rbac.authorization.k8s.io"
_RUNTIMES = "trainingruntimes.trainer.kubeflow.org"
_SUBMIT = "submit"
_RETRY = "retry"
_FILES = "results and datasets"
# Objects that `job render` always writes with such a job.
_RENDERED = {
    "jobs.batch": ("services",),
    "trainjobs.trainer.kubeflow.org": (_RUNTIMES,),
}
# Objects that `job render` writes with a job on request. Accounts and Roles are not granted: the creator of
# a Role must already hold its rights.
_ON_REQUEST = (
    "services",
    "configmaps",
    "persistentvolumeclaims",
    "networkpolicies.networking.k8s.io",
    "resourceclaimtemplates.resource.k8s.io",
    "podmonitors.monitoring.coreos.com",
)
# Objects that an operator creates for a job: they have the events of refused pods, and an object of the
# job's name must be deleted before the next attempt.
_JOBS = "jobs.batch"
_JOB_SETS = "jobsets.jobset.x-k8s.io"
_CHILDREN = {
    "trainjobs.trainer.kubeflow.org": (("list", _JOB_SETS), ("get", _JOB_SETS), ("list", _JOBS)),
    "rayjobs.ray.io": (("list", "rayclusters.ray.io"), ("list", _JOBS), ("get", _JOBS)),
    _JOB_SETS: (("list", _JOBS),),
}


@dataclass(frozen=True, slots=True)
class Right:
    verb: str
    resource: str  # plural, with its subresource: pods/log
    group: str = ""
    is_namespaced: bool = True
    is_required: bool = field(default=True, compare=False)
    why: str = field(default="", compare=False)

    @property
    def of(self) -> str:
        """The resource as kubectl names it: `jobs.batch`, `pods/log`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def key(self) -> str:
        return f"{self.verb} {self.of}"


def rights_for(job: str, companions: Iterable[str] = ()) -> list[Right]:
    """Rights to run jobs of this resource (`jobs.batch`) with objects of the resources `companions`; the most
    important rights first."""
    rights = [_right(verb, of or job, why) for verb, of, why in _REQUIRED]
    for companion in dict.fromkeys(companions):
        rights += [_right(verb, companion, why) for verb, why in _ON_WHAT_COMES_WITH_IT]
    rights += [_right(verb, of or job, why, is_required=False) for verb, of, why in _OPTIONAL]
    rights += [_right(verb, of, "explain, retry", is_required=False) for verb, of in _CHILDREN.get(job, ())]
    return list(dict.fromkeys(rights))


def rendered_rights_for(job: str) -> list[Right]:
    """Rights including the objects that `job render` always writes with such a job."""
    return rights_for(job, _RENDERED.get(job, ()))


def all_rights_for(job: str) -> list[Right]:
    """Rights including all objects that `job render` may write with such a job; for a service account."""
    return rights_for(job, (*_RENDERED.get(job, ()), *_ON_REQUEST))


# An empty resource is that of the job.
_REQUIRED = (
    ("create", "", _SUBMIT),
    ("get", "", "submit, follow, explain, stop"),
    ("delete", "", "stop, and before the next attempt"),
    ("patch", "", "the annotation of the watcher that follows it"),
    ("list", "pods", "follow, explain"),
    ("get", "pods", "logs that end; pods that must terminate before the next attempt"),
    ("get", "pods/log", "logs"),
    ("list", "events", "explain"),
    ("list", "", "job list"),
)
_ON_WHAT_COMES_WITH_IT = (
    ("get", "whether it exists already"),
    ("create", _SUBMIT),
    ("delete", "stop"),
)
_OPTIONAL = (
    ("watch", "", "changes at once; without it the job is read at intervals"),
    ("watch", "pods", "changes at once; without it pods are read at intervals"),
    ("get", "configmaps", _RETRY),
    ("list", "configmaps", "job list, between two attempts"),
    ("create", "configmaps", _RETRY),
    ("patch", "configmaps", _RETRY),
    ("delete", "configmaps", _RETRY),
    ("list", "resourcequotas", "whether the quota suffices"),
    ("list", "persistentvolumeclaims", "explain"),
    ("get", "persistentvolumeclaims", "whether claims are there; results and datasets"),
    ("get", "serviceaccounts", "whether the pods' account is there"),
    ("list", "workloads.kueue.x-k8s.io", "explain a job that Kueue holds"),
    ("create", "pods", _FILES),
    ("delete", "pods", "results and datasets; pods on a lost node"),
    ("get", "pods/exec", _FILES),
    ("create", "pods/exec", "results and datasets, from Kubernetes 1.35 on"),
)


def _of_the_cluster(verb: str, of: str, why: str) -> Right:
    resource, _, group = of.partition(".")
    return Right(verb, resource, group, is_namespaced=False, is_required=False, why=why)


# Cluster-wide rights. Without them a job is submitted anyway, and the scheduler decides.
CLUSTER_RIGHTS = (
    _of_the_cluster("list", "nodes", "whether it fits on nodes; explain"),
    _of_the_cluster("get", "nodes", "whether the node of an old pod is lost"),
    _of_the_cluster("list", "deployments.apps", "whether the operator is ready"),
    _of_the_cluster("list", "resourceslices.resource.k8s.io", "GPUs of claims"),
    _of_the_cluster("get", "priorityclasses.scheduling.k8s.io", "whether the priority class is there"),
    _of_the_cluster("get", "storageclasses.storage.k8s.io", "whether a claim waits for its first pod"),
)


def _right(verb: str, of: str, why: str, *, is_required: bool = True) -> Right:
    resource, _, group = of.partition(".")
    return Right(verb, resource, group, is_required=is_required, why=why)


def rules(rights: Iterable[Right]) -> list[Json]:
    """Rules of a Role: one per set of verbs in a group."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    by_verbs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), its in verbs.items():
        by_verbs.setdefault((group, tuple(dict.fromkeys(its))), []).append(resource)
    return [
        {"apiGroups": [group], "resources": [*resources], "verbs": [*its]}
        for (group, its), resources in by_verbs.items()
    ]


def role_and_binding(
    name: str, rights: Sequence[Right], namespace: str, subject: Mapping[str, Json]
) -> list[dict[str, Json]]:
    """A Role and its RoleBinding; of the whole cluster where no namespace is given."""
    metadata: dict[str, Json] = {"name": name, "namespace": namespace} if namespace else {"name": name}
    role = "Role" if namespace else "ClusterRole"
    head = {"apiVersion": f"{_RBAC}/v1"}
    return [
        {**head, "kind": role, "metadata": metadata, "rules": rules(rights)},
        {
            **head,
            "kind": f"{role}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": role, "name": name},
            "subjects": [dict(subject)],
        },
    ]


def subject_of(user: str) -> dict[str, Json]:
    """`system:serviceaccount:NAMESPACE:NAME`, or the name of a user."""
    parts = user.split(":")
    if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4:
        return {"kind": "ServiceAccount", "name": parts[3], "namespace": parts[2]}
    return {"kind": "User", "name": user, "apiGroup": _RBAC}


def advice(rights: Sequence[Right], namespace: str, user: str) -> str:
    """A sentence for a hint. The user is "" if the server does not give its name."""
    if user:
        return f"an administrator grants it by: {grant(rights, namespace, user)}"
    return f"an administrator creates this Role and binds it to you: {grant(rights, namespace, user)}"


def grant(rights: Sequence[Right], namespace: str, user: str) -> str:
    """One line for an administrator's shell: a Role with these rights, and its binding to the user; without a
    user the Role alone."""
    created: list[dict[str, Json]] = []
    for is_namespaced in (True, False):
        of_this = [right for right in rights if right.is_namespaced is is_namespaced]
        if of_this:
            where = namespace if is_namespaced else ""
            role, binding = role_and_binding(_name(of_this), of_this, where, subject_of(user))
            created += [role, binding] if user else [role]
    stated: dict[str, Json] = {"apiVersion": "v1", "kind": "List", "items": [*created]}
    return f"echo {shlex.quote(json.dumps(stated))} | kubectl apply -f -"


def _name(rights: Sequence[Right]) -> str:
    """A unique name for each set of rights: a second grant must not overwrite the Role of the first."""
    first = rights[0]
    keys = ",".join(sorted(right.key for right in rights))
    suffix = first.verb if len(rights) == 1 else hashlib.sha256(keys.encode()).hexdigest()[:8]
    return f"paceline-{first.resource.replace('/', '-')}-{suffix}"
