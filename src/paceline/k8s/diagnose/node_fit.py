"""Node fit: whether pods could run on these nodes if they were empty."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from paceline.k8s.diagnose.snapshot import Object, labels_of, name_of
from paceline.k8s.objects import mapping, mappings, read_quantity, write_quantity

# Taints that a node gets from its own state: cordoned, not ready, short of memory. They go again.
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_AUTOSCALED = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name", "eks.amazonaws.com/compute-type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One resource: the request of a pod, and the maximum over the nodes that it may run on."""

    resource: str
    needs: str
    has: str


def requests(pod: Object) -> dict[str, Decimal]:
    """Requests as the scheduler counts them: the sum of the containers, or the largest init container."""
    total: dict[str, Decimal] = {}
    for container in mappings(pod, "spec", "containers"):
        for name, amount in _container_requests(container).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in mappings(pod, "spec", "initContainers"):
        for name, amount in _container_requests(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _container_requests(container: Object) -> dict[str, Decimal]:
    # A limit without a request is a request.
    amounts = {**mapping(container, "resources", "limits"), **mapping(container, "resources", "requests")}
    read = {name: read_quantity(value) for name, value in amounts.items()}
    return {name: amount for name, amount in read.items() if amount is not None}


def allocatable(node: Object) -> dict[str, Decimal]:
    read = {name: read_quantity(value) for name, value in mapping(node, "status", "allocatable").items()}
    return {name: amount for name, amount in read.items() if amount is not None}


def matching(pod: Object, nodes: Iterable[Object]) -> list[Object]:
    """Nodes that its selector, node affinity and tolerations allow, in any state."""
    selector = mapping(pod, "spec", "nodeSelector")
    return [
        node
        for node in nodes
        if all(labels_of(node).get(name) == value for name, value in selector.items())
        and _has_affinity(pod, node)
        and _tolerates(pod, node)
    ]


def closed_for_now(pod: Object, nodes: Iterable[Object]) -> list[str]:
    """Names of nodes that are meant for the pod, and take no pods at present: cordoned, or not ready."""
    return [
        name_of(node)
        for node in matching(pod, nodes)
        if mapping(node, "spec").get("unschedulable") is True
        or any(str(taint.get("key")).startswith(_PASSING) for taint in mappings(node, "spec", "taints"))
    ]


def _has_affinity(pod: Object, node: Object) -> bool:
    required = mapping(
        pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = mappings(required, "nodeSelectorTerms")
    return not terms or any(
        all(_matches(expression, labels_of(node)) for expression in mappings(term, "matchExpressions"))
        and all(_matches(field, {"metadata.name": name_of(node)}) for field in mappings(term, "matchFields"))
        for term in terms
    )


def _matches(expression: Object, labels: Object) -> bool:
    value = labels.get(str(expression.get("key")))
    values = expression.get("values")
    listed = values if isinstance(values, list) else []
    match expression.get("operator"):
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt and Lt: not compared here, so nothing is excluded
            return True


def _tolerates(pod: Object, node: Object) -> bool:
    tolerations = mappings(pod, "spec", "tolerations")
    hard = [
        taint
        for taint in mappings(node, "spec", "taints")
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not str(taint.get("key")).startswith(_PASSING)
    ]
    return all(any(_meets(toleration, taint) for toleration in tolerations) for taint in hard)


def _meets(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value") == taint.get("value")


def is_autoscaled(nodes: Iterable[Object]) -> bool:
    return any(name in labels_of(node) for node in nodes for name in _AUTOSCALED)


def too_large(pod: Object, nodes: Sequence[Object]) -> list[Need]:
    """Resources of which no matching node has enough, even when empty."""
    reasons = []
    for name, amount in requests(pod).items():
        most = max((allocatable(node).get(name, Decimal(0)) for node in nodes), default=Decimal(0))
        if amount > most:
            reasons.append(
                Need(resource=name, needs=write_quantity(amount, name), has=write_quantity(most, name))
            )
    return reasons


def too_many(pods: Sequence[Object], nodes: Sequence[Object]) -> list[Need]:
    """Whether empty nodes could hold all of these pods at once, each asking for what the first does."""
    amounts = {name: amount for name, amount in requests(pods[0]).items() if amount > 0}
    if not amounts:
        return []
    places = sum(
        min(int(allocatable(node).get(name, Decimal(0)) / amount) for name, amount in amounts.items())
        for node in nodes
    )
    if places >= len(pods):
        return []
    rare = max(amounts, key=lambda name: amounts[name] / max(_total(nodes, name), Decimal(1)))
    all_of_it = write_quantity(amounts[rare] * len(pods), rare)
    return [Need(resource=f"{rare} in all", needs=all_of_it, has=write_quantity(_total(nodes, rare), rare))]


def _total(nodes: Iterable[Object], resource: str) -> Decimal:
    return sum((allocatable(node).get(resource, Decimal(0)) for node in nodes), Decimal(0))


def holders(resource: str, pods: Iterable[Object]) -> list[str]:
    """Who holds it, among the pods that were seen."""
    return [
        name_of(pod) for pod in pods if resource in requests(pod) and mapping(pod, "spec").get("nodeName")
    ]
