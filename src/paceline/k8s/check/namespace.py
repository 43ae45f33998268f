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
    reasons = {
        "restricted": "manifests rendered by default pass; --profile compat, EFA's IPC_LOCK and "
        "init-pytorch (a container that training-operator adds to PyTorchJobs of several nodes) do not",
        "baseline": "rendered manifests pass, except EFA's IPC_LOCK",
    }
    if enforced in reasons:
        # By default training-operator adds a container to workers of a PyTorchJob.
        adds = enforced == "restricted" and need.target is Target.PYTORCHJOB and need.nodes > 1
        level = Level.NOTE
        if need.efa:
            level = Level.PROBLEM
        elif adds:
            level = Level.WARNING
        yield Finding(
            area=POLICY_AREA,
            level=level,
            what=f"namespace {seen.namespace} enforces Pod Security {enforced}",
            evidence="label pod-security.kubernetes.io/enforce",
            why=reasons[enforced],
        )
    else:
        yield ok_finding(POLICY_AREA, f"namespace {seen.namespace} accepts every pod")
    if labels.get("istio-injection") == "enabled":
        yield Finding(
            area=POLICY_AREA,
            level=Level.NOTE,
            what="Istio injects a sidecar into every pod of the namespace",
            evidence="label istio-injection=enabled",
            why='a mesh breaks torch\'s rendezvous; pods need sidecar.istio.io/inject: "false"',
        )


def _quota(seen: Snapshot, need: Need, quota: Object) -> Iterator[Finding]:
    hard = mapping(quota, "status", "hard")
    used = mapping(quota, "status", "used")
    spec = mapping(quota, "spec")
    is_for_some = bool(spec.get("scopes") or spec.get("scopeSelector"))  # may not apply to the job's pods
    for name in hard:
        limit = read_quantity(hard[name])
        in_use = read_quantity(used.get(name, 0))
        if limit is None or in_use is None:
            continue
        is_gpu = name.removeprefix("requests.").removeprefix("limits.") == GPU
        required = 0
        if is_gpu:
            required = need.gpus
        elif name in ("pods", "count/pods"):
            required = 1
        if required and limit - in_use < required:
            yield Finding(
                area=POLICY_AREA,
                level=Level.PROBLEM if (is_gpu or need.target) and not is_for_some else Level.WARNING,
                what=f"quota {name_of(quota)} is too small: {required} more of {name}",
                evidence=f"ResourceQuota {name_of(quota)}: {used.get(name, 0)} of {hard[name]} used",
                why="pods beyond a quota are never created; only an event reports it",
                command=f"kubectl -n {seen.namespace} describe resourcequota {name_of(quota)}",
            )


def _network(seen: Snapshot) -> Iterator[Finding]:
    """A policy for all pods that lets nothing in or out, and none that lets pods of the namespace talk."""
    policies = [policy for policy in seen.of(_POLICIES) if not mapping(policy, "spec", "podSelector")]
    for way, peers in (("Ingress", "from"), ("Egress", "to")):
        closed = [
            policy
            for policy in policies
            if way in _policy_types(policy) and not mappings(policy, "spec", way.lower())
        ]
        rules = [
            rule
            for policy in policies
            if way in _policy_types(policy)
            for rule in mappings(policy, "spec", way.lower())
        ]
        if closed and not any(_allows_own_pods(rule, peers) for rule in rules):
            yield Finding(
                area=POLICY_AREA,
                level=Level.WARNING,
                what=f"pods of namespace {seen.namespace} cannot reach each other",
                evidence=f"NetworkPolicy {name_of(closed[0])}: all pods, no {way.lower()}",
                why="workers time out; a policy must allow traffic between pods of one run",
                command=f"kubectl -n {seen.namespace} get networkpolicies -o yaml",
            )


def _policy_types(policy: Object) -> list[object]:
    ways = mapping(policy, "spec").get("policyTypes", ["Ingress"])
    return ways if isinstance(ways, list) else []


def _allows_own_pods(rule: Object, peers: str) -> bool:
    """A rule without peers allows every peer; `podSelector: {}` alone allows all pods of the namespace."""
    named = mappings(rule, peers)
    return not named or any(peer == {"podSelector": {}} for peer in named)


# A missing right is named as the rule that gives it, with the Role and the binding.

RIGHTS_AREA = "rights"


def check_rights(seen: Snapshot, need: Need) -> Iterator[Finding]:
    for rule in sorted(seen.refused):
        yield _unseen(rule, seen.user)
    target = need.target or Target.JOB
    rights = rendered_rights_for(target.resource)
    required = [right for right in rights if right.is_required]
    missing = [right for right in required if seen.rights.get(right.key) is False]
    unknown = [right for right in required if right.key not in seen.rights]
    if missing:
        yield Finding(
            area=RIGHTS_AREA,
            level=need.absent(matters=need.target is not None),
            what=f"this user may not run a {target.value} in namespace {seen.namespace}",
            evidence="missing: "
            + "; ".join(str(Rule(right.verb, right.of, seen.namespace)) for right in missing),
            command=grant(missing, seen.namespace, seen.user),
        )
    elif unknown and need.target is not None:
        yield Finding(
            area=RIGHTS_AREA,
            level=Level.NOTE,
            what=f"not all permissions for a {target.value} could be checked",
            evidence="unknown: " + ", ".join(right.key for right in unknown),
            why="the server checks permissions one by one, and only a few were requested",
            command=f"kubectl -n {seen.namespace} auth can-i {unknown[0].key}",
        )
    elif not unknown:
        yield ok_finding(
            RIGHTS_AREA, f"this user may run a {target.value} in namespace {seen.namespace}, and follow it"
        )
    narrowed = [right for right in rights if not right.is_required and seen.rights.get(right.key) is False]
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


def rights_in(review: Object, rights: Iterable[Right]) -> dict[str, bool]:
    """Rights by the status of a SelfSubjectRulesReview. In an incomplete one, an absent right is unknown."""
    rules = mappings(review, "resourceRules")
    answers = {right.key: any(_gives(rule, right) for rule in rules) for right in rights}
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


def _any_of(value: object, accepted: set[str]) -> bool:
    return isinstance(value, list) and any(item in accepted for item in value)


def _unseen(rule: Rule, user: str) -> Finding:
    resource, _, group = rule.resource.partition(".")
    right = Right(rule.verb, resource, group, is_namespaced=bool(rule.namespace))
    return Finding(
        area=RIGHTS_AREA,
        level=Level.WARNING,
        what=f"{rule.resource} cannot be read: checks that need them are skipped",
        evidence=f"missing: {rule}",
        why="the server responded 403 Forbidden",
        command=grant([right], rule.namespace, user),
    )
