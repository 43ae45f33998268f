"""Which fields has a Job? `batch/v1` of Kubernetes, closed, as data."""

from paceline.kube.schema import Anything, Fields, ListOf, Schema, Text, Whole, YesNo
from paceline.kube.schema_labels import SELECTOR
from paceline.kube.schema_pod import LABEL_NAME, METADATA, POD_TEMPLATE
from paceline.kube.words import LONGEST_LABEL, NAME

TOP = ("apiVersion", "kind", "metadata", "spec")
DNS_1035 = Fields({**METADATA.of, "name": Text(pattern=NAME, longest=LONGEST_LABEL)}, ("name",))
DNS_1123 = Fields({**METADATA.of, "name": LABEL_NAME}, ("name",))
JOB_SPEC = Fields(
    {
        "activeDeadlineSeconds": Whole(least=1),
        "backoffLimit": Whole(),
        "backoffLimitPerIndex": Whole(),
        "completionMode": Text(choices=("NonIndexed", "Indexed")),
        "completions": Whole(),
        "managedBy": Text(),
        "manualSelector": YesNo(),
        "maxFailedIndexes": Whole(),
        "parallelism": Whole(),
        "podFailurePolicy": Fields({"rules": ListOf(Anything())}, ("rules",)),
        "podReplacementPolicy": Text(choices=("TerminatingOrFailed", "Failed")),
        "selector": SELECTOR,
        "successPolicy": Fields(
            {"rules": ListOf(Fields({"succeededCount": Whole(), "succeededIndexes": Text()}), 1)}, ("rules",)
        ),
        "suspend": YesNo(),
        "template": POD_TEMPLATE,
        "ttlSecondsAfterFinished": Whole(),
    },
    ("template",),
)


def kind(version: str, name: str, metadata: Fields, spec: Fields) -> Fields:
    of: dict[str, Schema] = {
        "apiVersion": Text(choices=(version,)),
        "kind": Text(choices=(name,)),
        "metadata": metadata,
        "spec": spec,
    }
    return Fields(of, TOP)


JOB = kind("batch/v1", "Job", DNS_1123, JOB_SPEC)
