"""Rights of the user who asks, compared with the list in kube/rights.py.

A missing right is named as the rule that gives it, with the Role and the binding.
"""

from collections.abc import Iterable, Iterator, Sequence

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Rule, Snapshot
from paceline.kube.checks.workloads import fine
from paceline.kube.reading import mappings
from paceline.kube.rights import Right, grant, rendered_rights_for

AREA = "rights"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    for rule in sorted(seen.refused):
        yield _unseen(rule, seen.user)
    target = need.target or Target.JOB
    wanted = rendered_rights_for(target.resource)
    required = [right for right in wanted if right.is_required]
    missing = [right for right in required if seen.rights.get(right.key) is False]
    unknown = [right for right in required if right.key not in seen.rights]
    if missing:
        yield Finding(
            area=AREA,
            level=need.absent(matters=need.target is not None),
            what=f"this user may not run a {target.value} in namespace {seen.namespace}",
            evidence="missing: " + "; ".join(str(Rule(one.verb, one.of, seen.namespace)) for one in missing),
            command=grant(missing, seen.namespace, seen.user),
        )
    elif unknown and need.target is not None:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"not all rights that a {target.value} needs could be seen",
            evidence="not known: " + ", ".join(right.key for right in unknown),
            why="the server answers such questions one by one only, and few were asked",
            command=f"kubectl -n {seen.namespace} auth can-i {unknown[0].key}",
        )
    elif not unknown:
        yield fine(AREA, f"this user may run a {target.value} in namespace {seen.namespace}, and look at it")
    narrowed = [right for right in wanted if not right.is_required and seen.rights.get(right.key) is False]
    if narrowed and not missing and need.target is not None:
        yield _narrowed(narrowed, seen)


def _narrowed(missing: Sequence[Right], seen: Snapshot) -> Finding:
    uses = dict.fromkeys(right.why for right in missing)
    return Finding(
        area=AREA,
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
        area=AREA,
        level=Level.WARNING,
        what=f"{rule.resource} may not be looked at: what depends on them is not checked",
        evidence=f"missing: {rule}",
        why="the server answered 403 Forbidden",
        command=grant([right], rule.namespace, user),
    )
