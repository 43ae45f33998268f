"""Rights in a cluster: the one list of what submit, follow, retry, explain, stop, list and fetch ask for.

`cluster fix` grants this list, `cluster check` and the pre-flight compare it with what the user has, and a
403 of the server is answered with the part of it that is missing. A required right stops a submission; an
optional one only narrows what can be checked, resumed or explained.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.plan.codec import Json

_RBAC = "rbac.authorization.k8s.io"
_RUNTIMES = "trainingruntimes.trainer.kubeflow.org"
_SUBMIT, _RETRY, _FILES = "submit", "retry", "results and datasets"
# What a rendered job may bring with it, by the job's resource; the first tuple comes with every such job.
_BROUGHT = {
    "jobs.batch": ("services",),
    "trainjobs.trainer.kubeflow.org": (_RUNTIMES,),
}
_MAY_BRING = (
    "services",
    "configmaps",
    "persistentvolumeclaims",
    "networkpolicies.networking.k8s.io",
    "resourceclaimtemplates.resource.k8s.io",
)


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


def rights_for(job: str, beside: Iterable[str] = ()) -> list[Right]:
    """To run jobs of this resource (`jobs.batch`) together with objects of the resources `beside`."""
    wanted = [_right(verb, job, why) for verb, why in _ON_THE_JOB]
    wanted += [_right(verb, of, why) for verb, of, why in _ON_PODS]
    for one in dict.fromkeys((*_BROUGHT.get(job, ()), *beside)):
        wanted += [_right(verb, one, why) for verb, why in _ON_WHAT_COMES_WITH_IT]
    wanted += [_right(verb, of, why, is_required=False) for verb, of, why in _OPTIONAL]
    return list(dict.fromkeys(wanted))


def all_rights_for(job: str) -> list[Right]:
    """With everything that `job render` may put beside such a job: what an account of its own is given."""
    return rights_for(job, _MAY_BRING)


_ON_THE_JOB = (
    ("create", _SUBMIT),
    ("get", "submit, follow, explain, stop"),
    ("list", "job list; following"),
    ("watch", "following"),
    ("patch", "the mark of who follows it"),
    ("delete", "stop, and before the next attempt"),
)
_ON_PODS = (
    ("list", "pods", "follow, explain"),
    ("get", "pods", "logs that end, pods that must be gone before the next attempt"),
    ("watch", "pods", "follow"),
    ("get", "pods/log", "logs"),
    ("list", "events", "explain"),
)
_ON_WHAT_COMES_WITH_IT = (
    ("get", "whether it is there already"),
    ("create", _SUBMIT),
    ("delete", "stop"),
)
_OPTIONAL = (
    ("get", "configmaps", _RETRY),
    ("list", "configmaps", "job list, between two attempts"),
    ("create", "configmaps", _RETRY),
    ("patch", "configmaps", _RETRY),
    ("delete", "configmaps", _RETRY),
    ("list", "resourcequotas", "whether the quota suffices"),
    ("list", "persistentvolumeclaims", "explain"),
    ("get", "persistentvolumeclaims", "whether claims are there; results and datasets"),
    ("get", "serviceaccounts", "whether the pods' account is there"),
    ("create", "pods", _FILES),
    ("delete", "pods", "results and datasets; pods on a lost node"),
    ("get", "pods/exec", _FILES),
    ("create", "pods/exec", "results and datasets, from Kubernetes 1.35 on"),
)
# Of the whole cluster: whether there is room. Without it a job is sent, and the scheduler decides.
LIST_NODES = Right("list", "nodes", is_namespaced=False, is_required=False, why="whether it fits on nodes")


def _right(verb: str, of: str, why: str, *, is_required: bool = True) -> Right:
    resource, _, group = of.partition(".")
    return Right(verb, resource, group, is_required=is_required, why=why)


def rules(rights: Iterable[Right]) -> list[Json]:
    """As a Role states them: one rule per set of verbs in a group."""
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
    about: dict[str, Json] = {"name": name, "namespace": namespace} if namespace else {"name": name}
    role = "Role" if namespace else "ClusterRole"
    head = {"apiVersion": f"{_RBAC}/v1"}
    return [
        {**head, "kind": role, "metadata": about, "rules": rules(rights)},
        {
            **head,
            "kind": f"{role}Binding",
            "metadata": about,
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


def grant(rights: Sequence[Right], namespace: str, user: str) -> str:
    """One line for an administrator's shell: a Role with these rights, and its binding to the user."""
    made: list[dict[str, Json]] = []
    for is_namespaced in (True, False):
        of_this = [right for right in rights if right.is_namespaced is is_namespaced]
        if of_this:
            where = namespace if is_namespaced else ""
            made += role_and_binding(_name(of_this), of_this, where, subject_of(user))
    stated: dict[str, Json] = {"apiVersion": "v1", "kind": "List", "items": [*made]}
    return f"echo {shlex.quote(json.dumps(stated))} | kubectl apply -f -"


def _name(rights: Sequence[Right]) -> str:
    """Of its own for each set of rights: a second grant must not overwrite the Role of the first."""
    first = rights[0]
    said = ",".join(sorted(right.key for right in rights))
    which = first.verb if len(rights) == 1 else hashlib.sha256(said.encode()).hexdigest()[:8]
    return f"paceline-{first.resource.replace('/', '-')}-{which}"
