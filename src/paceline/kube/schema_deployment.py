"""Which fields has a Deployment? `apps/v1`, closed, as data."""

from paceline.kube.schema import Anything, Fields, Text, Whole, YesNo
from paceline.kube.schema_job import kind
from paceline.kube.schema_labels import SELECTOR
from paceline.kube.schema_pod import CORE_POD_TEMPLATE, METADATA

_SHARE = Anything()  # a number of pods, or such as 25%: the rules look at it
DEPLOYMENT = kind(
    "apps/v1",
    "Deployment",
    METADATA,
    Fields(
        {
            "minReadySeconds": Whole(),
            "paused": YesNo(),
            "progressDeadlineSeconds": Whole(),
            "replicas": Whole(),
            "revisionHistoryLimit": Whole(),
            "selector": SELECTOR,
            "strategy": Fields(
                {
                    "type": Text(choices=("RollingUpdate", "Recreate")),
                    "rollingUpdate": Fields({"maxSurge": _SHARE, "maxUnavailable": _SHARE}),
                }
            ),
            "template": CORE_POD_TEMPLATE,
        },
        ("selector", "template"),
    ),
)
