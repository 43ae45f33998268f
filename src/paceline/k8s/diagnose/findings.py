"""Known failures and their signs: the types in which all rows of the table are written."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from paceline.core.redaction import redact
from paceline.k8s.diagnose.pods import node_of, rank_of
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of, namespace_of
from paceline.k8s.objects import mappings, strip_ansi
from paceline.plan.codec import Json


class FailureClass(Enum):
    """Origin of a failure, and so the budget that pays for another attempt."""

    CONFIG = "config"  # the request cannot work: no budget pays, because it is not retried
    INFRA = "infra"  # the cluster's: the infra budget
    APP = "app"  # the program's own: the app budget
    WAIT = "wait"  # no action yet: the job waits for something that may become available
    FIXABLE = "fixable"  # works with one change, if that was allowed
    NONE = "none"  # no failure of the job
    UNKNOWN = "unknown"  # no rule matches: treated like a failure of the program


class Remedy(Enum):
    STOP = "stop"  # remove the job and report why
    RESUBMIT = "resubmit"  # the whole gang again
    FIX = "fix"  # the whole gang again, with one change
    WAIT = "wait"
    REPEAT = "repeat"  # the same call to the API again; the job is not touched
    RECONNECT = "reconnect"
    NOTHING = "nothing"  # report only


class Weight(IntEnum):
    """Rank of a sign: of several, the cause is the heaviest, and among equals the earliest."""

    NOTE = 0  # seen, but stops nothing
    HINT = 1  # a warning or a handled exception: counts if a program failed and no other sign explains it
    CONSEQUENCE = 2  # errors of survivors of another failure
    WAITING = 3
    MASK = 4  # true, but hides a cause if one can be seen
    CAUSE = 5


class Doubt(Enum):
    """Whether a match also decides the action. If not, the job is neither retried nor removed.

    A wrong set-up shows before the first steps, and a fault of the cluster at any time. Progress before the
    match therefore distinguishes two causes with the same message.
    """

    NONE = "none"
    UNTIL_PROGRESS = "until progress"  # they fit a wrong set-up as well, until the program has made progress
    AFTER_PROGRESS = "after progress"  # a wrong set-up, unless the program has made progress before
    ALWAYS = "always"  # they fit failures that need other actions


class Source(Enum):
    API = "api"
    CLUSTER = "cluster"  # events, conditions, states of containers
    LOG = "log"


EVERYWHERE = frozenset(Source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row of the table. `cause` and `command` have {places} for what a sign found out."""

    number: int
    name: str
    what: str
    kind: FailureClass
    cause: str
    why: str
    command: str
    remedy: Remedy
    weight: Weight = Weight.CAUSE
    patience_s: float | None = 0.0  # how long it is watched before acting; None: for as long as it takes
    observations: int = 1  # or observed this often, whichever is first
    most: int | None = None  # total attempts for this failure; None: limited by the budget
    counted: bool = True  # whether another attempt costs something
    excludes_node: bool = False  # the next attempt stays away from the node
    change: str = ""  # change that a fix makes, and the name that allows it
    doubt: Doubt = Doubt.NONE


@dataclass(frozen=True, slots=True)
class Sign:
    """A failure was recognised: by what, where and when."""

    failure: Failure
    evidence: tuple[str, ...]
    at_s: float | None = None
    pod: Object = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    weight: Weight | None = None  # other than the failure's
    seen: int = 1
    is_doubtful: bool = False  # it names the cause, and does not decide the action

    @property
    def heaviness(self) -> Weight:
        return self.failure.weight if self.weight is None else self.weight


@dataclass(frozen=True, slots=True)
class Text:
    """Words by which a failure is recognised; named groups fill the {places}."""

    failure: Failure
    words: re.Pattern[str]
    sources: frozenset[Source] = EVERYWHERE
    # A warning in a log may be harmless: it counts only at the end of a program, or without other signs.
    soft: bool = False
    weight: Weight | None = None  # other than the failure's
    doubt: Doubt = Doubt.NONE
    choose: Callable[[Mapping[str, str]], Failure] | None = None  # the row, where the values found decide it


