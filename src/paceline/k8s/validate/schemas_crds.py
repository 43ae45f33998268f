"""Which fields have PyTorchJob and HyperPodPyTorchJob? Closed, as data.

Those of training-operator 1.9, and of HyperPod's training operator as its own command line knows them.
"""

import re
from dataclasses import replace

from paceline.k8s.objects import IMAGE, MAX_RAY_CLUSTER_LENGTH, MAX_RAY_NAME_LENGTH, NAME
from paceline.k8s.validate.schema import (
    AnyValue,
    Boolean,
    Integer,
    ListOf,
    MapOf,
    Number,
    ObjectOf,
    PortOrName,
    Quantity,
    Schema,
    String,
)
from paceline.k8s.validate.schemas_core import (
    AFFINITY,
    ANNOTATIONS,
    ANY_TEXT,
    CONTAINER_SECURITY,
    DNS_1035,
    ENV,
    ENV_FROM,
    JOB_SPEC,
    LABEL_NAME,
    LABELS,
    METADATA,
    OBJECT_NAME,
    POD_SECURITY,
    POD_TEMPLATE,
    PULL_POLICY,
    PULL_SECRETS,
    RESOURCES,
    TEMPLATE_METADATA,
    TOLERATION,
    VOLUME_MOUNTS,
    VOLUMES,
    kind,
)

PROCS = String(pattern=re.compile(r"auto|cpu|gpu|[1-9][0-9]*"))
_CLEAN = String(choices=("All", "Running", "None"), may_be_empty=True)
_REPLICA = ObjectOf(
    {
        "replicas": Integer(),
        "restartPolicy": String(choices=("Always", "OnFailure", "Never", "ExitCode")),
        "template": POD_TEMPLATE,
    }
)
_ELASTIC = ObjectOf(
    {
        "maxReplicas": Integer(least=1),
        "maxRestarts": Integer(),
        "metrics": ListOf(AnyValue()),
        "minReplicas": Integer(least=1),
        "nProcPerNode": Integer(least=1),
        "rdzvBackend": String(choices=("c10d", "etcd", "etcd-v2")),
        "rdzvConf": ListOf(ObjectOf({"key": String(), "value": ANY_TEXT})),
        "rdzvHost": String(),
        "rdzvId": String(),
        "rdzvPort": Integer(least=1, most=65535),
        "standalone": Boolean(),
    }
)
_RUN = ObjectOf(
    {
        "activeDeadlineSeconds": Integer(least=1),
        "backoffLimit": Integer(),
        "cleanPodPolicy": _CLEAN,
        "managedBy": String(choices=("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")),
        "schedulingPolicy": ObjectOf(
            {
                "minAvailable": Integer(),
                "minResources": MapOf(Quantity()),
                "priorityClass": String(),
                "queue": String(),
                "scheduleTimeoutSeconds": Integer(),
            }
        ),
        "suspend": Boolean(),
        "ttlSecondsAfterFinished": Integer(),
    }
)
PYTORCHJOB = kind(
    "kubeflow.org/v1",
    "PyTorchJob",
    DNS_1035,
    ObjectOf(
        {
            "elasticPolicy": _ELASTIC,
            "nprocPerNode": PROCS,
            "pytorchReplicaSpecs": ObjectOf({"Master": _REPLICA, "Worker": _REPLICA}),
            "runPolicy": _RUN,
        },
        ("pytorchReplicaSpecs",),
    ),
)
_LOG_RULE = ObjectOf(
    {
        "expectedRecurringFrequencyInSeconds": Integer(least=1),
        "expectedStartCutOffInSeconds": Integer(least=1),
        "logPattern": String(),
        "metricEvaluationDataPoints": Integer(least=1),
        "metricThreshold": Integer(least=-(2**31)),
        "name": String(),
        "operator": String(choices=("gt", "lt", "eq", "gteq", "lteq")),
        "stopPattern": String(),
    },
    ("logPattern", "name"),
)
_HYPERPOD_RUN = ObjectOf(
    {
        "activeDeadlineSeconds": Integer(least=1),
        "cleanPodPolicy": _CLEAN,
        "faultDeadlineSeconds": Integer(least=1),
        "jobMaxRetryCount": Integer(),
        "logMonitoringConfiguration": ListOf(_LOG_RULE),
        "restartPolicy": ObjectOf(
            {
                "evalPeriodSeconds": Integer(least=1),
                "maxFullJobRestarts": Integer(),
                "numRestartBeforeFullJobRestart": Integer(),
            },
            ("evalPeriodSeconds",),
        ),
        "startupDeadlineSeconds": Integer(least=1),
        "suspend": Boolean(),
        "ttlSecondsAfterFinished": Integer(least=-1),  # -1: for ever
    }
)
_HYPERPOD_REPLICA = ObjectOf(
    {
        "name": LABEL_NAME,
        "replicas": Integer(least=1),
        "spares": Integer(),
        "template": POD_TEMPLATE,
    },
    ("name",),
)
HYPERPODJOB = kind(
    "sagemaker.amazonaws.com/v1",
    "HyperPodPyTorchJob",
    DNS_1035,
    ObjectOf({"nprocPerNode": PROCS, "replicaSpecs": ListOf(_HYPERPOD_REPLICA), "runPolicy": _HYPERPOD_RUN}),
)


