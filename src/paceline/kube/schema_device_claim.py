"""Which fields has a ResourceClaimTemplate? `resource.k8s.io/v1` of Kubernetes 1.34, closed, as data."""

from collections.abc import Iterator, Mapping

from paceline.kube.reading import mapping, mappings
from paceline.kube.schema import Anything, Fields, Finding, ListOf, Path, Schema, Text, Whole, YesNo
from paceline.kube.schema_job import kind
from paceline.kube.schema_pod import LABEL_NAME, METADATA
from paceline.kube.words import DNS_SUBDOMAIN

_EXACTLY: dict[str, Schema] = {
    "deviceClassName": Text(pattern=DNS_SUBDOMAIN),
    "selectors": ListOf(Fields({"cel": Fields({"expression": Text()}, ("expression",))})),
    "allocationMode": Text(choices=("ExactCount", "All")),
    "count": Whole(least=1),
    "tolerations": ListOf(Anything()),
    "capacity": Anything(),
}
_REQUEST = Fields(
    {
        "name": LABEL_NAME,
        "exactly": Fields({**_EXACTLY, "adminAccess": YesNo()}, ("deviceClassName",)),
        "firstAvailable": ListOf(Fields({"name": LABEL_NAME, **_EXACTLY}, ("name", "deviceClassName")), 1),
    },
    ("name",),
)
_DEVICES = Fields(
    {"requests": ListOf(_REQUEST), "constraints": ListOf(Anything()), "config": ListOf(Anything())}
)
CLAIM_TEMPLATE = kind(
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    METADATA,
    Fields({"metadata": METADATA, "spec": Fields({"devices": _DEVICES})}, ("spec",)),
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
