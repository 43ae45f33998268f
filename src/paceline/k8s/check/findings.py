"""Findings of checks: level, message, evidence, why it matters, and the next command; and the user's need."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.core.errors import ManifestError, Problem
from paceline.core.redaction import redact
from paceline.k8s.check.snapshot import AddonRequest, Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import mapping, mappings
from paceline.k8s.spec.job import Target
from paceline.plan.codec import Json

_SHOWN = 3


class Level(Enum):
    OK = "ok"
    NOTE = "note"  # good to know; nothing is wrong
    WARNING = "warning"  # wrong, or not to be seen; what was asked for may still work
    PROBLEM = "problem"  # what was asked for will not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    area: str
    level: Level
    what: str
    evidence: str = ""  # which object and field
    why: str = ""
    command: str = ""
    cure: str = ""  # which fix of kube/fixes is for it, if there is one
    addon: AddonRequest | None = None  # what the cure "addon" installs or updates

    def lines(self) -> list[str]:
        first = f"{self.level.value:<8} {self.area:<18} {self.what}"
        if self.level is Level.OK:
            return [redact(first)]
        more = {"evidence": self.evidence, "why": self.why, "next": self.command}
        return [redact(line) for line in (first, *(f"{'':9}{k}: {v}" for k, v in more.items() if v))]

    def to_json(self) -> dict[str, Json]:
        said = {"what": self.what, "evidence": self.evidence, "why": self.why, "next": self.command}
        return {"area": self.area, "level": self.level.value, **{k: redact(v) for k, v in said.items()}}


def list_names(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def pluralize(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def device_count_finding(
    area: str, what: str, nodes: Sequence[str], *, evidence: str, why: str, command: str = ""
) -> Finding:
    """Nodes that offer another number of devices than they have; `evidence` is of the first."""
    return Finding(
        area=area,
        level=Level.WARNING,
        what=f"{what}, by {pluralize(len(nodes), 'node')}: {list_names(nodes)}",
        evidence=f"{nodes[0]}: {evidence}",
        why=why,
        command=command or f"kubectl describe node {nodes[0]}",
    )


NEED_SYNTAX = "gpus=N, nodes=N, efa, rwx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Nothing said: whatever is installed is expected to work, and nothing has to be installed."""

    gpus: int = 0
    nodes: int = 0
    efa: bool = False
    rwx: bool = False  # a volume that several nodes can write to
    target: Target | None = None

    @property
    def says_nothing(self) -> bool:
        return self == Need()

    def broken(self, *, matters: bool) -> Level:
        """How bad is it that something installed does not work? `matters`: what was asked for needs it."""
        return Level.PROBLEM if matters or self.says_nothing else Level.WARNING

    def absent(self, *, matters: bool) -> Level:
        """How bad is it that something is not installed?"""
        return Level.PROBLEM if matters else Level.NOTE


def read_need(text: str, target: Target | None = None) -> Need:
    """Raises ConfigError."""
    numbers, flags, problems = dict[str, int](), set[str](), list[Problem]()
    for word in [part.strip() for part in text.split(",") if part.strip()]:
        name, _, value = word.partition("=")
        if name in ("gpus", "nodes") and value.isascii() and value.isdigit() and int(value) > 0:
            numbers[name] = int(value)
        elif word in ("efa", "rwx"):
            flags.add(word)
        else:
            problems.append(Problem(f"nobody knows the need {word!r}", f"needs are {NEED_SYNTAX}", "--need"))
    if problems:
        raise ManifestError(problems)
    return Need(
        gpus=numbers.get("gpus", 0),
        nodes=numbers.get("nodes", 0),
        efa="efa" in flags,
        rwx="rwx" in flags,
        target=target,
    )


_VERSION = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+@].*)?$")


def deployments(seen: Snapshot, is_it: Callable[[Object], bool]) -> list[Object]:
    return [one for one in seen.of("deployments.apps") if is_it(one)]


def daemon_sets(seen: Snapshot, is_it: Callable[[Object], bool]) -> list[Object]:
    return [one for one in seen.of("daemonsets.apps") if is_it(one)]


def has_label(one: Object, name: str, value: str) -> bool:
    return labels_of(one).get(name) == value


def namespaced_name(one: Object) -> str:
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


def check_operator(
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
    space, _, its = namespaced_name(down[0]).partition("/")
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


def ok_finding(area: str, what: str) -> Finding:
    return Finding(area=area, level=Level.OK, what=what)


def _number(where: Object, name: str, otherwise: int) -> int:
    value = where.get(name)
    return value if isinstance(value, int) else otherwise
