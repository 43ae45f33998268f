"""What does a job carry about itself, so that any machine can follow it? Labels and annotations.

The cluster is the only memory: who submitted it, which attempt this is, what failed before, what it looked
like when it was sent, what came with it, and who watches it until when.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.kube.diagnosis.retry import Attempts, Fingerprint, RetryPolicy
from paceline.kube.diagnosis.snapshot import Object
from paceline.kube.diagnosis.times import read_time, write_time
from paceline.kube.reading import mapping
from paceline.plan.codec import Json

PREFIX = "paceline.dev/"
RUN = f"{PREFIX}run"  # a label: whoever has it was sent by us
_SENT, _MANIFEST, _BESIDE = f"{PREFIX}sent", f"{PREFIX}manifest", f"{PREFIX}beside"
KEEPS = f"{PREFIX}keeps-checkpoints"
_ATTEMPTS, _POLICY = f"{PREFIX}attempts", f"{PREFIX}retries"
_WATCHER, _UNTIL = f"{PREFIX}watcher", f"{PREFIX}watched-until"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    manifest: Mapping[str, object]  # as it was sent first, without marks
    sent_s: float = 0.0
    attempts: Attempts = field(default_factory=Attempts)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    beside: tuple[str, ...] = ()  # made with it, to go with it: apiVersion Kind name
    keeps: bool = True  # what it writes outlives its pods, as far as is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Only one may start a job again, so whoever watches says so, and until when to believe it."""

    watcher: str
    until_s: float

    def is_on(self, now_s: float) -> bool:
        return bool(self.watcher) and now_s < self.until_s


def marked(manifest: Object, mark: Mark) -> dict[str, object]:
    """The manifest with the mark on it. What was on it already stays."""
    about = mapping(manifest, "metadata")
    labels = {**mapping(about, "labels"), RUN: str(about.get("name", ""))[:63]}
    notes = {**mapping(about, "annotations"), **_written(mark)}
    return {**manifest, "metadata": {**about, "labels": labels, "annotations": notes}}


def _written(mark: Mark) -> dict[str, str]:
    attempts, policy = mark.attempts, mark.policy
    past: dict[str, Json] = {
        "number": attempts.number,
        "infra_used": attempts.infra_used,
        "app_used": attempts.app_used,
        "failures": [[one.failure, one.rank, one.step] for one in attempts.failures],
        "excluded": list(attempts.excluded),
        "changes": list(attempts.changes),
    }
    budget: dict[str, Json] = {"infra": policy.infra, "app": policy.app, "pending_s": policy.pending_s}
    budget["first_delay_s"] = policy.first_delay_s
    budget["changes"] = [*sorted(policy.allowed_changes)]
    return {
        _SENT: write_time(mark.sent_s),
        _ATTEMPTS: _short(past),
        _POLICY: _short(budget),
        _BESIDE: _short(list(mark.beside)),
        KEEPS: "yes" if mark.keeps else "no",
        _MANIFEST: json.dumps(mark.manifest, separators=(",", ":")),
    }


def read_mark(job: Object) -> Mark | None:
    """None for a job that somebody else made, or whose marks somebody has damaged."""
    notes = mapping(job, "metadata", "annotations")
    try:
        manifest = json.loads(str(notes[_MANIFEST]))
        past, budget = json.loads(str(notes[_ATTEMPTS])), json.loads(str(notes[_POLICY]))
        beside = json.loads(str(notes[_BESIDE]))
        return Mark(
            manifest=manifest,
            sent_s=read_time(notes.get(_SENT)) or 0.0,
            attempts=_attempts(past),
            policy=RetryPolicy(
                infra=int(budget["infra"]),
                app=int(budget["app"]),
                pending_s=None if budget["pending_s"] is None else float(budget["pending_s"]),
                first_delay_s=float(budget["first_delay_s"]),
                allowed_changes=frozenset(map(str, budget["changes"])),
            ),
            beside=tuple(map(str, beside)),
            keeps=notes.get(KEEPS) != "no",
        )
    except (KeyError, ValueError, TypeError):
        return None


def _attempts(past: Mapping[str, object]) -> Attempts:
    failures = past["failures"]
    assert isinstance(failures, list), "the mark holds a list of failures"
    return Attempts(
        number=int(str(past["number"])),
        infra_used=int(str(past["infra_used"])),
        app_used=int(str(past["app_used"])),
        failures=tuple(Fingerprint(str(name), rank, step) for name, rank, step in failures),
        excluded=_texts(past["excluded"]),
        changes=_texts(past["changes"]),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, Sequence) else ()


def read_watch(job: Object) -> Watch:
    notes = mapping(job, "metadata", "annotations")
    return Watch(watcher=str(notes.get(_WATCHER, "")), until_s=read_time(notes.get(_UNTIL)) or 0.0)


def watch_patch(watch: Watch | None, version: str = "") -> dict[str, Json]:
    """A merge patch; with a version it fails if somebody was quicker. None: nobody watches any more."""
    notes: dict[str, Json] = {_WATCHER: None, _UNTIL: None}
    if watch is not None:
        notes = {_WATCHER: watch.watcher, _UNTIL: write_time(watch.until_s)}
    about: dict[str, Json] = {"annotations": notes}
    if version:
        about["resourceVersion"] = version
    return {"metadata": about}


def _short(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))
