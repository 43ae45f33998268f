"""What is reported of a failure: cause, evidence, why and next command, with what was found filled in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.kube.diagnosis.failure import Failure, FailureClass
from paceline.kube.words import without_escapes
from paceline.plan.codec import Json
from paceline.redaction import redact

_MOST_EVIDENCE = 3
_LONGEST = 300
_PLACE = re.compile(r"\{(\w+)\}|(\{\{)|(\}\})")
_NAMESPACE = re.compile(r" -n \{(?:namespace|where)\}")
# Printed where the command of a row needs a name that was not seen.
_WITHOUT_NAMES = ("kubectl get events -n {namespace} --sort-by=.lastTimestamp", "kubectl get pods -A -o wide")
# What a sentence says where nothing was found.
_MISSING = {
    "pod": "(not named)",
    "namespace": "(not named)",
    "node": "(not named)",
    "container": "(not named)",
    "job": "(not named)",
    "image": "(not named)",
    "rank": "unknown",
    "said": "it does not say more",
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
    after_s: float | None = None  # the API's own wish when to come back
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
        told = [f"{'probable cause' if self.is_doubtful else 'cause'}: {self.cause} ({row})"]
        told += [f"evidence: {line}" for line in self.evidence]
        told += [f"why: {self.why}", f"next: {self.command}"]
        if self.also:
            told.append(f"also seen: {', '.join(self.also)}")
        return told

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


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its {places} filled; {{ and }} are braces."""

    def fill(found: re.Match[str]) -> str:
        if found[1] is None:
            return "{" if found[2] else "}"
        return values.get(found[1]) or _MISSING.get(found[1], "")

    return tidy(_PLACE.sub(fill, template))


def command_of(failure: Failure, values: Mapping[str, str]) -> str:
    """The next command, ready to be typed: without a namespace kubectl uses the current one."""
    for template in (failure.command, *_WITHOUT_NAMES):
        known = template if values.get("namespace") or values.get("where") else _NAMESPACE.sub("", template)
        places = [found[1] for found in _PLACE.finditer(known) if found[1] is not None]
        if all(values.get(place) for place in places):
            return filled(known, values)
    return _WITHOUT_NAMES[-1]


def evidence_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tidy(line) for line in lines if line.strip()))[:_MOST_EVIDENCE]


def tidy(text: str) -> str:
    """One line, not too long, and nothing in it that only a Secret should hold."""
    line = " ".join(redact(without_escapes(text)).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
