"""Snapshot of a cluster at one moment: plain dicts by `plural.group`, as they are checked and saved.

What the server refused to show is not empty but absent, with the rule that would allow it, so that a check
never takes "not allowed" for "there is none".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import mapping, mappings
from paceline.plan.codec import Json, to_json

SCHEMA = "paceline.cluster-snapshot/1"
Object = Mapping[str, object]


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A right, in the words of RBAC."""

    verb: str
    resource: str  # plural, or plural.group
    namespace: str = ""  # "": in all of them, which takes a ClusterRole

    def __str__(self) -> str:
        plural, _, group = self.resource.partition(".")
        role = f"Role in namespace {self.namespace}" if self.namespace else "ClusterRole"
        return f'{role}: apiGroups: ["{group}"], resources: ["{plural}"], verbs: ["{self.verb}"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    server: str
    version: str  # of Kubernetes, such as v1.35.0
    namespace: str  # of the quotas, claims and queues
    served: Mapping[str, tuple[str, ...]]  # the kinds that the server serves, with their versions
    objects: Mapping[str, tuple[Object, ...]]
    refused: tuple[Rule, ...] = ()
    rights: Mapping[str, bool] = field(default_factory=dict)  # `create jobs.batch`; absent: not known
    user: str = ""  # the server's name for this user; only if a right is missing

    def of(self, resource: str) -> tuple[Object, ...]:
        return self.objects.get(resource, ())

    def knows(self, resource: str) -> bool:
        """True if these objects could be listed."""
        return resource in self.objects

    @property
    def minor(self) -> tuple[int, int]:
        """v1.35.0-eks-1 as (1, 35)."""
        numbers = "".join(c if c.isdigit() else " " for c in self.version).split()
        return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else (0, 0)

    def to_json(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "server": self.server,
            "version": self.version,
            "namespace": self.namespace,
            "served": {name: list(versions) for name, versions in sorted(self.served.items())},
            "objects": {name: to_json(items) for name, items in self.objects.items()},
            "refused": [
                {"verb": rule.verb, "resource": rule.resource, "namespace": rule.namespace}
                for rule in self.refused
            ],
            "rights": dict(self.rights),
            "user": self.user,
        }


