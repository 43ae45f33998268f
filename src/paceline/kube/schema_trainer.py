"""Which fields have TrainJob and its runtimes? Kubeflow Trainer 2.1 to 2.3, closed, as data.

What only 2.1 has is here too, so that its manifests can be read: `podTemplateOverrides`, and the
number of processes in a runtime. Which of both a manifest may use is a rule, not a shape.
"""

from paceline.kube.schema import Anything, Fields, ListOf, PortOrName, Schema, Text, Whole, YesNo
from paceline.kube.schema_job import DNS_1035, JOB_SPEC, kind
from paceline.kube.schema_labels import AFFINITY, ANY_TEXT, LABELS
from paceline.kube.schema_pod import (
    CONTAINER_SECURITY,
    ENV,
    LABEL_NAME,
    METADATA,
    OBJECT_NAME,
    POD_SECURITY,
    PULL_SECRETS,
    RESOURCES,
    TEMPLATE_METADATA,
    TOLERATION,
    VOLUME_MOUNTS,
    VOLUMES,
)
from paceline.kube.words import IMAGE

_GROUP = "trainer.kubeflow.org/v1alpha1"
_INITIALIZER = Fields({"env": ENV, "secretRef": Fields({"name": OBJECT_NAME}), "storageUri": ANY_TEXT})
_TRAINER = Fields(
    {
        "args": ListOf(ANY_TEXT),
        "command": ListOf(ANY_TEXT),
        "env": ENV,
        "image": Text(pattern=IMAGE, longest=500),
        "numNodes": Whole(least=1),
        "numProcPerNode": PortOrName(),  # 2.1 takes words, too
        "resourcesPerNode": RESOURCES,
    }
)
_CONTAINER_PATCH = ListOf(
    Fields(
        {
            "env": ENV,
            "name": LABEL_NAME,
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": VOLUME_MOUNTS,
        },
        ("name",),
    )
)
_POD_PATCH = Fields(
    {
        "affinity": AFFINITY,
        "containers": _CONTAINER_PATCH,
        "imagePullSecrets": PULL_SECRETS,
        "initContainers": _CONTAINER_PATCH,
        "nodeSelector": LABELS,
        "schedulingGates": ListOf(Fields({"name": Text()}, ("name",))),
        "securityContext": POD_SECURITY,
        "serviceAccountName": OBJECT_NAME,
        "terminationGracePeriodSeconds": Whole(),
        "tolerations": ListOf(TOLERATION),
        "volumes": VOLUMES,
    }
)
_POD_TEMPLATE_PATCH = Fields({"metadata": TEMPLATE_METADATA, "spec": _POD_PATCH})
_JOB_PATCH = Fields({"metadata": TEMPLATE_METADATA, "spec": Fields({"template": _POD_TEMPLATE_PATCH})})
_JOBSET_PATCH = Fields(
    {
        "metadata": TEMPLATE_METADATA,
        "spec": Fields(
            {"replicatedJobs": ListOf(Fields({"name": LABEL_NAME, "template": _JOB_PATCH}, ("name",)))}
        ),
    }
)
_PATCHES = ListOf(
    Fields(
        {
            "manager": Text(longest=253),
            "time": Text(),
            "trainingRuntimeSpec": Fields({"template": _JOBSET_PATCH}),
        },
        ("manager",),
    )
)
_OVERRIDES = ListOf(
    Fields(
        {
            "manager": Text(longest=253),
            "metadata": TEMPLATE_METADATA,
            "spec": _POD_PATCH,
            "targetJobs": ListOf(Fields({"name": LABEL_NAME}, ("name",)), 1),
        },
        ("targetJobs",),
    )
)
TRAINJOB = kind(
    _GROUP,
    "TrainJob",
    DNS_1035,
    Fields(
        {
            "activeDeadlineSeconds": Whole(least=1),
            "initializer": Fields({"dataset": _INITIALIZER, "model": _INITIALIZER}),
            "managedBy": Text(longest=253),
            "podTemplateOverrides": _OVERRIDES,
            "runtimePatches": _PATCHES,
            "runtimeRef": Fields({"apiGroup": Text(), "kind": Text(), "name": OBJECT_NAME}, ("name",)),
            "suspend": YesNo(),
            "trainer": _TRAINER,
        },
        ("runtimeRef",),
    ),
)
_COUNT: dict[str, Schema] = {"numProcPerNode": Whole(least=1)}
_ML_POLICY = Fields(
    {
        "flux": Fields(_COUNT),
        "jax": Fields(),
        "mpi": Fields(
            {
                **_COUNT,
                "mpiImplementation": Text(choices=("OpenMPI", ""), may_be_empty=True),
                "runLauncherAsNode": YesNo(),
                "sshAuthMountPath": Text(longest=4096),
            }
        ),
        "numNodes": Whole(least=1),
        "torch": Fields(
            {
                "elasticPolicy": Anything(),  # until 2.1
                "envInjection": Fields(
                    {
                        "targets": ListOf(
                            Fields(
                                {"containerNames": ListOf(Text(), 1), "jobName": Text()},
                                ("containerNames", "jobName"),
                            )
                        )
                    }
                ),
                "numProcPerNode": PortOrName(),  # until 2.1
            }
        ),
        "xgboost": Fields(),
    }
)
_RESTARTS = ("RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob")
_FAILURES = Fields(
    {
        "maxRestarts": Whole(),
        "restartStrategy": Text(choices=("Recreate", "BlockingRecreate", "InPlaceRestart")),
        "rules": ListOf(
            Fields(
                {
                    "action": Text(choices=("FailJobSet", *_RESTARTS, "RestartJobAndIgnoreMaxRestarts")),
                    "name": Text(),
                    "onJobFailureMessagePatterns": ListOf(Text()),
                    "onJobFailureReasons": ListOf(Text()),
                    "targetReplicatedJobs": ListOf(Text()),
                },
                ("action", "name"),
            )
        ),
    }
)
_REPLICATED = Fields(
    {
        "dependsOn": ListOf(
            Fields({"name": Text(), "status": Text(choices=("Ready", "Complete"))}, ("name", "status"))
        ),
        "groupName": Text(),
        "name": LABEL_NAME,
        "replicas": Whole(),
        "template": Fields({"metadata": TEMPLATE_METADATA, "spec": JOB_SPEC}),
    },
    ("name", "template"),
)
_JOBSET = Fields(
    {
        "coordinator": Fields(
            {"jobIndex": Whole(), "podIndex": Whole(), "replicatedJob": Text()}, ("replicatedJob",)
        ),
        "failurePolicy": _FAILURES,
        "managedBy": Text(),
        "network": Fields(
            {"enableDNSHostnames": YesNo(), "publishNotReadyAddresses": YesNo(), "subdomain": Text()}
        ),
        "replicatedJobs": ListOf(_REPLICATED),
        "startupPolicy": Fields(
            {"startupPolicyOrder": Text(choices=("AnyOrder", "InOrder"))}, ("startupPolicyOrder",)
        ),
        "successPolicy": Fields(
            {"operator": Text(choices=("All", "Any")), "targetReplicatedJobs": ListOf(Text())}, ("operator",)
        ),
        "suspend": YesNo(),
        "ttlSecondsAfterFinished": Whole(),
        "volumeClaimPolicies": ListOf(Anything()),
    }
)
_RUNTIME = Fields(
    {
        "mlPolicy": _ML_POLICY,
        "podGroupPolicy": Fields(
            {
                "coscheduling": Fields({"scheduleTimeoutSeconds": Whole()}),
                "volcano": Fields(
                    {
                        "networkTopology": Fields(
                            {"highestTierAllowed": Whole(), "mode": Text(choices=("hard", "soft"))}
                        )
                    }
                ),
            }
        ),
        "template": Fields({"metadata": TEMPLATE_METADATA, "spec": _JOBSET}),
    }
)
RUNTIME = kind(_GROUP, "TrainingRuntime", METADATA, _RUNTIME)
CLUSTER_RUNTIME = kind(_GROUP, "ClusterTrainingRuntime", METADATA, _RUNTIME)