# What only 2.1 has is here too, so that its manifests can be read: `podTemplateOverrides`, and the
# number of processes in a runtime. Which of both a manifest may use is a rule, not a shape.

_GROUP = "trainer.kubeflow.org/v1alpha1"
_INITIALIZER = ObjectOf({"env": ENV, "secretRef": ObjectOf({"name": OBJECT_NAME}), "storageUri": ANY_TEXT})
_TRAINER = ObjectOf(
    {
        "args": ListOf(ANY_TEXT),
        "command": ListOf(ANY_TEXT),
        "env": ENV,
        "image": String(pattern=IMAGE, longest=500),
        "numNodes": Integer(least=1),
        "numProcPerNode": PortOrName(),  # 2.1 takes words, too
        "resourcesPerNode": RESOURCES,
    }
)
_CONTAINER_PATCH = ListOf(
    ObjectOf(
        {
            "env": ENV,
            "name": LABEL_NAME,
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": VOLUME_MOUNTS,
        },
        ("name",),
    )
)
_POD_PATCH = ObjectOf(
    {
        "affinity": AFFINITY,
        "containers": _CONTAINER_PATCH,
        "imagePullSecrets": PULL_SECRETS,
        "initContainers": _CONTAINER_PATCH,
        "nodeSelector": LABELS,
        "schedulingGates": ListOf(ObjectOf({"name": String()}, ("name",))),
        "securityContext": POD_SECURITY,
        "serviceAccountName": OBJECT_NAME,
        "terminationGracePeriodSeconds": Integer(),
        "tolerations": ListOf(TOLERATION),
        "volumes": VOLUMES,
    }
)
_POD_TEMPLATE_PATCH = ObjectOf({"metadata": TEMPLATE_METADATA, "spec": _POD_PATCH})
_JOB_PATCH = ObjectOf({"metadata": TEMPLATE_METADATA, "spec": ObjectOf({"template": _POD_TEMPLATE_PATCH})})
_JOBSET_PATCH = ObjectOf(
    {
        "metadata": TEMPLATE_METADATA,
        "spec": ObjectOf(
            {"replicatedJobs": ListOf(ObjectOf({"name": LABEL_NAME, "template": _JOB_PATCH}, ("name",)))}
        ),
    }
)
_PATCHES = ListOf(
    ObjectOf(
        {
            "manager": String(longest=253),
            "time": String(),
            "trainingRuntimeSpec": ObjectOf({"template": _JOBSET_PATCH}),
        },
        ("manager",),
    )
)
_OVERRIDES = ListOf(
    ObjectOf(
        {
            "manager": String(longest=253),
            "metadata": TEMPLATE_METADATA,
            "spec": _POD_PATCH,
            "targetJobs": ListOf(ObjectOf({"name": LABEL_NAME}, ("name",)), 1),
        },
        ("targetJobs",),
    )
)
TRAINJOB = kind(
    _GROUP,
    "TrainJob",
    DNS_1035,
    ObjectOf(
        {
            "activeDeadlineSeconds": Integer(least=1),
            "initializer": ObjectOf({"dataset": _INITIALIZER, "model": _INITIALIZER}),
            "managedBy": String(longest=253),
            "podTemplateOverrides": _OVERRIDES,
            "runtimePatches": _PATCHES,
            "runtimeRef": ObjectOf({"apiGroup": String(), "kind": String(), "name": OBJECT_NAME}, ("name",)),
            "suspend": Boolean(),
            "trainer": _TRAINER,
        },
        ("runtimeRef",),
    ),
)
_COUNT: dict[str, Schema] = {"numProcPerNode": Integer(least=1)}
_ML_POLICY = ObjectOf(
    {
        "flux": ObjectOf(_COUNT),
        "jax": ObjectOf(),
        "mpi": ObjectOf(
            {
                **_COUNT,
                "mpiImplementation": String(choices=("OpenMPI", ""), may_be_empty=True),
                "runLauncherAsNode": Boolean(),
                "sshAuthMountPath": String(longest=4096),
            }
        ),
        "numNodes": Integer(least=1),
        "torch": ObjectOf(
            {
                "elasticPolicy": AnyValue(),  # until 2.1
                "envInjection": ObjectOf(
                    {
                        "targets": ListOf(
                            ObjectOf(
                                {"containerNames": ListOf(String(), 1), "jobName": String()},
                                ("containerNames", "jobName"),
                            )
                        )
                    }
                ),
                "numProcPerNode": PortOrName(),  # until 2.1
            }
        ),
        "xgboost": ObjectOf(),
    }
)
_RESTARTS = ("RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob")
_FAILURES = ObjectOf(
    {
        "maxRestarts": Integer(),
        "restartStrategy": String(choices=("Recreate", "BlockingRecreate", "InPlaceRestart")),
        "rules": ListOf(
            ObjectOf(
                {
                    "action": String(choices=("FailJobSet", *_RESTARTS, "RestartJobAndIgnoreMaxRestarts")),
                    "name": String(),
                    "onJobFailureMessagePatterns": ListOf(String()),
                    "onJobFailureReasons": ListOf(String()),
                    "targetReplicatedJobs": ListOf(String()),
                },
                ("action", "name"),
            )
        ),
    }
)
_REPLICATED = ObjectOf(
    {
        "dependsOn": ListOf(
            ObjectOf({"name": String(), "status": String(choices=("Ready", "Complete"))}, ("name", "status"))
        ),
        "groupName": String(),
        "name": LABEL_NAME,
        "replicas": Integer(),
        "template": ObjectOf({"metadata": TEMPLATE_METADATA, "spec": JOB_SPEC}),
    },
    ("name", "template"),
)
_JOBSET = ObjectOf(
    {
        "coordinator": ObjectOf(
            {"jobIndex": Integer(), "podIndex": Integer(), "replicatedJob": String()}, ("replicatedJob",)
        ),
        "failurePolicy": _FAILURES,
        "managedBy": String(),
        "network": ObjectOf(
            {"enableDNSHostnames": Boolean(), "publishNotReadyAddresses": Boolean(), "subdomain": String()}
        ),
        "replicatedJobs": ListOf(_REPLICATED),
        "startupPolicy": ObjectOf(
            {"startupPolicyOrder": String(choices=("AnyOrder", "InOrder"))}, ("startupPolicyOrder",)
        ),
        "successPolicy": ObjectOf(
            {"operator": String(choices=("All", "Any")), "targetReplicatedJobs": ListOf(String())},
            ("operator",),
        ),
        "suspend": Boolean(),
        "ttlSecondsAfterFinished": Integer(),
        "volumeClaimPolicies": ListOf(AnyValue()),
    }
)
_RUNTIME = ObjectOf(
    {
        "mlPolicy": _ML_POLICY,
        "podGroupPolicy": ObjectOf(
            {
                "coscheduling": ObjectOf({"scheduleTimeoutSeconds": Integer()}),
                "volcano": ObjectOf(
                    {
                        "networkTopology": ObjectOf(
                            {"highestTierAllowed": Integer(), "mode": String(choices=("hard", "soft"))}
                        )
                    }
                ),
            }
        ),
        "template": ObjectOf({"metadata": TEMPLATE_METADATA, "spec": _JOBSET}),
    }
)
RUNTIME = kind(_GROUP, "TrainingRuntime", METADATA, _RUNTIME)
CLUSTER_RUNTIME = kind(_GROUP, "ClusterTrainingRuntime", METADATA, _RUNTIME)


