"""Offline check of manifests: every problem at once, with file, line and field.

Shapes first; only an object whose shape is right is asked the rules of its kind. A problem is something that
a cluster refuses, or that cannot work. What a cluster accepts and the strict profile does not is advice: a
problem in that profile, a warning in the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from paceline.errors import Problem
from paceline.kube.intent import Profile
from paceline.kube.kinds import KINDS
from paceline.kube.manifest import Document, read_documents
from paceline.kube.reading import mapping
from paceline.kube.schema import Finding, Path, check
from paceline.kube.secrets import find_secrets
from paceline.kube.strict import find_in_strict

Spec = Mapping[str, object]


# Kinds that are called almost like one of ours.
_NAMESAKES = ("PersistentVolume", "RayService", "RayCronJob", "AdminNetworkPolicy")
# Versions that clusters serve beside those that are checked here, with other fields.
_ALSO_SERVED = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is in the file, and what is wrong with it."""

    objects: tuple[str, ...]  # kind/name
    problems: tuple[Problem, ...]
    others: tuple[str, ...] = ()  # of kinds that are none of ours: only looked through for secrets
    warnings: tuple[Problem, ...] = ()  # a cluster takes it
    below_strict: int = 0  # how much more the strict profile asks for


def validate(text: str, name: str, profile: Profile = Profile.STRICT) -> Checked:
    """`name` is that of the file, for messages."""
    documents, unreadable = read_documents(text, name)
    problems = list(unreadable)
    seen: set[tuple[object, ...]] = set()
    objects: list[str] = []
    others: list[str] = []
    warnings: list[Problem] = []
    below_strict = 0
    for document in documents:
        called = _called(document.value)
        if _identity(document.value) in seen:
            where = f"{name}:{document.line(())}"
            problems.append(Problem(f"{called} is there twice", "keep one, or rename one", where))
        if mapping(document.value, "metadata").get("name"):
            seen.add(_identity(document.value))
        (others if _is_other(mapping(document.value)) else objects).append(called)
        found, beyond = _all_findings(document.value)
        for finding in found:
            is_problem = not finding.is_advice or profile is Profile.STRICT
            (problems if is_problem else warnings).append(_problem(finding, document, name))
        if profile is Profile.STRICT:
            problems += [_problem(finding, document, name) for finding in beyond]
        else:
            below_strict += len(beyond)
    return Checked(
        objects=tuple(objects),
        problems=tuple(problems),
        others=tuple(others),
        warnings=tuple(warnings),
        below_strict=below_strict,
    )


def findings(value: object, profile: Profile) -> list[Finding]:
    """Those that are problems in this profile."""
    found, beyond = _all_findings(value)
    if profile is Profile.STRICT:
        return [*found, *beyond]
    return [one for one in found if not one.is_advice]


def _all_findings(value: object) -> tuple[list[Finding], list[Finding]]:
    """What is wrong or does nothing; and what the strict profile asks for on top."""
    head = mapping(value)
    kind = KINDS.get((str(head.get("apiVersion")), str(head.get("kind"))))
    found = list(find_secrets(value))
    if kind is None and _is_other(head):
        return found, []
    if kind is None:
        said = f"apiVersion {head.get('apiVersion')}, kind {head.get('kind')}"
        hint = "known are " + ", ".join(f"{kind} ({version})" for version, kind in KINDS)
        return [*found, Finding((), f"{said} is not known", hint)], []
    shape = list(check(kind.schema, value))
    found = shape + found
    if any(not finding.is_advice for finding in shape):
        return found, []
    found += kind.rules(mapping(value, *kind.inside), kind.inside)
    return found, list(find_in_strict(kind, mapping(value, "spec")))


def _is_other(head: Spec) -> bool:
    """Surely something else than what is checked here, and no misspelling of it."""
    version, kind = head.get("apiVersion"), head.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    group = version.rpartition("/")[0]
    if version in _ALSO_SERVED:
        return True
    ours = {known.rpartition("/")[0] for known, _ in KINDS}
    if group not in ours and not get_close_matches(group, ours, cutoff=0.8):
        return True  # a Job of another group is another thing
    return kind in _NAMESAKES or not get_close_matches(kind, [known for _, known in KINDS], cutoff=0.8)


def _identity(value: object) -> tuple[object, ...]:
    head, about = mapping(value), mapping(value, "metadata")
    return head.get("apiVersion"), head.get("kind"), about.get("namespace"), about.get("name")


def _called(value: object) -> str:
    about = mapping(value, "metadata")
    return f"{mapping(value).get('kind')}/{about.get('name') or about.get('generateName')}"


def _problem(finding: Finding, document: Document, name: str) -> Problem:
    where = f"{name}:{document.line(finding.path)}"
    return Problem(f"{_dotted(finding.path)}: {finding.what}", finding.hint, where)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the object"
