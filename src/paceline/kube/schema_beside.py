"""Which fields have the objects that come with a job? ConfigMap, claim, identity, policy: closed, as data."""

import re

from paceline.kube.schema import (
    Anything,
    Fields,
    ListOf,
    MapOf,
    PortOrName,
    Quantity,
    Schema,
    Text,
    Whole,
    YesNo,
)
from paceline.kube.schema_job import TOP, kind
from paceline.kube.schema_labels import ANY_TEXT, SELECTOR
from paceline.kube.schema_pod import METADATA, OBJECT_NAME, PULL_SECRETS

_RBAC = "rbac.authorization.k8s.io"
_FILE = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def _flat(version: str, name: str, required: tuple[str, ...], of: dict[str, Schema]) -> Fields:
    """A kind that has no spec."""
    head: dict[str, Schema] = {
        "apiVersion": Text(choices=(version,)),
        "kind": Text(choices=(name,)),
        "metadata": METADATA,
    }
    return Fields({**head, **of}, (*TOP[:3], *required))


CONFIGMAP = _flat(
    "v1",
    "ConfigMap",
    (),
    {"data": MapOf(ANY_TEXT, _FILE), "binaryData": MapOf(ANY_TEXT, _FILE), "immutable": YesNo()},
)
_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_SOURCE = Fields({"apiGroup": Text(), "kind": Text(), "name": Text(), "namespace": Text()}, ("kind", "name"))
CLAIM = kind(
    "v1",
    "PersistentVolumeClaim",
    METADATA,
    Fields(
        {
            "accessModes": ListOf(Text(choices=_MODES), 1),
            "dataSource": _SOURCE,
            "dataSourceRef": _SOURCE,
            "resources": Fields(
                {
                    "limits": Fields({"storage": Quantity()}),
                    "requests": Fields({"storage": Quantity()}, ("storage",)),
                },
                ("requests",),
            ),
            "selector": SELECTOR,
            "storageClassName": Text(may_be_empty=True),
            "volumeAttributesClassName": Text(),
            "volumeMode": Text(choices=("Filesystem", "Block")),
            "volumeName": Text(),
        },
        ("accessModes", "resources"),
    ),
)
ACCOUNT = _flat(
    "v1",
    "ServiceAccount",
    (),
    {
        "automountServiceAccountToken": YesNo(),
        "imagePullSecrets": PULL_SECRETS,
        "secrets": ListOf(Anything()),
    },
)
ROLE = _flat(
    f"{_RBAC}/v1",
    "Role",
    (),
    {
        "rules": ListOf(
            Fields(
                {
                    "apiGroups": ListOf(ANY_TEXT, 1),
                    "resources": ListOf(Text(), 1),
                    "verbs": ListOf(Text(), 1),
                    "resourceNames": ListOf(Text()),
                },
                ("apiGroups", "resources", "verbs"),
            )
        )
    },
)
BINDING = _flat(
    f"{_RBAC}/v1",
    "RoleBinding",
    ("roleRef",),
    {
        "roleRef": Fields(
            {
                "apiGroup": Text(choices=(_RBAC,)),
                "kind": Text(choices=("Role", "ClusterRole")),
                "name": OBJECT_NAME,
            },
            ("kind", "name"),
        ),
        "subjects": ListOf(
            Fields(
                {
                    "apiGroup": Text(may_be_empty=True),
                    "kind": Text(choices=("ServiceAccount", "User", "Group")),
                    "name": Text(),
                    "namespace": Text(),
                },
                ("kind", "name"),
            )
        ),
    },
)
_PORTS = ListOf(
    Fields(
        {
            "port": PortOrName(),
            "endPort": Whole(least=1, most=65535),
            "protocol": Text(choices=("TCP", "UDP", "SCTP")),
        }
    )
)
_PEERS = ListOf(
    Fields(
        {
            "podSelector": SELECTOR,
            "namespaceSelector": SELECTOR,
            "ipBlock": Fields({"cidr": Text(), "except": ListOf(Text())}, ("cidr",)),
        }
    )
)
NETWORK_POLICY = kind(
    "networking.k8s.io/v1",
    "NetworkPolicy",
    METADATA,
    Fields(
        {
            "podSelector": SELECTOR,
            "policyTypes": ListOf(Text(choices=("Ingress", "Egress"))),
            "ingress": ListOf(Fields({"from": _PEERS, "ports": _PORTS})),
            "egress": ListOf(Fields({"to": _PEERS, "ports": _PORTS})),
        },
        ("podSelector",),
    ),
)
