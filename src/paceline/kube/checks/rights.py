"""What may this user do and see? Every right that is missing is named as the rule that would give it."""

from collections.abc import Iterator, Sequence

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Rule, Snapshot
from paceline.kube.checks.workloads import fine
from paceline.kube.reading import mappings

AREA = "rights"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    for rule in sorted(seen.refused):
        yield _unseen(rule)
    target = need.target or Target.JOB
    wanted = rights_for(target)
    missing = [right for right in wanted if seen.rights.get(_key(right)) is False]
    unknown = [right for right in wanted if _key(right) not in seen.rights]
    if missing:
        yield Finding(
            area=AREA,
            level=need.absent(matters=need.target is not None),
            what=f"this user may not run a {target.value} in namespace {seen.namespace}",
            evidence="missing: " + "; ".join(str(Rule(v, r, seen.namespace)) for v, r in missing),
            command=_grant(missing, seen.namespace),
        )
    elif unknown and need.target is not None:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"not all rights that a {target.value} needs could be seen",
            evidence="not known: " + ", ".join(_key(right) for right in unknown),
            why="the server answers such questions one by one only, and few were asked",
            command=f"kubectl -n {seen.namespace} auth can-i {unknown[0][0]} {unknown[0][1]}",
        )
    elif not unknown:
        yield fine(AREA, f"this user may run a {target.value} in namespace {seen.namespace}, and look at it")


def rights_for(target: Target) -> list[tuple[str, str]]:
    """(verb, resource): what it takes to create, follow and remove a job; the ones that matter most first."""
    return [
        ("create", target.resource),
        ("list", "pods"),
        ("get", "pods/log"),
        ("delete", target.resource),
        ("get", target.resource),
        ("watch", target.resource),
        ("watch", "pods"),
        ("list", "events"),
    ]


def rights_in(review: Object, wanted: Sequence[tuple[str, str]]) -> dict[str, bool]:
    """By the status of a SelfSubjectRulesReview. Where that is incomplete, a no is not known to be one."""
    rules = mappings(review, "resourceRules")
    answers = {_key(right): any(_gives(rule, *right) for rule in rules) for right in wanted}
    is_whole = review.get("incomplete") is not True
    return {right: may for right, may in answers.items() if may or is_whole}


def _gives(rule: Object, verb: str, resource: str) -> bool:
    plural, _, group = resource.partition(".")
    names = rule.get("resourceNames")
    part = {plural, f"*/{plural.partition('/')[2]}" if "/" in plural else "*", "*"}
    return (
        not names
        and _any_of(rule.get("verbs"), {verb, "*"})
        and _any_of(rule.get("apiGroups"), {group, "*"})
        and _any_of(rule.get("resources"), part)
    )


def _any_of(said: object, accepted: set[str]) -> bool:
    return isinstance(said, list) and any(one in accepted for one in said)


def _key(right: tuple[str, str]) -> str:
    return f"{right[0]} {right[1]}"


def _unseen(rule: Rule) -> Finding:
    return Finding(
        area=AREA,
        level=Level.WARNING,
        what=f"{rule.resource} may not be looked at: what depends on them is not checked",
        evidence=f"missing: {rule}",
        why="the server answered 403 Forbidden",
        command=_grant([(rule.verb, rule.resource)], rule.namespace),
    )


def _grant(rights: Sequence[tuple[str, str]], namespace: str) -> str:
    """A command for whoever runs the cluster; create takes all verbs for all resources, so both are lists."""
    verbs = ",".join(dict.fromkeys(verb for verb, _ in rights))
    resources = ",".join(dict.fromkeys(resource for _, resource in rights))
    role = f"role paceline -n {namespace}" if namespace else "clusterrole paceline-look"
    return f"kubectl create {role} --verb={verbs} --resource={resources}"
