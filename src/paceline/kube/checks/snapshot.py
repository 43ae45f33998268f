"""What was seen of a cluster at one moment? Plain dicts, by `plural.group`, as they are checked and saved.

What the server refused to show is not empty but absent, with the rule that would allow it: nobody may take
"we may not look" for "there is none".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import ManifestError, Problem
from paceline.kube.reading import mapping, mappings
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
    namespace: str  # whose quotas, claims and queues were looked at
    served: Mapping[str, tuple[str, ...]]  # the kinds that the server knows, with their versions
    objects: Mapping[str, tuple[Object, ...]]
    refused: tuple[Rule, ...] = ()
    rights: Mapping[str, bool] = field(default_factory=dict)  # `create jobs.batch`; absent: not known
    user: str = ""  # as the server calls the one who asks; only where a right is missing

    def of(self, resource: str) -> tuple[Object, ...]:
        return self.objects.get(resource, ())

    def knows(self, resource: str) -> bool:
        """Was it looked at, successfully?"""
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
            "objects": {name: to_json(found) for name, found in self.objects.items()},
            "refused": [
                {"verb": rule.verb, "resource": rule.resource, "namespace": rule.namespace}
                for rule in self.refused
            ],
            "rights": dict(self.rights),
            "user": self.user,
        }


def read_snapshot(value: object, where: str) -> Snapshot:
    """From what `to_json` made. Raises ConfigError."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        hint = "record one: paceline cluster check --save SNAPSHOT.json"
        raise ManifestError([Problem(f"the file is no snapshot of a cluster ({SCHEMA})", hint, where)])
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
            Rule(str(one.get("verb")), str(one.get("resource")), str(one.get("namespace", "")))
            for one in mappings(value, "refused")
        ),
        rights={name: may is True for name, may in mapping(value, "rights").items()},
        user=str(value.get("user", "")),
    )


def name_of(one: Object) -> str:
    return str(mapping(one, "metadata").get("name", ""))


def labels_of(one: Object) -> Mapping[str, object]:
    return mapping(one, "metadata", "labels")
