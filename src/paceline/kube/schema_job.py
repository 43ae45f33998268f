"""Which fields has a Job? `batch/v1` of Kubernetes, closed, as data."""

from dataclasses import replace

from paceline.kube.schema import Anything, Fields, ListOf, Schema, Text, Whole, YesNo
from paceline.kube.schema_labels import SELECTOR
from paceline.kube.schema_pod import CORE_POD_TEMPLATE, LABEL_NAME, METADATA, POD_TEMPLATE
from paceline.kube.words import DNS_SUBDOMAIN, LONGEST_LABEL, NAME

TOP = ("apiVersion", "kind", "metadata", "spec")
DNS_1035 = replace(METADATA, of={**METADATA.of, "name": Text(pattern=NAME, longest=LONGEST_LABEL)})
DNS_1123 = replace(METADATA, of={**METADATA.of, "name": LABEL_NAME})
_JOB_METADATA = replace(
    METADATA, of={**METADATA.of, "name": Text(pattern=DNS_SUBDOMAIN, longest=LONGEST_LABEL)}
)
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
        "status": Anything(),  # repeated from a cluster, and not read
    }
    return Fields(of, TOP)


_CORE_SPEC = replace(JOB_SPEC, of={**JOB_SPEC.of, "template": CORE_POD_TEMPLATE})
JOB = kind("batch/v1", "Job", _JOB_METADATA, _CORE_SPEC)