def text(
    failure: Failure,
    argv: str,
    *sources: Source,
    soft: bool = False,
    weight: Weight | None = None,
    doubt: Doubt | None = None,
    choose: Callable[[Mapping[str, str]], Failure] | None = None,
) -> Text:
    pattern = re.compile(argv, re.IGNORECASE | re.MULTILINE)
    doubted = failure.doubt if doubt is None else doubt
    return Text(failure, pattern, frozenset(sources) or EVERYWHERE, soft, weight, doubted, choose)


_MOST_EVIDENCE = 3
_LONGEST = 300
_PLACE = re.compile(r"\{(\w+)\}|(\{\{)|(\}\})")
_NAMESPACE = re.compile(r" -n \{(?:namespace|where)\}")
# Printed where the command of a row needs a name that was not seen.
_WITHOUT_NAMES = ("kubectl get events -n {namespace} --sort-by=.lastTimestamp", "kubectl get pods -A -o wide")
# Placeholders for values that were not found.
_MISSING = {
    "pod": "(not named)",
    "namespace": "(not named)",
    "node": "(not named)",
    "container": "(not named)",
    "job": "(not named)",
    "image": "(not named)",
    "rank": "unknown",
    "detail": "no details",
    "registry": "(not named)",
    "repository": "the model",
    "resource": "this kind",
    "plural": "this kind",
    "group": "(not named)",
    "user": "the user",
    "verb": "use",
    "where": "(not named)",
    "webhook": "of an operator",
    "quota": "(not named)",
    "queue": "(not named)",
    "volume": "(not named)",
    "sort": "secret",
    "reference": "(not named)",
    "made": "(not named)",
    "maker": "secret generic",
    "limit": "its container",
    "kind": "job",
    "claim": "(not named)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    failure: Failure
    cause: str
    evidence: tuple[str, ...]
    why: str
    command: str
    at_s: float | None = None
    pod: str = ""
    node: str = ""
    rank: int | None = None
    step: int | None = None
    exit_code: int | None = None
    seen: int = 1
    after_s: float | None = None  # Retry-After of the API server
    also: tuple[str, ...] = ()  # other failures that were seen, which are not the cause
    is_doubtful: bool = False  # the evidence does not decide whether another attempt can help

    @property
    def kind(self) -> FailureClass:
        return self.failure.kind

    @property
    def fingerprint(self) -> tuple[str, int | None]:
        """Two failures with the same one, at about the same step, are the same failure."""
        return self.failure.name, self.rank

    def lines(self) -> list[str]:
        """At most eight, for a person."""
        row = f"{self.failure.name}, {self.kind.value}"
        lines = [f"{'probable cause' if self.is_doubtful else 'cause'}: {self.cause} ({row})"]
        lines += [f"evidence: {line}" for line in self.evidence]
        lines += [f"why: {self.why}", f"next: {self.command}"]
        if self.also:
            lines.append(f"also seen: {', '.join(self.also)}")
        return lines

    def to_json(self) -> dict[str, Json]:
        return {
            "failure": self.failure.name,
            "number": self.failure.number,
            "class": self.kind.value,
            "cause": self.cause,
            "evidence": list(self.evidence),
            "why": self.why,
            "next_command": self.command,
            "at_s": self.at_s,
            "pod": self.pod,
            "node": self.node,
            "rank": self.rank,
            "step": self.step,
            "also_seen": list(self.also),
            "is_doubtful": self.is_doubtful,
        }


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """The template with its {places} filled; {{ and }} are braces."""

    def fill(match: re.Match[str]) -> str:
        if match[1] is None:
            return "{" if match[2] else "}"
        return values.get(match[1]) or _MISSING.get(match[1], "")

    return tidy(_PLACE.sub(fill, template))


def command_of(failure: Failure, values: Mapping[str, str]) -> str:
    """The next command, ready to be typed: without a namespace kubectl uses the current one."""
    for template in (failure.command, *_WITHOUT_NAMES):
        known = template if values.get("namespace") or values.get("where") else _NAMESPACE.sub("", template)
        places = [match[1] for match in _PLACE.finditer(known) if match[1] is not None]
        if all(values.get(place) for place in places):
            return fill_placeholders(known, values)
    return _WITHOUT_NAMES[-1]


def evidence_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tidy(line) for line in lines if line.strip()))[:_MOST_EVIDENCE]