_JOB_METADATA = replace(
    METADATA, of={**METADATA.of, "name": String(pattern=NAME, longest=MAX_RAY_NAME_LENGTH)}
)
_CLUSTER_METADATA = replace(
    METADATA, of={**METADATA.of, "name": String(pattern=NAME, longest=MAX_RAY_CLUSTER_LENGTH)}
)
_START = MapOf(ANY_TEXT)
_VALUE = ObjectOf({"value": ANY_TEXT, "valueFrom": AnyValue()})
_RULES = {"egressRules": ListOf(AnyValue()), "ingressRules": ListOf(AnyValue())}
_HEAD = ObjectOf(
    {
        "template": POD_TEMPLATE,
        "rayStartParams": _START,
        "serviceType": String(choices=("ClusterIP", "NodePort", "LoadBalancer"), may_be_empty=True),
        "headService": AnyValue(),
        "enableIngress": Boolean(),
        "ingressOptions": ObjectOf(
            {
                "host": String(),
                "path": String(),
                "pathType": String(choices=("Exact", "Prefix", "ImplementationSpecific")),
                "tls": ListOf(AnyValue()),
            }
        ),
        "labels": LABELS,
        "resources": MapOf(String()),
    },
    ("template",),
)
_WORKER_GROUP = ObjectOf(
    {
        "groupName": LABEL_NAME,
        "replicas": Integer(),
        "minReplicas": Integer(),
        "maxReplicas": Integer(),
        "numOfHosts": Integer(least=1),
        "idleTimeoutSeconds": Integer(),
        "priority": Integer(),
        "rayStartParams": _START,
        "template": POD_TEMPLATE,
        "suspend": Boolean(),
        "labels": LABELS,
        "resources": MapOf(String()),
        "scaleStrategy": ObjectOf({"workersToDelete": ListOf(String())}),
    },
    ("groupName", "template"),  # the server fills in minReplicas 0 and maxReplicas 2147483647
)
_AUTOSCALER = ObjectOf(
    {
        "version": String(choices=("v1", "v2")),
        "idleTimeoutSeconds": Integer(),
        "upscalingMode": String(choices=("Default", "Aggressive", "Conservative")),
        "image": String(pattern=IMAGE),
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
_GCS = ObjectOf(
    {
        "backend": String(choices=("redis", "rocksdb")),
        "redisAddress": String(),
        "redisUsername": _VALUE,
        "redisPassword": _VALUE,
        "externalStorageNamespace": String(),
        "storage": ObjectOf(
            {
                "accessModes": ListOf(String()),
                "claimName": OBJECT_NAME,
                "deletionPolicy": String(choices=("DeleteWithCluster", "Retain")),
                "size": Quantity(),
                "storageClassName": OBJECT_NAME,
                "subPath": String(),
            }
        ),
    }
)
_MANAGED_BY = String(choices=("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"))
RAYCLUSTER_SPEC = ObjectOf(
    {
        "rayVersion": ANY_TEXT,
        "authOptions": ObjectOf(
            {
                "mode": String(choices=("disabled", "token")),
                "secretName": OBJECT_NAME,
                "enableK8sTokenAuth": Boolean(),
            }
        ),
        "enableInTreeAutoscaling": Boolean(),
        "autoscalerOptions": _AUTOSCALER,
        "headGroupSpec": _HEAD,
        "workerGroupSpecs": ListOf(_WORKER_GROUP),
        "headServiceAnnotations": ANNOTATIONS,
        "gcsFaultToleranceOptions": _GCS,
        "historyServerOptions": ObjectOf(
            {
                "collectorOptions": ObjectOf(
                    {
                        "env": ENV,
                        "image": String(pattern=IMAGE),
                        "imagePullPolicy": PULL_POLICY,
                        "resources": RESOURCES,
                    }
                )
            }
        ),
        "networkPolicy": ObjectOf(
            {
                "mode": String(choices=("DenyAll", "DenyAllIngress", "DenyAllEgress")),
                "head": ObjectOf(_RULES),
                "worker": ObjectOf(_RULES),
                "workerGroups": ListOf(ObjectOf({"groupName": String(), **_RULES}, ("groupName",))),
            }
        ),
        "tlsOptions": ObjectOf({"enabled": Boolean()}),
        "upgradeStrategy": ObjectOf({"type": String(choices=("Recreate", "None"))}),
        "suspend": Boolean(),
        "managedBy": _MANAGED_BY,
    },
    ("headGroupSpec",),
)
_POLICY = String(choices=("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"))
_CONDITION = ObjectOf(
    {
        "jobStatus": String(choices=("SUCCEEDED", "FAILED")),
        "jobDeploymentStatus": String(choices=("Failed",)),
        "ttlSeconds": Integer(),
    }
)
RAYJOB_SPEC = ObjectOf(
    {
        "entrypoint": String(),
        "entrypointNumCpus": Number(),
        "entrypointNumGpus": Number(),
        "entrypointResources": String(),
        "jobId": String(),
        "metadata": MapOf(ANY_TEXT),
        "runtimeEnvYAML": String(),
        "submissionMode": String(choices=("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")),
        "submitterConfig": ObjectOf({"backoffLimit": Integer()}),
        "submitterPodTemplate": POD_TEMPLATE,
        "backoffLimit": Integer(),
        "activeDeadlineSeconds": Integer(least=1),
        "preRunningDeadlineSeconds": Integer(least=1),
        "shutdownAfterJobFinishes": Boolean(),
        "ttlSecondsAfterFinished": Integer(),
        "deletionStrategy": ObjectOf(
            {
                "deletionRules": ListOf(
                    ObjectOf({"policy": _POLICY, "condition": _CONDITION}, ("policy", "condition")), 1
                ),
                "onSuccess": ObjectOf({"policy": _POLICY}),
                "onFailure": ObjectOf({"policy": _POLICY}),
            }
        ),
        "clusterSelector": LABELS,
        "rayClusterSpec": RAYCLUSTER_SPEC,
        "suspend": Boolean(),
        "managedBy": _MANAGED_BY,
    }
)
RAYCLUSTER = kind("ray.io/v1", "RayCluster", _CLUSTER_METADATA, RAYCLUSTER_SPEC)
RAYJOB = kind("ray.io/v1", "RayJob", _JOB_METADATA, RAYJOB_SPEC)
# Served beside v1 by every KubeRay, with the same fields.
OLD_RAYCLUSTER = kind("ray.io/v1alpha1", "RayCluster", _CLUSTER_METADATA, RAYCLUSTER_SPEC)
OLD_RAYJOB = kind("ray.io/v1alpha1", "RayJob", _JOB_METADATA, RAYJOB_SPEC)
