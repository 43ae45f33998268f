"""Which fields have PyTorchJob and HyperPodPyTorchJob? Closed, as data.

Those of training-operator 1.9, and of HyperPod's training operator as its own command line knows them.
"""

import re

from paceline.kube.schema import Anything, Fields, ListOf, MapOf, Quantity, Text, Whole, YesNo
from paceline.kube.schema_job import DNS_1035, kind
from paceline.kube.schema_labels import ANY_TEXT
from paceline.kube.schema_pod import LABEL_NAME, POD_TEMPLATE

PROCS = Text(pattern=re.compile(r"auto|cpu|gpu|[1-9][0-9]*"))
_CLEAN = Text(choices=("All", "Running", "None"), may_be_empty=True)
_REPLICA = Fields(
    {
        "replicas": Whole(),
        "restartPolicy": Text(choices=("Always", "OnFailure", "Never", "ExitCode")),
        "template": POD_TEMPLATE,
    }
)
_ELASTIC = Fields(
    {
        "maxReplicas": Whole(least=1),
        "maxRestarts": Whole(),
        "metrics": ListOf(Anything()),
        "minReplicas": Whole(least=1),
        "nProcPerNode": Whole(least=1),
        "rdzvBackend": Text(choices=("c10d", "etcd", "etcd-v2")),
        "rdzvConf": ListOf(Fields({"key": Text(), "value": ANY_TEXT})),
        "rdzvHost": Text(),
        "rdzvId": Text(),
        "rdzvPort": Whole(least=1, most=65535),
        "standalone": YesNo(),
    }
)
_RUN = Fields(
    {
        "activeDeadlineSeconds": Whole(least=1),
        "backoffLimit": Whole(),
        "cleanPodPolicy": _CLEAN,
        "managedBy": Text(choices=("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")),
        "schedulingPolicy": Fields(
            {
                "minAvailable": Whole(),
                "minResources": MapOf(Quantity()),
                "priorityClass": Text(),
                "queue": Text(),
                "scheduleTimeoutSeconds": Whole(),
            }
        ),
        "suspend": YesNo(),
        "ttlSecondsAfterFinished": Whole(),
    }
)
PYTORCHJOB = kind(
    "kubeflow.org/v1",
    "PyTorchJob",
    DNS_1035,
    Fields(
        {
            "elasticPolicy": _ELASTIC,
            "nprocPerNode": PROCS,
            "pytorchReplicaSpecs": Fields({"Master": _REPLICA, "Worker": _REPLICA}),
            "runPolicy": _RUN,
        },
        ("pytorchReplicaSpecs",),
    ),
)
_LOG_RULE = Fields(
    {
        "expectedRecurringFrequencyInSeconds": Whole(least=1),
        "expectedStartCutOffInSeconds": Whole(least=1),
        "logPattern": Text(),
        "metricEvaluationDataPoints": Whole(least=1),
        "metricThreshold": Whole(least=-(2**31)),
        "name": Text(),
        "operator": Text(choices=("gt", "lt", "eq", "gteq", "lteq")),
        "stopPattern": Text(),
    },
    ("logPattern", "name"),
)
_HYPERPOD_RUN = Fields(
    {
        "activeDeadlineSeconds": Whole(least=1),
        "cleanPodPolicy": _CLEAN,
        "faultDeadlineSeconds": Whole(least=1),
        "jobMaxRetryCount": Whole(),
        "logMonitoringConfiguration": ListOf(_LOG_RULE),
        "restartPolicy": Fields(
            {
                "evalPeriodSeconds": Whole(least=1),
                "maxFullJobRestarts": Whole(),
                "numRestartBeforeFullJobRestart": Whole(),
            },
            ("evalPeriodSeconds",),
        ),
        "startupDeadlineSeconds": Whole(least=1),
        "suspend": YesNo(),
        "ttlSecondsAfterFinished": Whole(least=-1),  # -1: for ever
    }
)
_HYPERPOD_REPLICA = Fields(
    {
        "name": LABEL_NAME,
        "replicas": Whole(least=1),
        "spares": Whole(),
        "template": POD_TEMPLATE,
    },
    ("name",),
)
HYPERPODJOB = kind(
    "sagemaker.amazonaws.com/v1",
    "HyperPodPyTorchJob",
    DNS_1035,
    Fields({"nprocPerNode": PROCS, "replicaSpecs": ListOf(_HYPERPOD_REPLICA), "runPolicy": _HYPERPOD_RUN}),
)
