"""Is an operator at work? Its Deployment or DaemonSet, found by labels and names, and its version."""

import re
from collections.abc import Callable, Iterable

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.reading import mapping, mappings

_VERSION = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+@].*)?$")


def deployments(seen: Snapshot, is_it: Callable[[Object], bool]) -> list[Object]:
    return [one for one in seen.of("deployments.apps") if is_it(one)]


def daemon_sets(seen: Snapshot, is_it: Callable[[Object], bool]) -> list[Object]:
    return [one for one in seen.of("daemonsets.apps") if is_it(one)]


def has_label(one: Object, name: str, value: str) -> bool:
    return labels_of(one).get(name) == value


def place_of(one: Object) -> str:
    return f"{mapping(one, 'metadata').get('namespace', 'default')}/{name_of(one)}"


def readiness(one: Object) -> tuple[int, int]:
    """(ready, wanted) of a Deployment or a DaemonSet."""
    status, spec = mapping(one, "status"), mapping(one, "spec")
    if "desiredNumberScheduled" in status:
        return _number(status, "numberReady", 0), _number(status, "desiredNumberScheduled", 0)
    return _number(status, "readyReplicas", 0), _number(spec, "replicas", 1)


def version_of(one: Object) -> tuple[int, int] | None:
    """By the tag of its first image; None where that says nothing."""
    for container in mappings(one, "spec", "template", "spec", "containers")[:1]:
        match = _VERSION.search(str(container.get("image", "")))
        if match:
            return int(match[1]), int(match[2])
    return None


def operator_at_work(
    seen: Snapshot, need: Need, area: str, found: Iterable[Object], *, name: str, matters: bool
) -> list[Finding]:
    """Its kinds are served; is there also somebody who acts on them?"""
    if not seen.knows("deployments.apps"):
        return []  # `rights` says why
    found = list(found)
    level = need.broken(matters=matters)
    if not found:
        what = f"the kinds of {name} are there, but nobody acts on them"
        why = "a job of this kind would be accepted and then ignored"
        command = "kubectl get deployments -A"
        return [
            Finding(
                area=area,
                level=level,
                what=what,
                evidence=f"no Deployment of {name}",
                why=why,
                command=command,
            )
        ]
    down = [one for one in found if readiness(one)[0] < 1]
    if not down:
        return []
    ready, wanted = readiness(down[0])
    space, _, its = place_of(down[0]).partition("/")
    return [
        Finding(
            area=area,
            level=level,
            what=f"{name} is not at work",
            evidence=f"Deployment {space}/{its}: {ready} of {wanted} ready",
            why="its jobs stay as they were created",
            command=f"kubectl -n {space} describe deployment {its}",
        )
    ]


def fine(area: str, what: str) -> Finding:
    return Finding(area=area, level=Level.OK, what=what)


def _number(where: Object, name: str, otherwise: int) -> int:
    value = where.get(name)
    return value if isinstance(value, int) else otherwise
