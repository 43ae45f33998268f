"""Checks of a namespace: Pod Security, quotas, network policies, meshes, rights."""

from collections.abc import Iterable, Iterator, Sequence

from paceline.k8s.check.findings import Finding, Level, Need, ok_finding
from paceline.k8s.check.snapshot import Object, Rule, Snapshot, labels_of, name_of
from paceline.k8s.objects import GPU, mapping, mappings, read_quantity
from paceline.k8s.rbac import Right, grant, rendered_rights_for
from paceline.k8s.spec.job import Target

POLICY_AREA = "policy and quotas"
_POLICIES = "networkpolicies.networking.k8s.io"


def check_policy(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if seen.knows("namespaces"):
        yield from _namespace(seen, need)
    for quota in seen.of("resourcequotas"):
        yield from _quota(seen, need, quota)
    yield from _network(seen)


def _namespace(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if not seen.of("namespaces"):
        yield Finding(
            area=POLICY_AREA,
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
            area=POLICY_AREA,
            level=Level.PROBLEM if need.efa else Level.WARNING if adds else Level.NOTE,
            what=f"namespace {seen.namespace} enforces Pod Security {enforced}",
            evidence="label pod-security.kubernetes.io/enforce",
            why=says[enforced],
        )
    else:
        yield ok_finding(POLICY_AREA, f"namespace {seen.namespace} takes every pod")
    if labels.get("istio-injection") == "enabled":
        yield Finding(
            area=POLICY_AREA,
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
                area=POLICY_AREA,
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
                area=POLICY_AREA,
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


# A missing right is named as the rule that gives it, with the Role and the binding.

RIGHTS_AREA = "rights"


def check_rights(seen: Snapshot, need: Need) -> Iterator[Finding]:
    for rule in sorted(seen.refused):
        yield _unseen(rule, seen.user)
    target = need.target or Target.JOB
    wanted = rendered_rights_for(target.resource)
    required = [right for right in wanted if right.is_required]
    missing = [right for right in required if seen.rights.get(right.key) is False]
    unknown = [right for right in required if right.key not in seen.rights]
    if missing:
        yield Finding(
            area=RIGHTS_AREA,
            level=need.absent(matters=need.target is not None),
            what=f"this user may not run a {target.value} in namespace {seen.namespace}",
            evidence="missing: " + "; ".join(str(Rule(one.verb, one.of, seen.namespace)) for one in missing),
            command=grant(missing, seen.namespace, seen.user),
        )
    elif unknown and need.target is not None:
        yield Finding(
            area=RIGHTS_AREA,
            level=Level.NOTE,
            what=f"not all rights that a {target.value} needs could be seen",
            evidence="not known: " + ", ".join(right.key for right in unknown),
            why="the server answers such questions one by one only, and few were asked",
            command=f"kubectl -n {seen.namespace} auth can-i {unknown[0].key}",
        )
    elif not unknown:
        yield ok_finding(
            RIGHTS_AREA, f"this user may run a {target.value} in namespace {seen.namespace}, and look at it"
        )
    narrowed = [right for right in wanted if not right.is_required and seen.rights.get(right.key) is False]
    if narrowed and not missing and need.target is not None:
        yield _narrowed(narrowed, seen)


def _narrowed(missing: Sequence[Right], seen: Snapshot) -> Finding:
    uses = dict.fromkeys(right.why for right in missing)
    return Finding(
        area=RIGHTS_AREA,
        level=Level.NOTE,
        what=f"jobs run in namespace {seen.namespace}, but not everything is checked or resumed",
        evidence="missing, optional: " + ", ".join(right.key for right in missing),
        why="they are for: " + "; ".join(uses),
        command=grant(missing, seen.namespace, seen.user),
    )


def rights_in(review: Object, wanted: Iterable[Right]) -> dict[str, bool]:
    """By the status of a SelfSubjectRulesReview. Where that is incomplete, a no is not known to be one."""
    rules = mappings(review, "resourceRules")
    answers = {right.key: any(_gives(rule, right) for rule in rules) for right in wanted}
    is_whole = review.get("incomplete") is not True
    return {right: may for right, may in answers.items() if may or is_whole}


def _gives(rule: Object, right: Right) -> bool:
    _, _, subresource = right.resource.partition("/")
    part = {right.resource, f"*/{subresource}" if subresource else "*", "*"}
    return (
        not rule.get("resourceNames")
        and _any_of(rule.get("verbs"), {right.verb, "*"})
        and _any_of(rule.get("apiGroups"), {right.group, "*"})
        and _any_of(rule.get("resources"), part)
    )


def _any_of(said: object, accepted: set[str]) -> bool:
    return isinstance(said, list) and any(one in accepted for one in said)


def _unseen(rule: Rule, user: str) -> Finding:
    resource, _, group = rule.resource.partition(".")
    right = Right(rule.verb, resource, group, is_namespaced=bool(rule.namespace))
    return Finding(
        area=RIGHTS_AREA,
        level=Level.WARNING,
        what=f"{rule.resource} may not be looked at: what depends on them is not checked",
        evidence=f"missing: {rule}",
        why="the server answered 403 Forbidden",
        command=grant([right], rule.namespace, user),
    )
