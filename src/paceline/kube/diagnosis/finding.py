"""What is told about a failure? Cause, evidence, why and next command, with what was found filled in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.kube.diagnosis.failure import Failure, FailureClass
from paceline.kube.secrets import masked
from paceline.plan.codec import Json

_MOST_EVIDENCE = 3
_LONGEST = 300
_PLACE = re.compile(r"\{(\w+)\}|(\{\{)|(\}\})")
# What is written where nothing was found: commands keep a place to fill in, sentences stay readable.
_MISSING = {
    "pod": "POD",
    "namespace": "NAMESPACE",
    "node": "NODE",
    "container": "CONTAINER",
    "job": "JOB",
    "image": "IMAGE",
    "rank": "unknown",
    "said": "it does not say more",
    "registry": "REGISTRY",
    "repository": "the model",
    "resource": "RESOURCE",
    "plural": "RESOURCE",
    "group": "GROUP",
    "user": "the user",
    "verb": "VERB",
    "where": "NAMESPACE",
    "webhook": "of an operator",
    "quota": "QUOTA",
    "queue": "QUEUE",
    "volume": "VOLUME",
    "sort": "secret",
    "reference": "NAME",
    "made": "NAME",
    "maker": "secret generic",
    "limit": "LIMIT",
    "kind": "KIND",
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
        told = [f"cause: {self.cause} ({row})"]
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
        }


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its {places} filled; {{ and }} are braces."""

    def fill(found: re.Match[str]) -> str:
        if found[1] is None:
            return "{" if found[2] else "}"
        return values.get(found[1]) or _MISSING.get(found[1], "")

    return tidy(_PLACE.sub(fill, template))


def evidence_of(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tidy(line) for line in lines if line.strip()))[:_MOST_EVIDENCE]


def tidy(text: str) -> str:
    """One line, not too long, and nothing in it that only a Secret should hold."""
    line = " ".join(masked(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
