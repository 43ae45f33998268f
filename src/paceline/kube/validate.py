"""Would a cluster take these manifests, and do what they say? Offline, strictly, every problem at once.

Shapes first; only an object whose shape is right is asked the rules of its kind.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from paceline.errors import Problem
from paceline.kube import admission_ray as ray
from paceline.kube.intent import Profile
from paceline.kube.manifest import Document, read_documents
from paceline.kube.reading import mapping, mappings
from paceline.kube.restricted import find_privileges, find_privileges_of
from paceline.kube.schema import Fields, Finding, Path, check
from paceline.kube.schema_ray import RAYCLUSTER, RAYJOB
from paceline.kube.schema_service import SERVICE
from paceline.kube.secrets import find_secrets

Spec = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    schema: Fields
    rules: Callable[[Spec, Path], Iterator[Finding]]
    pods: Callable[[Spec, Path], Iterator[tuple[Spec, Path]]] | None = None


KINDS = {
    ("ray.io/v1", "RayCluster"): Kind(RAYCLUSTER, ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1", "RayJob"): Kind(RAYJOB, ray.find_in_job, ray.pods_of_job),
    ("v1", "Service"): Kind(SERVICE, ray.find_in_service),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is in the file, and what is wrong with it."""

    objects: tuple[str, ...]  # kind/name
    problems: tuple[Problem, ...]
    others: tuple[str, ...] = ()  # of kinds that are none of ours: only looked through for secrets


def validate(text: str, name: str, profile: Profile = Profile.STRICT) -> Checked:
    """`name` is that of the file, for messages."""
    documents, found = read_documents(text, name)
    problems = list(found)
    objects: list[str] = []
    others: list[str] = []
    for document in documents:
        called = _called(document.value)
        if called in objects or called in others:
            where = f"{name}:{document.line(())}"
            problems.append(Problem(f"{called} is there twice", "keep one, or rename one", where))
        (others if _is_other(mapping(document.value)) else objects).append(called)
        for finding in findings(document.value, profile):
            problems.append(_problem(finding, document, name))
    return Checked(objects=tuple(objects), problems=tuple(problems), others=tuple(others))


def findings(value: object, profile: Profile) -> list[Finding]:
    head = mapping(value)
    kind = KINDS.get((str(head.get("apiVersion")), str(head.get("kind"))))
    found = list(find_secrets(value))
    if kind is None and _is_other(head):
        return found
    if kind is None:
        said = f"apiVersion {head.get('apiVersion')}, kind {head.get('kind')}"
        hint = "known are " + ", ".join(f"{kind} ({version})" for version, kind in KINDS)
        return [*found, Finding((), f"{said} is not known", hint)]
    shape = list(check(kind.schema, value))
    if shape:
        return shape + found
    spec = mapping(value, "spec")
    found += kind.rules(spec, ("spec",))
    if profile is Profile.STRICT:
        found += _strict(kind, spec)
    return found


def _is_other(head: Spec) -> bool:
    """Surely something else than what is checked here, and no misspelling of it."""
    version, kind = head.get("apiVersion"), head.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or version.startswith("ray.io/"):
        return False
    return not get_close_matches(kind, [known for _, known in KINDS], cutoff=0.8)


def _strict(kind: Kind, spec: Spec) -> Iterator[Finding]:
    if kind.pods is None:
        return
    for pod, path in kind.pods(spec, ("spec",)):
        yield from find_privileges(pod, path)
        yield from _bounded(pod, path)
    inside = "rayClusterSpec" in spec
    cluster = mapping(spec, "rayClusterSpec") if inside else spec
    if "headGroupSpec" not in cluster:
        return
    path = ("spec", "rayClusterSpec") if inside else ("spec",)
    if mapping(cluster, "authOptions").get("mode") != "token":
        what = "whoever reaches the dashboard may run code there"
        yield Finding((*path, "authOptions"), what, "write authOptions: {mode: token}; {} is not enough")
    if cluster.get("enableInTreeAutoscaling"):
        context = mapping(cluster, "autoscalerOptions", "securityContext")
        yield from find_privileges_of(context, (*path, "autoscalerOptions", "securityContext"))
        options = mapping(cluster, "autoscalerOptions", "resources")
        yield from _has_limits(options, (*path, "autoscalerOptions", "resources"))


def _bounded(pod: Spec, path: Path) -> Iterator[Finding]:
    """Ray reads the limits to know what it has; without them it takes the whole node's."""
    for number, container in enumerate(mappings(pod, "containers")):
        yield from _has_limits(mapping(container, "resources"), (*path, "containers", number, "resources"))


def _has_limits(resources: Spec, path: Path) -> Iterator[Finding]:
    for kind in ("requests", "limits"):
        for name in sorted({"cpu", "memory"} - mapping(resources, kind).keys()):
            yield Finding(path, f"{kind} of {name} is missing", f"add it to {kind}")


def _called(value: object) -> str:
    return f"{mapping(value).get('kind')}/{mapping(value, 'metadata').get('name')}"


def _problem(finding: Finding, document: Document, name: str) -> Problem:
    where = f"{name}:{document.line(finding.path)}"
    return Problem(f"{_dotted(finding.path)}: {finding.what}", finding.hint, where)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the object"
