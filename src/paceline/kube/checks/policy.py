"""Would the namespace let a job in, and let its pods talk? Pod Security, quotas, network policies, meshes."""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.checks.workloads import fine
from paceline.kube.reading import mapping, mappings
from paceline.kube.well_known import GPU
from paceline.kube.words import read_quantity

AREA = "policy and quotas"
_POLICIES = "networkpolicies.networking.k8s.io"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if seen.knows("namespaces"):
        yield from _namespace(seen, need)
    for quota in seen.of("resourcequotas"):
        yield from _quota(seen, need, quota)
    yield from _network(seen)


def _namespace(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.of("namespaces"):
        yield Finding(
            area=AREA,
            level=Level.PROBLEM,
            what=f"there is no namespace {seen.namespace}",
            evidence=f"namespaces {seen.namespace}: not found",
            command=f"kubectl create namespace {seen.namespace}",
            cure="namespace",
        )
        return
    labels = labels_of(seen.of("namespaces")[0])
    enforced = str(labels.get("pod-security.kubernetes.io/enforce", "privileged"))
    says = {
        "restricted": "what is rendered by default passes; --profile compat, EFA's IPC_LOCK and init-pytorch,"
        " a container that training-operator adds to PyTorchJobs of several nodes, do not",
        "baseline": "what is rendered passes, but for EFA's IPC_LOCK",
    }
    if enforced in says:
        # Workers of a PyTorchJob get a container that is not ours, unless its operator was told otherwise.
        adds = enforced == "restricted" and need.target is Target.PYTORCHJOB and need.nodes > 1
        yield Finding(
            area=AREA,
            level=Level.PROBLEM if need.efa else Level.WARNING if adds else Level.NOTE,
            what=f"namespace {seen.namespace} enforces Pod Security {enforced}",
            evidence="label pod-security.kubernetes.io/enforce",
            why=says[enforced],
        )
    else:
        yield fine(AREA, f"namespace {seen.namespace} takes every pod")
    if labels.get("istio-injection") == "enabled":
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="Istio puts itself into every pod of the namespace",
            evidence="label istio-injection=enabled",
            why='a mesh breaks torch\'s rendezvous; pods need sidecar.istio.io/inject: "false"',
        )


def _quota(seen: Snapshot, need: Need, quota: Object) -> Iterator[Finding]:
    hard, used = mapping(quota, "status", "hard"), mapping(quota, "status", "used")
    spec = mapping(quota, "spec")
    is_for_some = bool(spec.get("scopes") or spec.get("scopeSelector"))  # pods: perhaps not for ours
    for name in hard:
        most, taken = read_quantity(hard[name]), read_quantity(used.get(name, 0))
        if most is None or taken is None:
            continue
        is_gpu = name.removeprefix("requests.").removeprefix("limits.") == GPU
        wanted = need.gpus if is_gpu else 1 if name in ("pods", "count/pods") else 0
        if wanted and most - taken < wanted:
            yield Finding(
                area=AREA,
                level=Level.PROBLEM if (is_gpu or need.target) and not is_for_some else Level.WARNING,
                what=f"quota {name_of(quota)} has no room: {wanted} more of {name}",
                evidence=f"ResourceQuota {name_of(quota)}: {used.get(name, 0)} of {hard[name]} used",
                why="pods beyond a quota are never created; nobody says so but an event",
                command=f"kubectl -n {seen.namespace} describe resourcequota {name_of(quota)}",
            )


def _network(seen: Snapshot) -> Iterator[Finding]:
    """A policy for all pods that lets nothing in or out, and none that lets pods of the namespace talk."""
    policies = [one for one in seen.of(_POLICIES) if not mapping(one, "spec", "podSelector")]
    for way, peers in (("Ingress", "from"), ("Egress", "to")):
        closed = [one for one in policies if way in _ways(one) and not mappings(one, "spec", way.lower())]
        rules = [rule for one in policies if way in _ways(one) for rule in mappings(one, "spec", way.lower())]
        if closed and not any(_lets_own_pods(rule, peers) for rule in rules):
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what=f"pods of namespace {seen.namespace} may not talk to each other",
                evidence=f"NetworkPolicy {name_of(closed[0])}: all pods, no {way.lower()}",
                why="workers wait for each other until they time out; a policy must let pods of one run talk",
                command=f"kubectl -n {seen.namespace} get networkpolicies -o yaml",
            )


def _ways(one: Object) -> list[object]:
    ways = mapping(one, "spec").get("policyTypes", ["Ingress"])
    return ways if isinstance(ways, list) else []


def _lets_own_pods(rule: Object, peers: str) -> bool:
    """Nobody named is everybody; `podSelector: {}` alone is all pods of the namespace."""
    named = mappings(rule, peers)
    return not named or any(peer == {"podSelector": {}} for peer in named)
