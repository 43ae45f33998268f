"""Findings of checks: level, message, evidence, why it matters, and the next command; and the user's need."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.core.errors import ManifestError, Problem
from paceline.core.humanize import pluralize
from paceline.core.redaction import redact
from paceline.k8s.check.snapshot import AddonRequest, Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import mapping, mappings
from paceline.k8s.spec.job import Target
from paceline.plan.codec import Json

_SHOWN = 3


class Level(Enum):
    OK = "ok"
    NOTE = "note"  # good to know; nothing is wrong
    WARNING = "warning"  # wrong, or not readable; the request may still work
    PROBLEM = "problem"  # the request will not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    area: str
    level: Level
    what: str
    evidence: str = ""  # which object and field
    why: str = ""
    command: str = ""
    cure: str = ""  # which fix of kube/fixes is for it, if there is one
    addon: AddonRequest | None = None  # add-on that the fix "addon" installs or updates

    def lines(self) -> list[str]:
        first = f"{self.level.value:<8} {self.area:<18} {self.what}"
        if self.level is Level.OK:
            return [redact(first)]
        more = {"evidence": self.evidence, "why": self.why, "next": self.command}
        return [redact(line) for line in (first, *(f"{'':9}{k}: {v}" for k, v in more.items() if v))]

    def to_json(self) -> dict[str, Json]:
        fields = {"what": self.what, "evidence": self.evidence, "why": self.why, "next": self.command}
        return {"area": self.area, "level": self.level.value, **{k: redact(v) for k, v in fields.items()}}


def list_names(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def device_count_finding(
    area: str, message: str, nodes: Sequence[str], *, evidence: str, why: str, command: str = ""
) -> Finding:
    """Nodes that offer another number of devices than they have; `evidence` is of the first."""
    return Finding(
        area=area,
        level=Level.WARNING,
        what=f"{message}, by {pluralize(len(nodes), 'node')}: {list_names(nodes)}",
        evidence=f"{nodes[0]}: {evidence}",
        why=why,
        command=command or f"kubectl describe node {nodes[0]}",
    )


NEED_SYNTAX = "gpus=N, nodes=N, efa, rwx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Requirements on the cluster. Empty: installed components must work, and none is required."""

    gpus: int = 0
    nodes: int = 0
    efa: bool = False
    rwx: bool = False  # a volume that several nodes can write to
    target: Target | None = None

    @property
    def says_nothing(self) -> bool:
        return self == Need()

    def broken(self, *, matters: bool) -> Level:
        """Level of an installed component that does not work. `matters`: the need includes it."""
        return Level.PROBLEM if matters or self.says_nothing else Level.WARNING

    def absent(self, *, matters: bool) -> Level:
        """Level of a component that is not installed."""
        return Level.PROBLEM if matters else Level.NOTE


def read_need(text: str, target: Target | None = None) -> Need:
    """Raises ConfigError."""
    numbers = dict[str, int]()
    flags = set[str]()
    problems = list[Problem]()
    for word in [part.strip() for part in text.split(",") if part.strip()]:
        name, _, value = word.partition("=")
        if name in ("gpus", "nodes") and value.isascii() and value.isdigit() and int(value) > 0:
            numbers[name] = int(value)
        elif word in ("efa", "rwx"):
            flags.add(word)
        else:
            problems.append(Problem(f"{word!r} is not a known requirement", f"use {NEED_SYNTAX}", "--need"))
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
    return [deployment for deployment in seen.of("deployments.apps") if is_it(deployment)]


def daemon_sets(seen: Snapshot, is_it: Callable[[Object], bool]) -> list[Object]:
    return [daemon_set for daemon_set in seen.of("daemonsets.apps") if is_it(daemon_set)]


def has_label(obj: Object, name: str, value: str) -> bool:
    return labels_of(obj).get(name) == value


def namespaced_name(obj: Object) -> str:
    return f"{mapping(obj, 'metadata').get('namespace', 'default')}/{name_of(obj)}"


def readiness(obj: Object) -> tuple[int, int]:
    """(ready, wanted) of a Deployment or a DaemonSet."""
    status = mapping(obj, "status")
    spec = mapping(obj, "spec")
    if "desiredNumberScheduled" in status:
        return _number(status, "numberReady", 0), _number(status, "desiredNumberScheduled", 0)
    return _number(status, "readyReplicas", 0), _number(spec, "replicas", 1)


def version_of(obj: Object) -> tuple[int, int] | None:
    """Version from the tag of its first image; None if the tag is no version."""
    for container in mappings(obj, "spec", "template", "spec", "containers")[:1]:
        match = _VERSION.search(str(container.get("image", "")))
        if match:
            return int(match[1]), int(match[2])
    return None


def check_operator(
    seen: Snapshot, need: Need, area: str, operators: Iterable[Object], *, name: str, matters: bool
) -> list[Finding]:
    """The kinds of an operator are served: check that a controller for them runs, too."""
    if not seen.knows("deployments.apps"):
        return []  # `rights` has the reason
    operators = list(operators)
    level = need.broken(matters=matters)
    if not operators:
        message = f"the CRDs of {name} are installed, but no operator is running"
        why = "a job of this kind would be accepted and then ignored"
        command = "kubectl get deployments -A"
        return [
            Finding(
                area=area,
                level=level,
                what=message,
                evidence=f"no Deployment of {name}",
                why=why,
                command=command,
            )
        ]
    down = [operator for operator in operators if readiness(operator)[0] < 1]
    if not down:
        return []
    ready, desired = readiness(down[0])
    space, _, its = namespaced_name(down[0]).partition("/")
    return [
        Finding(
            area=area,
            level=level,
            what=f"{name} is not running",
            evidence=f"Deployment {space}/{its}: {ready} of {desired} ready",
            why="its jobs do not start",
            command=f"kubectl -n {space} describe deployment {its}",
        )
    ]


def ok_finding(area: str, message: str) -> Finding:
    return Finding(area=area, level=Level.OK, what=message)


def _number(where: Object, name: str, default: int) -> int:
    value = where.get(name)
    return value if isinstance(value, int) else default
