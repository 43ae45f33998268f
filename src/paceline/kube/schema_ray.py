"""Which fields have RayCluster and RayJob? `ray.io/v1` of KubeRay 1.7, closed, as data."""

from dataclasses import replace

from paceline.kube.schema import (
    Anything,
    Fields,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Text,
    Whole,
    YesNo,
)
from paceline.kube.schema_job import kind
from paceline.kube.schema_labels import ANNOTATIONS, ANY_TEXT, LABELS
from paceline.kube.schema_pod import (
    CONTAINER_SECURITY,
    ENV,
    ENV_FROM,
    LABEL_NAME,
    METADATA,
    OBJECT_NAME,
    POD_TEMPLATE,
    PULL_POLICY,
    RESOURCES,
    VOLUME_MOUNTS,
)
from paceline.kube.words import IMAGE, LONGEST_RAY_CLUSTER, LONGEST_RAY_NAME, NAME

_JOB_METADATA = replace(METADATA, of={**METADATA.of, "name": Text(pattern=NAME, longest=LONGEST_RAY_NAME)})
_CLUSTER_METADATA = replace(
    METADATA, of={**METADATA.of, "name": Text(pattern=NAME, longest=LONGEST_RAY_CLUSTER)}
)
_START = MapOf(ANY_TEXT)
_VALUE = Fields({"value": ANY_TEXT, "valueFrom": Anything()})
_RULES = {"egressRules": ListOf(Anything()), "ingressRules": ListOf(Anything())}
_HEAD = Fields(
    {
        "template": POD_TEMPLATE,
        "rayStartParams": _START,
        "serviceType": Text(choices=("ClusterIP", "NodePort", "LoadBalancer"), may_be_empty=True),
        "headService": Anything(),
        "enableIngress": YesNo(),
        "ingressOptions": Fields(
            {
                "host": Text(),
                "path": Text(),
                "pathType": Text(choices=("Exact", "Prefix", "ImplementationSpecific")),
                "tls": ListOf(Anything()),
            }
        ),
        "labels": LABELS,
        "resources": MapOf(Text()),
    },
    ("template",),
)
_GROUP = Fields(
    {
        "groupName": LABEL_NAME,
        "replicas": Whole(),
        "minReplicas": Whole(),
        "maxReplicas": Whole(),
        "numOfHosts": Whole(least=1),
        "idleTimeoutSeconds": Whole(),
        "priority": Whole(),
        "rayStartParams": _START,
        "template": POD_TEMPLATE,
        "suspend": YesNo(),
        "labels": LABELS,
        "resources": MapOf(Text()),
        "scaleStrategy": Fields({"workersToDelete": ListOf(Text())}),
    },
    ("groupName", "template"),  # the server fills in minReplicas 0 and maxReplicas 2147483647
)
_AUTOSCALER = Fields(
    {
        "version": Text(choices=("v1", "v2")),
        "idleTimeoutSeconds": Whole(),
        "upscalingMode": Text(choices=("Default", "Aggressive", "Conservative")),
        "image": Text(pattern=IMAGE),
        "imagePullPolicy": PULL_POLICY,
        "command": ListOf(ANY_TEXT),
        "args": ListOf(ANY_TEXT),
        "env": ENV,
        "envFrom": ENV_FROM,
        "resources": RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": VOLUME_MOUNTS,
    }
)
_GCS = Fields(
    {
        "backend": Text(choices=("redis", "rocksdb")),
        "redisAddress": Text(),
        "redisUsername": _VALUE,
        "redisPassword": _VALUE,
        "externalStorageNamespace": Text(),
        "storage": Fields(
            {
                "accessModes": ListOf(Text()),
                "claimName": OBJECT_NAME,
                "deletionPolicy": Text(choices=("DeleteWithCluster", "Retain")),
                "size": Quantity(),
                "storageClassName": OBJECT_NAME,
                "subPath": Text(),
            }
        ),
    }
)
_MANAGED_BY = Text(choices=("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"))
CLUSTER_SPEC = Fields(
    {
        "rayVersion": ANY_TEXT,
        "authOptions": Fields(
            {
                "mode": Text(choices=("disabled", "token")),
                "secretName": OBJECT_NAME,
                "enableK8sTokenAuth": YesNo(),
            }
        ),
        "enableInTreeAutoscaling": YesNo(),
        "autoscalerOptions": _AUTOSCALER,
        "headGroupSpec": _HEAD,
        "workerGroupSpecs": ListOf(_GROUP),
        "headServiceAnnotations": ANNOTATIONS,
        "gcsFaultToleranceOptions": _GCS,
        "historyServerOptions": Fields(
            {
                "collectorOptions": Fields(
                    {
                        "env": ENV,
                        "image": Text(pattern=IMAGE),
                        "imagePullPolicy": PULL_POLICY,
                        "resources": RESOURCES,
                    }
                )
            }
        ),
        "networkPolicy": Fields(
            {
                "mode": Text(choices=("DenyAll", "DenyAllIngress", "DenyAllEgress")),
                "head": Fields(_RULES),
                "worker": Fields(_RULES),
                "workerGroups": ListOf(Fields({"groupName": Text(), **_RULES}, ("groupName",))),
            }
        ),
        "tlsOptions": Fields({"enabled": YesNo()}),
        "upgradeStrategy": Fields({"type": Text(choices=("Recreate", "None"))}),
        "suspend": YesNo(),
        "managedBy": _MANAGED_BY,
    },
    ("headGroupSpec",),
)
_POLICY = Text(choices=("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"))
_CONDITION = Fields(
    {
        "jobStatus": Text(choices=("SUCCEEDED", "FAILED")),
        "jobDeploymentStatus": Text(choices=("Failed",)),
        "ttlSeconds": Whole(),
    }
)
JOB_SPEC = Fields(
    {
        "entrypoint": Text(),
        "entrypointNumCpus": Number(),
        "entrypointNumGpus": Number(),
        "entrypointResources": Text(),
        "jobId": Text(),
        "metadata": MapOf(ANY_TEXT),
        "runtimeEnvYAML": Text(),
        "submissionMode": Text(choices=("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")),
        "submitterConfig": Fields({"backoffLimit": Whole()}),
        "submitterPodTemplate": POD_TEMPLATE,
        "backoffLimit": Whole(),
        "activeDeadlineSeconds": Whole(least=1),
        "preRunningDeadlineSeconds": Whole(least=1),
        "shutdownAfterJobFinishes": YesNo(),
        "ttlSecondsAfterFinished": Whole(),
        "deletionStrategy": Fields(
            {
                "deletionRules": ListOf(
                    Fields({"policy": _POLICY, "condition": _CONDITION}, ("policy", "condition")), 1
                ),
                "onSuccess": Fields({"policy": _POLICY}),
                "onFailure": Fields({"policy": _POLICY}),
            }
        ),
        "clusterSelector": LABELS,
        "rayClusterSpec": CLUSTER_SPEC,
        "suspend": YesNo(),
        "managedBy": _MANAGED_BY,
    }
)
RAYCLUSTER = kind("ray.io/v1", "RayCluster", _CLUSTER_METADATA, CLUSTER_SPEC)
RAYJOB = kind("ray.io/v1", "RayJob", _JOB_METADATA, JOB_SPEC)
# Served beside v1 by every KubeRay, with the same fields.
OLD_RAYCLUSTER = kind("ray.io/v1alpha1", "RayCluster", _CLUSTER_METADATA, CLUSTER_SPEC)
OLD_RAYJOB = kind("ray.io/v1alpha1", "RayJob", _JOB_METADATA, JOB_SPEC)
