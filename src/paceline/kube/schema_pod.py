"""Which fields has a pod template? Core v1 of Kubernetes, closed, as data.

Probes and rare volumes are named, so that a typo beside them is found;
what is inside them is not looked into.
"""

from paceline.kube.schema import (
    Anything,
    Fields,
    ListOf,
    MapOf,
    Quantity,
    Schema,
    Text,
    Whole,
    YesNo,
)
from paceline.kube.schema_labels import AFFINITY, ANNOTATIONS, ANY_TEXT, LABELS, SELECTOR
from paceline.kube.words import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LABEL_KEY,
    LONGEST_LABEL,
    RESOURCE,
    VARIABLE,
)

PORT = Whole(least=1, most=65535)
OBJECT_NAME = Text(pattern=DNS_SUBDOMAIN, longest=253)
LABEL_NAME = Text(pattern=DNS_LABEL, longest=LONGEST_LABEL)
PULL_POLICY = Text(choices=("Always", "IfNotPresent", "Never"))

# What a server writes there, and `kubectl get -o yaml` and `--dry-run=client` repeat.
_OF_THE_SERVER: dict[str, Schema] = {
    name: Anything()
    for name in (
        *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation"),
        *("managedFields", "resourceVersion", "selfLink", "uid"),
    )
}
TEMPLATE_METADATA = Fields(
    {
        "name": Text(pattern=DNS_SUBDOMAIN, longest=LONGEST_LABEL),
        "namespace": LABEL_NAME,
        "labels": LABELS,
        "annotations": ANNOTATIONS,
        "finalizers": ListOf(Text()),
    }
)
METADATA = Fields(
    {
        **TEMPLATE_METADATA.of,
        **_OF_THE_SERVER,
        "generateName": Text(longest=LONGEST_LABEL),
        "ownerReferences": ListOf(Anything()),
    },
    any_of=("name", "generateName"),
)
RESOURCES = Fields(
    {
        "requests": MapOf(Quantity(), RESOURCE),
        "limits": MapOf(Quantity(), RESOURCE),
        "claims": ListOf(Fields({"name": Text(), "request": Text()}, ("name",))),
    }
)
_KEY_OF: dict[str, Schema] = {"name": OBJECT_NAME, "key": Text(), "optional": YesNo()}
_FIELD_REF = Fields({"apiVersion": Text(), "fieldPath": Text()}, ("fieldPath",))
_RESOURCE_REF = Fields({"containerName": Text(), "resource": Text(), "divisor": Quantity()}, ("resource",))
ENV = ListOf(
    Fields(
        {
            "name": Text(pattern=VARIABLE),
            "value": ANY_TEXT,
            "valueFrom": Fields(
                {
                    "secretKeyRef": Fields(_KEY_OF, ("key", "name")),
                    "configMapKeyRef": Fields(_KEY_OF, ("key", "name")),
                    "fieldRef": _FIELD_REF,
                    "resourceFieldRef": _RESOURCE_REF,
                    "fileKeyRef": Anything(),
                }
            ),
        },
        ("name",),
    )
)
_SOURCE = Fields({"name": OBJECT_NAME, "optional": YesNo()})
ENV_FROM = ListOf(Fields({"prefix": ANY_TEXT, "secretRef": _SOURCE, "configMapRef": _SOURCE}))
SECCOMP = Fields(
    {"type": Text(choices=("RuntimeDefault", "Localhost", "Unconfined")), "localhostProfile": Text()},
    ("type",),
)
_USER = Whole(most=2**63 - 1)
CONTAINER_SECURITY = Fields(
    {
        "allowPrivilegeEscalation": YesNo(),
        "privileged": YesNo(),
        "readOnlyRootFilesystem": YesNo(),
        "runAsNonRoot": YesNo(),
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "procMount": Text(),
        "capabilities": Fields({"add": ListOf(Text()), "drop": ListOf(Text())}),
        "seccompProfile": SECCOMP,
        "appArmorProfile": Anything(),
        "seLinuxOptions": Anything(),
        "windowsOptions": Anything(),
    }
)
POD_SECURITY = Fields(
    {
        "runAsNonRoot": YesNo(),
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": Text(choices=("Always", "OnRootMismatch")),
        "supplementalGroups": ListOf(_USER),
        "supplementalGroupsPolicy": Text(choices=("Merge", "Strict")),
        "seccompProfile": SECCOMP,
        "sysctls": ListOf(Fields({"name": Text(), "value": ANY_TEXT}, ("name", "value"))),
        "appArmorProfile": Anything(),
        "seLinuxOptions": Anything(),
        "seLinuxChangePolicy": Text(),
        "windowsOptions": Anything(),
    }
)
VOLUME_MOUNTS = ListOf(
    Fields(
        {
            "name": LABEL_NAME,
            "mountPath": Text(),
            "readOnly": YesNo(),
            "subPath": Text(),
            "subPathExpr": Text(),
            "mountPropagation": Text(choices=("None", "HostToContainer", "Bidirectional")),
            "recursiveReadOnly": Text(),
        },
        ("name", "mountPath"),
    )
)
_PORTS = ListOf(
    Fields(
        {
            "name": Text(pattern=DNS_LABEL, longest=15),
            "containerPort": PORT,
            "protocol": Text(choices=("TCP", "UDP", "SCTP")),
            "hostPort": PORT,
            "hostIP": Text(),
        },
        ("containerPort",),
    )
)
CONTAINER = Fields(
    {
        "name": LABEL_NAME,
        "image": Text(pattern=IMAGE),
        "imagePullPolicy": PULL_POLICY,
        "command": ListOf(ANY_TEXT),
        "args": ListOf(ANY_TEXT),
        "workingDir": Text(),
        "env": ENV,
        "envFrom": ENV_FROM,
        "ports": _PORTS,
        "resources": RESOURCES,
        "resizePolicy": ListOf(Anything()),
        "restartPolicy": Text(choices=("Always", "OnFailure", "Never")),
        "restartPolicyRules": ListOf(Anything()),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": Text(),
        "terminationMessagePolicy": Text(choices=("File", "FallbackToLogsOnError")),
        "volumeMounts": VOLUME_MOUNTS,
        "volumeDevices": ListOf(Anything()),
        "lifecycle": Fields({"postStart": Anything(), "preStop": Anything(), "stopSignal": Text()}),
        "livenessProbe": Anything(),
        "readinessProbe": Anything(),
        "startupProbe": Anything(),
        "stdin": YesNo(),
        "stdinOnce": YesNo(),
        "tty": YesNo(),
    },
    ("name",),
)
_ITEMS = ListOf(Fields({"key": Text(), "path": Text(), "mode": Whole()}, ("key", "path")))
_RARE_VOLUMES = (
    "nfs csi ephemeral projected downwardAPI fc iscsi rbd cephfs image awsElasticBlockStore azureDisk"
)
_RARE_VOLUMES += (
    " azureFile cinder flexVolume flocker gcePersistentDisk gitRepo glusterfs photonPersistentDisk"
)
_RARE_VOLUMES += " portworxVolume quobyte scaleIO storageos vsphereVolume"
_CONFIG: dict[str, Schema] = {"items": _ITEMS, "defaultMode": Whole(), "optional": YesNo()}
VOLUMES = ListOf(
    Fields(
        {
            "name": LABEL_NAME,
            "emptyDir": Fields(
                {"medium": Text(choices=("Memory", "HugePages"), may_be_empty=True), "sizeLimit": Quantity()}
            ),
            "configMap": Fields({"name": OBJECT_NAME, **_CONFIG}),
            "secret": Fields({"secretName": OBJECT_NAME, **_CONFIG}),
            "persistentVolumeClaim": Fields({"claimName": OBJECT_NAME, "readOnly": YesNo()}, ("claimName",)),
            "hostPath": Fields({"path": Text(), "type": ANY_TEXT}, ("path",)),
            **{name: Anything() for name in _RARE_VOLUMES.split()},
        },
        ("name",),
    )
)
_SPREAD = Fields(
    {
        "maxSkew": Whole(least=1),
        "topologyKey": Text(pattern=LABEL_KEY),
        "whenUnsatisfiable": Text(choices=("DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": SELECTOR,
        "matchLabelKeys": ListOf(Text()),
        "minDomains": Whole(least=1),
        "nodeAffinityPolicy": Text(choices=("Honor", "Ignore")),
        "nodeTaintsPolicy": Text(choices=("Honor", "Ignore")),
    },
    ("maxSkew", "topologyKey", "whenUnsatisfiable"),
)
TOLERATION = Fields(
    {
        "key": Text(pattern=LABEL_KEY),
        "operator": Text(choices=("Exists", "Equal", "Lt", "Gt")),
        "value": ANY_TEXT,
        "effect": Text(choices=("NoSchedule", "PreferNoSchedule", "NoExecute")),
        "tolerationSeconds": Whole(most=2**63 - 1),
    }
)
PULL_SECRETS = ListOf(Fields({"name": OBJECT_NAME}))
POD_SPEC = Fields(
    {
        "containers": ListOf(CONTAINER, 1),
        "initContainers": ListOf(CONTAINER),
        "ephemeralContainers": ListOf(Anything()),
        "volumes": VOLUMES,
        "restartPolicy": Text(choices=("Always", "OnFailure", "Never")),
        "terminationGracePeriodSeconds": Whole(),
        "activeDeadlineSeconds": Whole(least=1),
        "automountServiceAccountToken": YesNo(),
        "enableServiceLinks": YesNo(),
        "serviceAccountName": OBJECT_NAME,
        "serviceAccount": OBJECT_NAME,
        "securityContext": POD_SECURITY,
        "imagePullSecrets": PULL_SECRETS,
        "nodeSelector": LABELS,
        "nodeName": Text(),
        "affinity": AFFINITY,
        "tolerations": ListOf(TOLERATION),
        "topologySpreadConstraints": ListOf(_SPREAD),
        "priorityClassName": Text(),
        "priority": Whole(least=-(2**31)),
        "preemptionPolicy": Text(choices=("Never", "PreemptLowerPriority")),
        "schedulerName": Text(),
        "schedulingGates": ListOf(Fields({"name": Text()}, ("name",))),
        "runtimeClassName": Text(),
        "hostNetwork": YesNo(),
        "hostPID": YesNo(),
        "hostIPC": YesNo(),
        "hostUsers": YesNo(),
        "hostname": LABEL_NAME,
        "hostnameOverride": Text(),
        "subdomain": LABEL_NAME,
        "setHostnameAsFQDN": YesNo(),
        "shareProcessNamespace": YesNo(),
        "dnsPolicy": Text(choices=("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")),
        "dnsConfig": Anything(),
        "hostAliases": ListOf(Anything()),
        "readinessGates": ListOf(Anything()),
        "resourceClaims": ListOf(Anything()),
        "resources": RESOURCES,
        "overhead": MapOf(Quantity()),
        "os": Anything(),
        "schedulingGroup": Anything(),
    },
    ("containers",),
)
POD_TEMPLATE = Fields({"metadata": TEMPLATE_METADATA, "spec": POD_SPEC}, ("spec",))
# In kinds of Kubernetes itself; a custom kind knows fewer fields of a template's metadata.
CORE_POD_TEMPLATE = Fields({"metadata": Fields(METADATA.of), "spec": POD_SPEC}, ("spec",))