def read_snapshot(value: object, where: str) -> Snapshot:
    """Parse the output of `to_json`. Raises ConfigError."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        hint = "record one: paceline cluster check --save SNAPSHOT.json"
        raise ManifestError([Problem(f"the file is not a cluster snapshot ({SCHEMA})", hint, where)])
    objects = mapping(value, "objects")
    return Snapshot(
        server=str(value.get("server", "")),
        version=str(value.get("version", "")),
        namespace=str(value.get("namespace", "default")),
        served={
            name: tuple(str(v) for v in versions) if isinstance(versions, list) else ()
            for name, versions in mapping(value, "served").items()
        },
        objects={name: tuple(mappings(objects, name)) for name in objects},
        refused=tuple(
            Rule(str(refusal.get("verb")), str(refusal.get("resource")), str(refusal.get("namespace", "")))
            for refusal in mappings(value, "refused")
        ),
        rights={name: may is True for name, may in mapping(value, "rights").items()},
        user=str(value.get("user", "")),
    )


def name_of(obj: Object) -> str:
    return str(mapping(obj, "metadata").get("name", ""))


def labels_of(obj: Object) -> Mapping[str, object]:
    return mapping(obj, "metadata", "labels")


# An allow list: commands, variables and annotations of foreign deployments may hold secrets, and none of
# them is read, saved or shown.

_PODS = "spec.template.spec.containers[].{name,image} spec.template.metadata.labels"
_KEPT = {
    "nodes": "spec.unschedulable spec.taints status.allocatable status.capacity status.conditions"
    " status.nodeInfo.{osImage,kubeletVersion,architecture}",
    "namespaces": "status.phase",
    "deployments.apps": f"spec.replicas status.{{replicas,readyReplicas}} {_PODS}",
    "daemonsets.apps": f"status.{{desiredNumberScheduled,numberReady}} {_PODS}",
    "resourceslices.resource.k8s.io": "spec.driver spec.nodeName spec.pool spec.devices",
    "storageclasses.storage.k8s.io": "provisioner volumeBindingMode"
    " metadata.annotations.storageclass:kubernetes:io/is-default-class",
    "persistentvolumeclaims": "spec.accessModes spec.storageClassName status.phase",
    "resourcequotas": "status.hard status.used spec.scopes spec.scopeSelector",
    "networkpolicies.networking.k8s.io": "spec",
    "validatingwebhookconfigurations.admissionregistration.k8s.io": "webhooks[].{name}",
    "localqueues.kueue.x-k8s.io": "spec.clusterQueue status.conditions",
    "clusterpolicies.nvidia.com": "status.state",
    "configmaps": "data.{kubeflow_trainer_version,controller_manager_config:yaml}",
}
_ALWAYS = "metadata.{name,namespace,labels}"


def prune_object(resource: str, obj: Object) -> dict[str, Json]:
    """`resource` as in a snapshot; of a kind that is not in the table only the name stays."""
    result: dict[str, Json] = {}
    for path in f"{_ALWAYS} {_KEPT.get(resource, '')}".split():
        _copy(obj, result, path.replace("[]", ".[]").split("."))
    return result


def _copy(source: object, to: dict[str, Json], path: list[str]) -> None:
    if not isinstance(source, dict):
        return
    first = path[0]
    rest = path[1:]
    for name in first.strip("{}").split(","):
        name = name.replace(":", ".")  # dots inside of a name
        if name not in source:
            continue
        inner = source[name]
        if not rest:
            to[name] = inner
        elif rest[0] == "[]":
            _copy_each(inner, to, name, rest[1:])
        else:
            place = to.setdefault(name, {})
            assert isinstance(place, dict), "two paths agree about what is a mapping"
            _copy(inner, place, rest)


def _copy_each(items: object, to: dict[str, Json], name: str, path: list[str]) -> None:
    copies: list[Json] = []
    for item in items if isinstance(items, list) else []:
        copy: dict[str, Json] = {}
        _copy(item, copy, path)
        copies.append(copy)
    to[name] = copies


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    name: str
    status: str
    image: str  # AL2023_x86_64_NVIDIA, BOTTLEROCKET_…, CUSTOM
    machines: tuple[str, ...]
    version: str = ""
    most: int = 0
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Addon:
    name: str
    version: str
    status: str
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Which versions of an add-on fit this version of Kubernetes."""

    usual: str  # the one that EKS installs if none is named
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperPod:
    name: str
    status: str
    node_recovery: str = ""
    short: tuple[str, ...] = ()  # groups with fewer machines than they shall have
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EksFacts:
    name: str
    region: str
    status: str
    version: str
    server: str
    is_auto: bool = False  # Auto Mode
    is_public: bool = True
    auth_mode: str = ""
    support: str = ""  # STANDARD_SUPPORT, EXTENDED_SUPPORT, UNSUPPORTED; empty: not known
    support_ends: str = ""
    me: str = ""  # this user's ARN, as an access entry would name it
    issues: tuple[str, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    addons: tuple[Addon, ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)
    entries: tuple[str, ...] = ()  # principals that may enter
    hyperpods: tuple[HyperPod, ...] = ()
    refused: tuple[str, ...] = ()  # IAM actions; what they would show is not known

    def knows(self, action: str) -> bool:
        return action not in self.refused

    def addon(self, name: str) -> Addon | None:
        return next((addon for addon in self.addons if addon.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddonRequest:
    """Change of an add-on by a fix. An empty `before`: it is not installed."""

    cluster: str
    region: str
    name: str
    version: str
    before: str = ""

    def command(self) -> str:
        verb = "update" if self.before else "create"
        where = f"--cluster-name {self.cluster} --region {self.region}"
        return f"aws eks {verb}-addon {where} --addon-name {self.name} --addon-version {self.version}"
