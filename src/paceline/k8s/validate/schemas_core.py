"""Which fields has a pod template? Core v1 of Kubernetes, closed, as data.

Probes and rare volumes are named, so that a typo beside them is found;
what is inside them is not looked into.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline.k8s.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LABEL_KEY,
    LABEL_VALUE,
    MAX_LABEL_LENGTH,
    NAME,
    RESOURCE,
    VARIABLE,
    mapping,
    mappings,
)
from paceline.k8s.validate.schema import (
    AnyValue,
    Boolean,
    Finding,
    Integer,
    ListOf,
    MapOf,
    ObjectOf,
    Path,
    PortOrName,
    Quantity,
    Schema,
    String,
)

ANY_TEXT = String(may_be_empty=True)
LABELS = MapOf(String(pattern=LABEL_VALUE, longest=MAX_LABEL_LENGTH, may_be_empty=True), LABEL_KEY)
ANNOTATIONS = MapOf(ANY_TEXT, LABEL_KEY)
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def _requirements(*more: str) -> ListOf:
    of: dict[str, Schema] = {"key": String(), "operator": String(choices=(*_OPERATORS, *more))}
    return ListOf(ObjectOf({**of, "values": ListOf(ANY_TEXT)}, ("key", "operator")))


SELECTOR = ObjectOf({"matchLabels": LABELS, "matchExpressions": _requirements()})
_WEIGHT = Integer(least=1, most=100)
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
_NODES = ObjectOf({"matchExpressions": _requirements("Gt", "Lt"), "matchFields": _requirements("Gt", "Lt")})
_NODE_AFFINITY = ObjectOf(
    {
        _REQUIRED: ObjectOf({"nodeSelectorTerms": ListOf(_NODES, 1)}, ("nodeSelectorTerms",)),
        _PREFERRED: ListOf(ObjectOf({"preference": _NODES, "weight": _WEIGHT}, ("preference", "weight"))),
    }
)
_PODS = ObjectOf(
    {
        "labelSelector": SELECTOR,
        "topologyKey": String(pattern=LABEL_KEY),
        "namespaces": ListOf(String()),
        "namespaceSelector": SELECTOR,
        "matchLabelKeys": ListOf(String()),
        "mismatchLabelKeys": ListOf(String()),
    },
    ("topologyKey",),
)
_POD_AFFINITY = ObjectOf(
    {
        _REQUIRED: ListOf(_PODS),
        _PREFERRED: ListOf(
            ObjectOf({"podAffinityTerm": _PODS, "weight": _WEIGHT}, ("podAffinityTerm", "weight"))
        ),
    }
)
AFFINITY = ObjectOf(
    {"nodeAffinity": _NODE_AFFINITY, "podAffinity": _POD_AFFINITY, "podAntiAffinity": _POD_AFFINITY}
)


PORT = Integer(least=1, most=65535)
OBJECT_NAME = String(pattern=DNS_SUBDOMAIN, longest=253)
LABEL_NAME = String(pattern=DNS_LABEL, longest=MAX_LABEL_LENGTH)
PULL_POLICY = String(choices=("Always", "IfNotPresent", "Never"))

# What a server writes there, and `kubectl get -o yaml` and `--dry-run=client` repeat.
_OF_THE_SERVER: dict[str, Schema] = {
    name: AnyValue()
    for name in (
        *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation"),
        *("managedFields", "resourceVersion", "selfLink", "uid"),
    )
}
TEMPLATE_METADATA = ObjectOf(
    {
        "name": String(pattern=DNS_SUBDOMAIN, longest=MAX_LABEL_LENGTH),
        "namespace": LABEL_NAME,
        "labels": LABELS,
        "annotations": ANNOTATIONS,
        "finalizers": ListOf(String()),
    }
)
METADATA = ObjectOf(
    {
        **TEMPLATE_METADATA.of,
        **_OF_THE_SERVER,
        "generateName": String(longest=MAX_LABEL_LENGTH),
        "ownerReferences": ListOf(AnyValue()),
    },
    any_of=("name", "generateName"),
)
RESOURCES = ObjectOf(
    {
        "requests": MapOf(Quantity(), RESOURCE),
        "limits": MapOf(Quantity(), RESOURCE),
        "claims": ListOf(ObjectOf({"name": String(), "request": String()}, ("name",))),
    }
)
_KEY_OF: dict[str, Schema] = {"name": OBJECT_NAME, "key": String(), "optional": Boolean()}
_FIELD_REF = ObjectOf({"apiVersion": String(), "fieldPath": String()}, ("fieldPath",))
_RESOURCE_REF = ObjectOf(
    {"containerName": String(), "resource": String(), "divisor": Quantity()}, ("resource",)
)
ENV = ListOf(
    ObjectOf(
        {
            "name": String(pattern=VARIABLE),
            "value": ANY_TEXT,
            "valueFrom": ObjectOf(
                {
                    "secretKeyRef": ObjectOf(_KEY_OF, ("key", "name")),
                    "configMapKeyRef": ObjectOf(_KEY_OF, ("key", "name")),
                    "fieldRef": _FIELD_REF,
                    "resourceFieldRef": _RESOURCE_REF,
                    "fileKeyRef": AnyValue(),
                }
            ),
        },
        ("name",),
    )
)
_SOURCE = ObjectOf({"name": OBJECT_NAME, "optional": Boolean()})
ENV_FROM = ListOf(ObjectOf({"prefix": ANY_TEXT, "secretRef": _SOURCE, "configMapRef": _SOURCE}))
SECCOMP = ObjectOf(
    {"type": String(choices=("RuntimeDefault", "Localhost", "Unconfined")), "localhostProfile": String()},
    ("type",),
)
_USER = Integer(most=2**63 - 1)
CONTAINER_SECURITY = ObjectOf(
    {
        "allowPrivilegeEscalation": Boolean(),
        "privileged": Boolean(),
        "readOnlyRootFilesystem": Boolean(),
        "runAsNonRoot": Boolean(),
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "procMount": String(),
        "capabilities": ObjectOf({"add": ListOf(String()), "drop": ListOf(String())}),
        "seccompProfile": SECCOMP,
        "appArmorProfile": AnyValue(),
        "seLinuxOptions": AnyValue(),
        "windowsOptions": AnyValue(),
    }
)
POD_SECURITY = ObjectOf(
    {
        "runAsNonRoot": Boolean(),
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": String(choices=("Always", "OnRootMismatch")),
        "supplementalGroups": ListOf(_USER),
        "supplementalGroupsPolicy": String(choices=("Merge", "Strict")),
        "seccompProfile": SECCOMP,
        "sysctls": ListOf(ObjectOf({"name": String(), "value": ANY_TEXT}, ("name", "value"))),
        "appArmorProfile": AnyValue(),
        "seLinuxOptions": AnyValue(),
        "seLinuxChangePolicy": String(),
        "windowsOptions": AnyValue(),
    }
)
VOLUME_MOUNTS = ListOf(
    ObjectOf(
        {
            "name": LABEL_NAME,
            "mountPath": String(),
            "readOnly": Boolean(),
            "subPath": String(),
            "subPathExpr": String(),
            "mountPropagation": String(choices=("None", "HostToContainer", "Bidirectional")),
            "recursiveReadOnly": String(),
        },
        ("name", "mountPath"),
    )
)
_PORTS = ListOf(
    ObjectOf(
        {
            "name": String(pattern=DNS_LABEL, longest=15),
            "containerPort": PORT,
            "protocol": String(choices=("TCP", "UDP", "SCTP")),
            "hostPort": PORT,
            "hostIP": String(),
        },
        ("containerPort",),
    )
)
CONTAINER = ObjectOf(
    {
        "name": LABEL_NAME,
        "image": String(pattern=IMAGE),
        "imagePullPolicy": PULL_POLICY,
        "command": ListOf(ANY_TEXT),
        "args": ListOf(ANY_TEXT),
        "workingDir": String(),
        "env": ENV,
        "envFrom": ENV_FROM,
        "ports": _PORTS,
        "resources": RESOURCES,
        "resizePolicy": ListOf(AnyValue()),
        "restartPolicy": String(choices=("Always", "OnFailure", "Never")),
        "restartPolicyRules": ListOf(AnyValue()),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": String(),
        "terminationMessagePolicy": String(choices=("File", "FallbackToLogsOnError")),
        "volumeMounts": VOLUME_MOUNTS,
        "volumeDevices": ListOf(AnyValue()),
        "lifecycle": ObjectOf({"postStart": AnyValue(), "preStop": AnyValue(), "stopSignal": String()}),
        "livenessProbe": AnyValue(),
        "readinessProbe": AnyValue(),
        "startupProbe": AnyValue(),
        "stdin": Boolean(),
        "stdinOnce": Boolean(),
        "tty": Boolean(),
    },
    ("name",),
)
_ITEMS = ListOf(ObjectOf({"key": String(), "path": String(), "mode": Integer()}, ("key", "path")))
_RARE_VOLUMES = (
    "nfs csi ephemeral projected downwardAPI fc iscsi rbd cephfs image awsElasticBlockStore azureDisk"
)
_RARE_VOLUMES += (
    " azureFile cinder flexVolume flocker gcePersistentDisk gitRepo glusterfs photonPersistentDisk"
)
_RARE_VOLUMES += " portworxVolume quobyte scaleIO storageos vsphereVolume"
_CONFIG: dict[str, Schema] = {"items": _ITEMS, "defaultMode": Integer(), "optional": Boolean()}
VOLUMES = ListOf(
    ObjectOf(
        {
            "name": LABEL_NAME,
            "emptyDir": ObjectOf(
                {
                    "medium": String(choices=("Memory", "HugePages"), may_be_empty=True),
                    "sizeLimit": Quantity(),
                }
            ),
            "configMap": ObjectOf({"name": OBJECT_NAME, **_CONFIG}),
            "secret": ObjectOf({"secretName": OBJECT_NAME, **_CONFIG}),
            "persistentVolumeClaim": ObjectOf(
                {"claimName": OBJECT_NAME, "readOnly": Boolean()}, ("claimName",)
            ),
            "hostPath": ObjectOf({"path": String(), "type": ANY_TEXT}, ("path",)),
            **{name: AnyValue() for name in _RARE_VOLUMES.split()},
        },
        ("name",),
    )
)
_SPREAD = ObjectOf(
    {
        "maxSkew": Integer(least=1),
        "topologyKey": String(pattern=LABEL_KEY),
        "whenUnsatisfiable": String(choices=("DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": SELECTOR,
        "matchLabelKeys": ListOf(String()),
        "minDomains": Integer(least=1),
        "nodeAffinityPolicy": String(choices=("Honor", "Ignore")),
        "nodeTaintsPolicy": String(choices=("Honor", "Ignore")),
    },
    ("maxSkew", "topologyKey", "whenUnsatisfiable"),
)
TOLERATION = ObjectOf(
    {
        "key": String(pattern=LABEL_KEY),
        "operator": String(choices=("Exists", "Equal", "Lt", "Gt")),
        "value": ANY_TEXT,
        "effect": String(choices=("NoSchedule", "PreferNoSchedule", "NoExecute")),
        "tolerationSeconds": Integer(most=2**63 - 1),
    }
)
PULL_SECRETS = ListOf(ObjectOf({"name": OBJECT_NAME}))
POD_SPEC = ObjectOf(
    {
        "containers": ListOf(CONTAINER, 1),
        "initContainers": ListOf(CONTAINER),
        "ephemeralContainers": ListOf(AnyValue()),
        "volumes": VOLUMES,
        "restartPolicy": String(choices=("Always", "OnFailure", "Never")),
        "terminationGracePeriodSeconds": Integer(),
        "activeDeadlineSeconds": Integer(least=1),
        "automountServiceAccountToken": Boolean(),
        "enableServiceLinks": Boolean(),
        "serviceAccountName": OBJECT_NAME,
        "serviceAccount": OBJECT_NAME,
        "securityContext": POD_SECURITY,
        "imagePullSecrets": PULL_SECRETS,
        "nodeSelector": LABELS,
        "nodeName": String(),
        "affinity": AFFINITY,
        "tolerations": ListOf(TOLERATION),
        "topologySpreadConstraints": ListOf(_SPREAD),
        "priorityClassName": String(),
        "priority": Integer(least=-(2**31)),
        "preemptionPolicy": String(choices=("Never", "PreemptLowerPriority")),
        "schedulerName": String(),
        "schedulingGates": ListOf(ObjectOf({"name": String()}, ("name",))),
        "runtimeClassName": String(),
        "hostNetwork": Boolean(),
        "hostPID": Boolean(),
        "hostIPC": Boolean(),
        "hostUsers": Boolean(),
        "hostname": LABEL_NAME,
        "hostnameOverride": String(),
        "subdomain": LABEL_NAME,
        "setHostnameAsFQDN": Boolean(),
        "shareProcessNamespace": Boolean(),
        "dnsPolicy": String(choices=("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")),
        "dnsConfig": AnyValue(),
        "hostAliases": ListOf(AnyValue()),
        "readinessGates": ListOf(AnyValue()),
        "resourceClaims": ListOf(AnyValue()),
        "resources": RESOURCES,
        "overhead": MapOf(Quantity()),
        "os": AnyValue(),
        "schedulingGroup": AnyValue(),
    },
    ("containers",),
)
POD_TEMPLATE = ObjectOf({"metadata": TEMPLATE_METADATA, "spec": POD_SPEC}, ("spec",))
# In kinds of Kubernetes itself; a custom kind knows fewer fields of a template's metadata.
CORE_POD_TEMPLATE = ObjectOf({"metadata": ObjectOf(METADATA.of), "spec": POD_SPEC}, ("spec",))


TOP = ("apiVersion", "kind", "metadata", "spec")
DNS_1035 = replace(METADATA, of={**METADATA.of, "name": String(pattern=NAME, longest=MAX_LABEL_LENGTH)})
DNS_1123 = replace(METADATA, of={**METADATA.of, "name": LABEL_NAME})
_JOB_METADATA = replace(
    METADATA, of={**METADATA.of, "name": String(pattern=DNS_SUBDOMAIN, longest=MAX_LABEL_LENGTH)}
)
JOB_SPEC = ObjectOf(
    {
        "activeDeadlineSeconds": Integer(least=1),
        "backoffLimit": Integer(),
        "backoffLimitPerIndex": Integer(),
        "completionMode": String(choices=("NonIndexed", "Indexed")),
        "completions": Integer(),
        "managedBy": String(),
        "manualSelector": Boolean(),
        "maxFailedIndexes": Integer(),
        "parallelism": Integer(),
        "podFailurePolicy": ObjectOf({"rules": ListOf(AnyValue())}, ("rules",)),
        "podReplacementPolicy": String(choices=("TerminatingOrFailed", "Failed")),
        "selector": SELECTOR,
        "successPolicy": ObjectOf(
            {"rules": ListOf(ObjectOf({"succeededCount": Integer(), "succeededIndexes": String()}), 1)},
            ("rules",),
        ),
        "suspend": Boolean(),
        "template": POD_TEMPLATE,
        "ttlSecondsAfterFinished": Integer(),
    },
    ("template",),
)


def kind(version: str, name: str, metadata: ObjectOf, spec: ObjectOf) -> ObjectOf:
    of: dict[str, Schema] = {
        "apiVersion": String(choices=(version,)),
        "kind": String(choices=(name,)),
        "metadata": metadata,
        "spec": spec,
        "status": AnyValue(),  # repeated from a cluster, and not read
    }
    return ObjectOf(of, TOP)


_CORE_SPEC = replace(JOB_SPEC, of={**JOB_SPEC.of, "template": CORE_POD_TEMPLATE})
JOB = kind("batch/v1", "Job", _JOB_METADATA, _CORE_SPEC)


_RBAC = "rbac.authorization.k8s.io"
_FILE = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def _flat(version: str, name: str, required: tuple[str, ...], of: dict[str, Schema]) -> ObjectOf:
    """A kind that has no spec."""
    head: dict[str, Schema] = {
        "apiVersion": String(choices=(version,)),
        "kind": String(choices=(name,)),
        "metadata": METADATA,
    }
    return ObjectOf({**head, **of}, (*TOP[:3], *required))


CONFIGMAP = _flat(
    "v1",
    "ConfigMap",
    (),
    {"data": MapOf(ANY_TEXT, _FILE), "binaryData": MapOf(ANY_TEXT, _FILE), "immutable": Boolean()},
)
_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_DATA_SOURCE = ObjectOf(
    {"apiGroup": String(), "kind": String(), "name": String(), "namespace": String()}, ("kind", "name")
)
CLAIM = kind(
    "v1",
    "PersistentVolumeClaim",
    METADATA,
    ObjectOf(
        {
            "accessModes": ListOf(String(choices=_MODES), 1),
            "dataSource": _DATA_SOURCE,
            "dataSourceRef": _DATA_SOURCE,
            "resources": ObjectOf(
                {
                    "limits": ObjectOf({"storage": Quantity()}),
                    "requests": ObjectOf({"storage": Quantity()}, ("storage",)),
                },
                ("requests",),
            ),
            "selector": SELECTOR,
            "storageClassName": String(may_be_empty=True),
            "volumeAttributesClassName": String(),
            "volumeMode": String(choices=("Filesystem", "Block")),
            "volumeName": String(),
        },
        ("accessModes", "resources"),
    ),
)
ACCOUNT = _flat(
    "v1",
    "ServiceAccount",
    (),
    {
        "automountServiceAccountToken": Boolean(),
        "imagePullSecrets": PULL_SECRETS,
        "secrets": ListOf(AnyValue()),
    },
)
ROLE = _flat(
    f"{_RBAC}/v1",
    "Role",
    (),
    {
        "rules": ListOf(
            ObjectOf(
                {
                    "apiGroups": ListOf(ANY_TEXT, 1),
                    "resources": ListOf(String(), 1),
                    "verbs": ListOf(String(), 1),
                    "resourceNames": ListOf(String()),
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
        "roleRef": ObjectOf(
            {
                "apiGroup": String(choices=(_RBAC,)),
                "kind": String(choices=("Role", "ClusterRole")),
                "name": OBJECT_NAME,
            },
            ("kind", "name"),
        ),
        "subjects": ListOf(
            ObjectOf(
                {
                    "apiGroup": String(may_be_empty=True),
                    "kind": String(choices=("ServiceAccount", "User", "Group")),
                    "name": String(),
                    "namespace": String(),
                },
                ("kind", "name"),
            )
        ),
    },
)
_POLICY_PORTS = ListOf(
    ObjectOf(
        {
            "port": PortOrName(),
            "endPort": Integer(least=1, most=65535),
            "protocol": String(choices=("TCP", "UDP", "SCTP")),
        }
    )
)
_PEERS = ListOf(
    ObjectOf(
        {
            "podSelector": SELECTOR,
            "namespaceSelector": SELECTOR,
            "ipBlock": ObjectOf({"cidr": String(), "except": ListOf(String())}, ("cidr",)),
        }
    )
)
NETWORK_POLICY = kind(
    "networking.k8s.io/v1",
    "NetworkPolicy",
    METADATA,
    ObjectOf(
        {
            "podSelector": SELECTOR,
            "policyTypes": ListOf(String(choices=("Ingress", "Egress"))),
            "ingress": ListOf(ObjectOf({"from": _PEERS, "ports": _POLICY_PORTS})),
            "egress": ListOf(ObjectOf({"to": _PEERS, "ports": _POLICY_PORTS})),
        },
        ("podSelector",),
    ),
)


_KEPT = String(choices=("Retain", "Delete"))
_SHARE = AnyValue()  # a number of pods, or such as 25%: the rules look at it
STATEFUL_SET = kind(
    "apps/v1",
    "StatefulSet",
    DNS_1123,  # its name becomes a label of its pods, and the name of each of them with a number behind
    ObjectOf(
        {
            "minReadySeconds": Integer(),
            "ordinals": ObjectOf({"start": Integer()}),
            "persistentVolumeClaimRetentionPolicy": ObjectOf({"whenDeleted": _KEPT, "whenScaled": _KEPT}),
            "podManagementPolicy": String(choices=("OrderedReady", "Parallel")),
            "replicas": Integer(),
            "revisionHistoryLimit": Integer(),
            "selector": SELECTOR,
            "serviceName": OBJECT_NAME,
            "template": CORE_POD_TEMPLATE,
            "updateStrategy": ObjectOf(
                {
                    "type": String(choices=("RollingUpdate", "OnDelete")),
                    "rollingUpdate": ObjectOf({"maxUnavailable": _SHARE, "partition": Integer()}),
                }
            ),
            "volumeClaimTemplates": ListOf(
                ObjectOf({"metadata": METADATA, "spec": CLAIM.of["spec"]}, ("metadata", "spec"))
            ),
        },
        ("selector", "serviceName", "template"),
    ),
)
DISRUPTION_BUDGET = kind(
    "policy/v1",
    "PodDisruptionBudget",
    METADATA,
    ObjectOf(
        {
            "maxUnavailable": _SHARE,
            "minAvailable": _SHARE,
            "selector": SELECTOR,
            "unhealthyPodEvictionPolicy": String(choices=("IfHealthyBudget", "AlwaysAllow")),
        },
        ("selector",),
    ),
)


DEPLOYMENT = kind(
    "apps/v1",
    "Deployment",
    METADATA,
    ObjectOf(
        {
            "minReadySeconds": Integer(),
            "paused": Boolean(),
            "progressDeadlineSeconds": Integer(),
            "replicas": Integer(),
            "revisionHistoryLimit": Integer(),
            "selector": SELECTOR,
            "strategy": ObjectOf(
                {
                    "type": String(choices=("RollingUpdate", "Recreate")),
                    "rollingUpdate": ObjectOf({"maxSurge": _SHARE, "maxUnavailable": _SHARE}),
                }
            ),
            "template": CORE_POD_TEMPLATE,
        },
        ("selector", "template"),
    ),
)


_EXACTLY: dict[str, Schema] = {
    "deviceClassName": String(pattern=DNS_SUBDOMAIN),
    "selectors": ListOf(ObjectOf({"cel": ObjectOf({"expression": String()}, ("expression",))})),
    "allocationMode": String(choices=("ExactCount", "All")),
    "count": Integer(least=1),
    "tolerations": ListOf(AnyValue()),
    "capacity": AnyValue(),
}
_REQUEST = ObjectOf(
    {
        "name": LABEL_NAME,
        "exactly": ObjectOf({**_EXACTLY, "adminAccess": Boolean()}, ("deviceClassName",)),
        "firstAvailable": ListOf(ObjectOf({"name": LABEL_NAME, **_EXACTLY}, ("name", "deviceClassName")), 1),
    },
    ("name",),
)
_DEVICES = ObjectOf(
    {"requests": ListOf(_REQUEST), "constraints": ListOf(AnyValue()), "config": ListOf(AnyValue())}
)
CLAIM_TEMPLATE = kind(
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    METADATA,
    ObjectOf({"metadata": METADATA, "spec": ObjectOf({"devices": _DEVICES})}, ("spec",)),
)


def find_in_claim_template(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    where = (*path, "spec", "devices", "requests")
    for number, one in enumerate(mappings(spec, "spec", "devices", "requests")):
        if ("exactly" in one) == ("firstAvailable" in one):
            what = "Invalid value: exactly one of `exactly` or `firstAvailable` is required"
            yield Finding((*where, number), what, "keep one of them")
        exactly = mapping(one, "exactly")
        if exactly.get("allocationMode") == "All" and "count" in exactly:
            what = "Invalid value: must not be specified when allocationMode is 'All'"
            yield Finding((*where, number, "exactly", "count"), what, "leave it out")


SERVICE = kind(
    "v1",
    "Service",
    METADATA,
    ObjectOf(
        {
            "allocateLoadBalancerNodePorts": Boolean(),
            "clusterIPs": ListOf(String()),
            "externalIPs": ListOf(String()),
            "externalName": String(),
            "externalTrafficPolicy": String(choices=("Cluster", "Local")),
            "healthCheckNodePort": Integer(),
            "internalTrafficPolicy": String(choices=("Cluster", "Local")),
            "ipFamilies": ListOf(String(choices=("IPv4", "IPv6"))),
            "ipFamilyPolicy": String(choices=("SingleStack", "PreferDualStack", "RequireDualStack")),
            "loadBalancerClass": String(),
            "loadBalancerIP": String(),
            "loadBalancerSourceRanges": ListOf(String()),
            "sessionAffinity": String(choices=("None", "ClientIP")),
            "sessionAffinityConfig": AnyValue(),
            "trafficDistribution": String(),
            "type": String(choices=("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")),
            "selector": LABELS,
            "clusterIP": String(may_be_empty=True),
            "publishNotReadyAddresses": Boolean(),
            "ports": ListOf(
                ObjectOf(
                    {
                        "appProtocol": String(),
                        "name": LABEL_NAME,
                        "port": PORT,
                        "targetPort": PortOrName(),
                        "nodePort": Integer(least=30000, most=32767),
                        "protocol": String(choices=("TCP", "UDP", "SCTP")),
                    },
                    ("port",),
                ),
            ),
        },
    ),
)
