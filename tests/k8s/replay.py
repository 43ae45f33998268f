"""Replays what a cluster did, on a virtual clock: cassettes written by hand, and recorded clusters.

A cassette is judged look by look (`play`). A recording is served through the API port as it was at the
virtual time (`RecordedApi`), and the real `Follower` follows, judges, starts again and removes the job
(`follow`). Time passes only while the follower waits: a recording of minutes is played in milliseconds.
"""

import json
import math
import queue
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.fixtures.kubernetes.recordings import Recording, WatchEvent

from paceline.k8s.client.api import (
    Change,
    ConflictError,
    ExecResult,
    ForbiddenError,
    Listing,
    Manifest,
    NotThereError,
    RefusedError,
)
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.findings import Finding
from paceline.k8s.diagnose.pods import has_running_init, ready_since
from paceline.k8s.diagnose.recording import read_record
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import Snapshot, name_of
from paceline.k8s.diagnose.verdict import Verdict, WatchState, judge
from paceline.k8s.kinds import JOB_KINDS, Kind
from paceline.k8s.objects import mapping, read_time, write_time
from paceline.k8s.submit.follow import Follower, FollowIntervals, FollowOutput
from paceline.k8s.submit.follow_rules import End
from paceline.k8s.submit.job_state import JobAnnotations, annotate, manifests_keep_checkpoints
from paceline.k8s.submit.log_streams import Line

FOLDER = Path(__file__).parent / "cassettes"
CASSETTES = sorted(FOLDER.glob("*.json"))


# Cassettes.


@dataclass(frozen=True)
class Look:
    at_s: float
    verdict: Verdict
    finding: Finding | None


def read(path: Path) -> dict[str, Any]:
    cassette: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return cassette


def frames(cassette: dict[str, Any]) -> list[Snapshot]:
    made: list[Snapshot] = []
    for frame in cassette["frames"]:
        at_s = read_time(frame["at"])
        assert at_s is not None
        made.append(replace(made[-1], at_s=at_s) if frame.get("again") else read_record(frame, "frame"))
    return made


def play(cassette: dict[str, Any]) -> list[Look]:
    text = dict(cassette.get("policy", {}))
    policy = RetryPolicy(allowed_changes=frozenset(text.pop("allowed_changes", [])), **text)
    past, looks = WatchState(), []
    for snapshot in frames(cassette):
        checkpoint = cassette.get("checkpoint")
        verdict, finding, past = judge(snapshot, past, policy, checkpoint=checkpoint)
        looks.append(Look(snapshot.at_s, verdict, finding))
    return looks


# Recordings.


@dataclass(frozen=True, slots=True)
class RecordedLog:
    pod_uid: str
    container: str
    restart: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """A recording in memory. `t` is in seconds since the first object was sent, as in the timeline."""

    name: str
    namespace: str
    start_unix_s: float
    events: tuple[WatchEvent, ...]
    logs: tuple[RecordedLog, ...]
    cluster_objects: tuple[tuple[float, tuple[Manifest, ...]], ...]  # nodes and quotas, from snapshots

    @property
    def end_t(self) -> float:
        return max((event.t for event in self.events), default=0.0)

    @property
    def job_name(self) -> str:
        return name_of(self._jobs()[0].object)

    def submitted_t(self) -> float:
        """When the job that is followed was sent: the last one of its name."""
        kind = self._jobs()[0].kind
        return [event.t for event in self._jobs() if event.kind == kind][-1]

    def _jobs(self) -> list[WatchEvent]:
        names = [kind.name for kind in JOB_KINDS]
        return [
            event
            for event in self.events
            if event.type == "ADDED"
            and event.kind in names
            and not event.object["metadata"].get("ownerReferences")
        ]

    def stretched(self, at_t: float, by_s: float) -> "Tape":
        """The same, but for `by_s` seconds after `at_t` nothing happens."""
        cut_s = self.start_unix_s + at_t
        old_stamps: set[tuple[str, str]] = set()
        made = []
        for event in self.events:
            key = f"{event.kind} {event.object['metadata'].get('uid')}"
            if event.t <= at_t:
                old_stamps |= {(key, stamp) for stamp in _stamps(event.object)}
                made.append(event)
                continue
            later = {
                stamp: _later(stamp, by_s)
                for stamp in _stamps(event.object)
                if (read_time(stamp) or 0.0) >= math.floor(cut_s) and (key, stamp) not in old_stamps
            }
            made.append(replace(event, t=event.t + by_s, object=_with_stamps(event.object, later)))
        logs = tuple(
            replace(log, lines=tuple(_later_line(line, cut_s, by_s) for line in log.lines))
            for log in self.logs
        )
        beside = tuple((t if t <= at_t else t + by_s, objects) for t, objects in self.cluster_objects)
        return replace(self, events=tuple(made), logs=logs, cluster_objects=beside)


