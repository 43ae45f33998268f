"""Would a cluster take these manifests, and do what they say? Offline, strictly, every problem at once.

Shapes first; only an object whose shape is right is asked the rules of its kind.
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
from paceline.kube.secrets import find_secrets, hidden
from paceline.kube.strict import find_in_strict

Spec = Mapping[str, object]


# Groups whose every kind should be one of ours, and kinds that are called almost like one of ours.
_OWN = ("ray.io",)
_NAMESAKES = ("PersistentVolume",)


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
    found += kind.rules(mapping(value, *kind.inside), kind.inside)
    if profile is Profile.STRICT:
        found += find_in_strict(kind, mapping(value, "spec"))
    return found


def _is_other(head: Spec) -> bool:
    """Surely something else than what is checked here, and no misspelling of it."""
    version, kind = head.get("apiVersion"), head.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    group = version.rpartition("/")[0]
    if group in _OWN:
        return False
    ours = {known.rpartition("/")[0] for known, _ in KINDS}
    if group not in ours and not get_close_matches(group, ours, cutoff=0.8):
        return True  # a Job of another group is another thing
    return kind in _NAMESAKES or not get_close_matches(kind, [known for _, known in KINDS], cutoff=0.8)


def _called(value: object) -> str:
    return f"{mapping(value).get('kind')}/{mapping(value, 'metadata').get('name')}"


def _problem(finding: Finding, document: Document, name: str) -> Problem:
    where = f"{name}:{document.line(finding.path)}"
    return Problem(hidden(f"{_dotted(finding.path)}: {finding.what}"), hidden(finding.hint), where)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the object"