def tidy(text: str) -> str:
    """One line, not too long, and nothing in it that only a Secret should hold."""
    line = " ".join(redact(strip_ansi(text)).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


STEP = re.compile(r"\b(?:global_)?step[ =:#/]+(\d+)", re.IGNORECASE)
_PULLED = re.compile(r'[Ii]mage "([^"]+)"|reference "([^"]+)"|manifest for (\S+) not found')


def placeholder_values(sign: Sign, snapshot: Snapshot) -> dict[str, str]:
    pod = sign.pod
    gone = [removal.subject for removal in snapshot.removals]
    all_of_it = (*snapshot.jobs, *snapshot.pods, *gone)
    somewhere = next((namespace_of(obj) for obj in all_of_it if namespace_of(obj)), "")
    known = {
        "pod": name_of(pod),
        "namespace": namespace_of(pod) or somewhere,
        "node": node_of(pod),
        "job": next((name_of(job) for job in snapshot.jobs), ""),
        "image": _image(sign),
        "container": next(
            (str(container.get("name", "")) for container in mappings(pod, "spec", "containers")), ""
        ),
    }
    rank = sign.rank if sign.rank is not None else rank_of(pod)
    known["rank"] = "" if rank is None else str(rank)
    values = {**known, **{name: value for name, value in sign.values.items() if value}}
    return {**values, **_derived(values), "near": _near(values["image"], snapshot)}


def _image(sign: Sign) -> str:
    """The image from the pod's spec, or from the kubelet's message."""
    for line in sign.evidence:
        named = _PULLED.search(line)
        if named is not None:
            return next(group for group in named.groups() if group)
    return next(
        (str(container.get("image", "")) for container in mappings(sign.pod, "spec", "containers")), ""
    )


def _near(image: str, snapshot: Snapshot) -> str:
    """The same image by another tag, if a node or a pod has it: probably what was meant."""
    name = image.partition("@")[0].rpartition(":")[0]
    had = [
        str(container.get("image", ""))
        for pod in snapshot.pods
        for container in mappings(pod, "spec", "containers")
    ]
    for node in snapshot.nodes:
        for held in mappings(node, "status", "images"):
            names = held.get("names")
            had += [str(name) for name in names] if isinstance(names, list) else []
    similar = sorted(
        {name_had for name_had in had if name and name_had.startswith(f"{name}:") and name_had != image}
    )
    return f"; known: {', '.join(similar[:3])}" if similar else ""


def _derived(values: dict[str, str]) -> dict[str, str]:
    derived: dict[str, str] = {}
    registry, slash, _ = values["image"].partition("/")
    derived["registry"] = registry if slash and ("." in registry or ":" in registry) else "docker.io"
    if "plural" in values:
        group = values.get("group", "")
        derived["resource"] = f"{values['plural']}.{group}" if group else values["plural"]
    elif "group" in values and values.get("resource", "").islower() and "." not in values["resource"]:
        derived["resource"] = f"{values['resource']}.{values['group']}"
    if "plural" in values or "verb" in values:
        derived["subject"] = _subject(values.get("user", ""))
    if "reference" in values:
        derived["made"] = values["reference"].rpartition("/")[2]
        derived["sort"] = values.get("sort", "secret").lower()
        derived["maker"] = "secret generic" if derived["sort"] == "secret" else derived["sort"]
    if "where" not in values and values.get("namespace"):
        derived["where"] = values["namespace"]
    return derived


def _subject(user: str) -> str:
    """Flags of `kubectl create rolebinding` for the user that the API server named."""
    name = user.removeprefix('User "').removesuffix('"')
    account = re.fullmatch(r"system:serviceaccount:([^:]+:[^:]+)", name)
    if account is not None:
        return f"--serviceaccount={account[1]}"
    known = shlex.quote(name) if name else '"$(kubectl auth whoami -o jsonpath={.status.userInfo.username})"'
    return f"--user={known}"


def last_step(snapshot: Snapshot, pod: Object) -> int | None:
    """Progress: the last step in the pod's log, or in any pod's log if its own has none."""
    pod_logs = [log for log in snapshot.logs if log.pod == name_of(pod)]
    for logs in (pod_logs, snapshot.logs):
        steps = [int(number) for log in logs for number in STEP.findall(log.text)]
        if steps:
            return steps[-1]
    return None
