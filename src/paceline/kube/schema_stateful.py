"""Which fields have a StatefulSet and a PodDisruptionBudget? `apps/v1`, `policy/v1`, closed, as data."""

from paceline.kube.schema import Anything, Fields, ListOf, Text, Whole
from paceline.kube.schema_beside import CLAIM
from paceline.kube.schema_job import DNS_1123, kind
from paceline.kube.schema_labels import SELECTOR
from paceline.kube.schema_pod import CORE_POD_TEMPLATE, METADATA, OBJECT_NAME

_KEPT = Text(choices=("Retain", "Delete"))
_SHARE = Anything()  # a number of pods, or such as 25%: the rules look at it
STATEFUL_SET = kind(
    "apps/v1",
    "StatefulSet",
    DNS_1123,  # its name becomes a label of its pods, and the name of each of them with a number behind
    Fields(
        {
            "minReadySeconds": Whole(),
            "ordinals": Fields({"start": Whole()}),
            "persistentVolumeClaimRetentionPolicy": Fields({"whenDeleted": _KEPT, "whenScaled": _KEPT}),
            "podManagementPolicy": Text(choices=("OrderedReady", "Parallel")),
            "replicas": Whole(),
            "revisionHistoryLimit": Whole(),
            "selector": SELECTOR,
            "serviceName": OBJECT_NAME,
            "template": CORE_POD_TEMPLATE,
            "updateStrategy": Fields(
                {
                    "type": Text(choices=("RollingUpdate", "OnDelete")),
                    "rollingUpdate": Fields({"maxUnavailable": _SHARE, "partition": Whole()}),
                }
            ),
            "volumeClaimTemplates": ListOf(
                Fields({"metadata": METADATA, "spec": CLAIM.of["spec"]}, ("metadata", "spec"))
            ),
        },
        ("selector", "serviceName", "template"),
    ),
)
DISRUPTION_BUDGET = kind(
    "policy/v1",
    "PodDisruptionBudget",
    METADATA,
    Fields(
        {
            "maxUnavailable": _SHARE,
            "minAvailable": _SHARE,
            "selector": SELECTOR,
            "unhealthyPodEvictionPolicy": Text(choices=("IfHealthyBudget", "AlwaysAllow")),
        },
        ("selector",),
    ),
)
