"""How are nodes, pods and namespaces found by their labels? Selectors and affinities, closed, as data."""

from paceline.kube.schema import Fields, ListOf, MapOf, Schema, Text, Whole
from paceline.kube.words import LABEL_KEY, LABEL_VALUE, LONGEST_LABEL

ANY_TEXT = Text(may_be_empty=True)
LABELS = MapOf(Text(pattern=LABEL_VALUE, longest=LONGEST_LABEL, may_be_empty=True), LABEL_KEY)
ANNOTATIONS = MapOf(ANY_TEXT, LABEL_KEY)
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def _requirements(*more: str) -> ListOf:
    of: dict[str, Schema] = {"key": Text(), "operator": Text(choices=(*_OPERATORS, *more))}
    return ListOf(Fields({**of, "values": ListOf(ANY_TEXT)}, ("key", "operator")))


SELECTOR = Fields({"matchLabels": LABELS, "matchExpressions": _requirements()})
_WEIGHT = Whole(least=1, most=100)
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
_NODES = Fields({"matchExpressions": _requirements("Gt", "Lt"), "matchFields": _requirements("Gt", "Lt")})
_NODE_AFFINITY = Fields(
    {
        _REQUIRED: Fields({"nodeSelectorTerms": ListOf(_NODES, 1)}, ("nodeSelectorTerms",)),
        _PREFERRED: ListOf(Fields({"preference": _NODES, "weight": _WEIGHT}, ("preference", "weight"))),
    }
)
_PODS = Fields(
    {
        "labelSelector": SELECTOR,
        "topologyKey": Text(pattern=LABEL_KEY),
        "namespaces": ListOf(Text()),
        "namespaceSelector": SELECTOR,
        "matchLabelKeys": ListOf(Text()),
        "mismatchLabelKeys": ListOf(Text()),
    },
    ("topologyKey",),
)
_POD_AFFINITY = Fields(
    {
        _REQUIRED: ListOf(_PODS),
        _PREFERRED: ListOf(
            Fields({"podAffinityTerm": _PODS, "weight": _WEIGHT}, ("podAffinityTerm", "weight"))
        ),
    }
)
AFFINITY = Fields(
    {"nodeAffinity": _NODE_AFFINITY, "podAffinity": _POD_AFFINITY, "podAntiAffinity": _POD_AFFINITY}
)