def tape(recording: Recording) -> Tape:
    index = recording.log_index() if (recording.folder / "logs" / "index.json").exists() else []
    texts = recording.logs()
    start_unix_s = read_time(recording.about["submitted_at"])
    assert start_unix_s is not None, "every recording says when it began"
    beside = [
        (t, tuple(item for item in listed["items"] if item["kind"] in ("Node", "ResourceQuota")))
        for t, listed in recording.snapshots().values()
    ]
    return Tape(
        name=recording.name,
        namespace=recording.about["namespace"],
        start_unix_s=start_unix_s,
        events=tuple(
            event for event in recording.timeline() if "." not in event.kind and event.type != "ERROR"
        ),
        logs=tuple(
            RecordedLog(
                item["uid"], item["container"], item["restartCount"], tuple(texts[item["file"]].splitlines())
            )
            for item in index
            if item["file"] in texts
        ),
        cluster_objects=tuple(beside),
    )


_QUIET_S = 15.0  # between looks behind the last event


class Wakes(Enum):
    """When the follower looks."""

    PACED = "at its own pace"
    BETWEEN = "at every event and between two"


@dataclass(slots=True)
class VirtualClock:
    """Advances only while the follower waits."""

    tape: Tape
    t: float
    wakes: Wakes
    moments: list[float] = field(init=False)

    def __post_init__(self) -> None:
        times = sorted({event.t for event in self.tape.events})
        between = [(a + b) / 2 for a, b in pairwise(times)]
        self.moments = [] if self.wakes is Wakes.PACED else sorted([*times, *between])

    def unix_s(self) -> float:
        return self.tape.start_unix_s + self.t

    def monotonic_s(self) -> float:
        return self.t

    def receive(self, items: "queue.Queue[Line | None]", timeout_s: float) -> Line | None:
        until = self.t + timeout_s
        if self.t > self.tape.end_t + timeout_s:
            until = self.t + max(timeout_s, _QUIET_S)
        self.t = min([until, *(moment for moment in self.moments if self.t < moment)])
        raise queue.Empty


class SentAgainError(Exception):
    """The next attempt was created: the recording ends here."""


@dataclass(slots=True)
class RecordedApi:
    """The API port, as the recorded cluster would have answered at the clock's time.

    The job carries the mark of a job that was submitted by paceline. Watches and followed logs are forbidden,
    so no thread of the follower depends on the real time.
    """

    tape: Tape
    clock: VirtualClock
    policy: RetryPolicy
    server: str = "https://recorded.invalid"
    deleted: list[tuple[float, str, str]] = field(default_factory=list)  # t, kind, name
    created: list[Manifest] = field(default_factory=list)
    _now: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    _next: int = 0
    _made: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    _notes: dict[str, dict[str, Any]] = field(default_factory=dict)  # annotations, by uid
    _gone: set[str] = field(default_factory=set)  # uids that the follower has removed
    _lock: threading.RLock = field(default_factory=threading.RLock)  # threads of the follower read, too

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        for manifest in self._all(kind):
            if name_of(manifest) == name:
                return manifest
        raise NotThereError(f"{kind.plural} {name} not found", "", status=404)

    def about(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        return {"metadata": self.get(kind, name, namespace)["metadata"]}

    def find(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        return Listing(tuple(self._all(kind)), "1")

    def watch(
        self, kind: Kind, namespace: str | None, *, since: str, seconds: float = 300
    ) -> Iterator[Change]:
        raise ForbiddenError("watches are not recorded", "", status=403)

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        self.created.append(manifest)
        if manifest["kind"] in [kind.name for kind in JOB_KINDS]:
            raise SentAgainError
        self._made[str(manifest["kind"]), name_of(manifest)] = manifest
        return manifest

    def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Manifest, *, dry_run: bool = False
    ) -> Manifest:
        result = self.get(kind, name, namespace)
        notes = self._notes.setdefault(_uid(result), {})
        notes |= mapping(change, "metadata", "annotations")
        return self.get(kind, name, namespace)

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        if self._made.pop((kind.name, name), None) is not None:
            return
        for manifest in self._all(kind):
            if name_of(manifest) == name:
                about = mapping(manifest, "metadata")
                if version not in ("", about["resourceVersion"]) or uid not in ("", about["uid"]):
                    raise ConflictError("the object has been modified", "", status=409)
                self.deleted.append((self.clock.t, kind.name, name))
                self._remove(_uid(manifest))

    def logs(
        self,
        pod: str,
        namespace: str,
        container: str,
        *,
        since: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> Iterator[str]:
        if follow:
            raise ForbiddenError("followed logs are not recorded", "", status=403)
        for manifest in self._objects("Pod"):
            if name_of(manifest) == pod:
                return iter(self._lines(manifest, container, previous=previous)[-(tail or 0) :])
        raise NotThereError(f"pods {pod} not found", "", status=404)

    def run(
        self, pod: str, namespace: str, container: str, command: list[str], *, stdin: bytes = b""
    ) -> ExecResult:
        raise ForbiddenError("commands are not recorded", "", status=403)

    def may(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        return True

    def serves(self, kind: Kind) -> bool:
        return True

    def _all(self, kind: Kind) -> list[Manifest]:
        if kind.name in ("Node", "ResourceQuota"):
            taken = [objects for t, objects in self.tape.cluster_objects if t <= self.clock.t]
            newest = taken[-1:] or [objects for _, objects in self.tape.cluster_objects[:1]]
            return [manifest for objects in newest for manifest in objects if manifest["kind"] == kind.name]
        made = [item for (its, _), item in self._made.items() if its == kind.name]
        return [*made, *self._objects(kind.name)]

    def _objects(self, kind: str) -> list[Manifest]:
        with self._lock:
            return self._objects_now(kind)

    def _objects_now(self, kind: str) -> list[Manifest]:
        while self._next < len(self.tape.events) and self.tape.events[self._next].t <= self.clock.t:
            event = self.tape.events[self._next]
            key = (event.kind, event.object["metadata"]["name"])
            if event.type == "DELETED":
                self._now.pop(key, None)
            else:
                self._now[key] = dict(event.object)
            self._next += 1
        return [
            self._marked(item)
            for (its, _), item in self._now.items()
            if its == kind and _uid(item) not in self._gone
        ]

    def _marked(self, item: Manifest) -> Manifest:
        if name_of(item) != self.tape.job_name or mapping(item, "metadata").get("ownerReferences"):
            return item
        if item["kind"] not in [kind.name for kind in JOB_KINDS]:
            return item
        manifest = {name: item[name] for name in ("apiVersion", "kind", "spec")}
        about = {"name": self.tape.job_name, "namespace": self.tape.namespace}
        mark = JobAnnotations(
            manifest={**manifest, "metadata": about},
            policy=self.policy,
            keeps=manifests_keep_checkpoints([item]),
        )
        made: Any = annotate(item, mark)
        made["metadata"]["annotations"] |= self._notes.get(_uid(item), {})
        result: Manifest = made
        return result

    def _remove(self, uid: str) -> None:
        """With what it owns."""
        self._gone.add(uid)
        for entry in list(self._now.values()):
            about: Any = entry["metadata"]
            owners = [owner["uid"] for owner in about.get("ownerReferences", [])]
            if uid in owners and _uid(entry) not in self._gone:
                self._remove(_uid(entry))

    def _lines(self, pod: Manifest, container: str, *, previous: bool) -> list[str]:
        status: Any = pod.get("status", {})
        states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        its = next((state for state in states if state["name"] == container), None)
        if its is None or ("waiting" in its.get("state", {}) and not its.get("lastState")):
            raise RefusedError(f"container {container} is waiting to start", "", status=400)
        restart = its["restartCount"] - (1 if previous else 0)
        for log in self.tape.logs:
            if (log.pod_uid, log.container, log.restart) == (_uid(pod), container, restart):
                now_s = self.clock.unix_s() + 1  # the recording's start is rounded down to a second
                return [line for line in log.lines if (read_time(line.split(" ")[0]) or 0.0) <= now_s]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the follower did and said."""

    end: End | None
    removed_t: float | None  # and not sent again
    sent_again_t: float | None
    said: tuple[str, ...]
    told: tuple[Finding, ...]

    @property
    def states(self) -> list[str]:
        """In the order in which they were shown."""
        return [text.removeprefix("the job is ") for text in self.said if text.startswith("the job is ")]


def follow(
    recorded: Tape,
    *,
    wakes: Wakes = Wakes.PACED,
    policy: RetryPolicy | None = None,
    after_s: float = 900.0,
    look_s: float = 5.0,
    evidence: Path | None = None,
) -> Played:
    """Follows the job of a recording from its submission until `after_s` after the last event."""
    clock = VirtualClock(recorded, recorded.submitted_t(), wakes)
    api = RecordedApi(recorded, clock, policy or RetryPolicy())
    messages: list[str] = []
    reported: list[Finding] = []
    follower = Follower(
        cluster=ClusterConnection(api, recorded.namespace),  # type: ignore[arg-type]  # the port is what a follower uses
        name=recorded.job_name,
        shown=FollowOutput(line=lambda _line: None, say=messages.append, tell=reported.append),
        pace=FollowIntervals(look_s=look_s, logs_s=0.0),
        clock=clock,
        evidence=evidence,
    )
    end: End | None = None
    sent_again_t: float | None = None
    try:
        end = follower.follow(recorded.end_t - clock.t + after_s).end
    except SentAgainError:
        sent_again_t = clock.t
    kinds = [kind.name for kind in JOB_KINDS]
    removed = [t for t, kind, name in api.deleted if kind in kinds and name == recorded.job_name]
    return Played(
        end=end,
        removed_t=removed[0] if removed and sent_again_t is None else None,
        sent_again_t=sent_again_t,
        said=tuple(messages),
        told=tuple(reported),
    )


def starting_moments(recorded: Tape) -> list[float]:
    """Moments, one per change, at which a pod is not ready that others may wait for."""
    results: list[float] = []
    pods: dict[str, Mapping[str, Any]] = {}
    for event in recorded.events:
        if event.kind == "Pod":
            pods.pop(event.object["metadata"]["uid"], None)
            if event.type != "DELETED":
                pods[event.object["metadata"]["uid"]] = event.object
        there = [pod for pod in pods.values() if not _is_leaving(pod)]
        is_pending = any(pod.get("status", {}).get("phase") == "Pending" for pod in there)
        is_starting = any(not has_running_init(pod) and ready_since(pod) is None for pod in there)
        if event.t >= recorded.submitted_t() and is_pending and is_starting:
            results.append(event.t)
    return results


def _is_leaving(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _uid(values: Mapping[str, Any]) -> str:
    return str(values["metadata"].get("uid", ""))


_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def _stamps(value: object) -> set[str]:
    return set(_STAMP.findall(json.dumps(value)))


def _with_stamps(value: Mapping[str, Any], later: Mapping[str, str]) -> Mapping[str, Any]:
    made: Mapping[str, Any] = json.loads(
        _STAMP.sub(lambda result: later.get(result[0], result[0]), json.dumps(value))
    )
    return made


def _later(stamp: str, by_s: float) -> str:
    at_s = read_time(stamp)
    assert at_s is not None, "it was found as a time"
    return write_time(at_s + by_s)


def _later_line(line: str, cut_s: float, by_s: float) -> str:
    stamp, _, text = line.partition(" ")
    at_s = read_time(stamp)
    return line if at_s is None or at_s < cut_s else f"{_later(stamp, by_s)} {text}"
