"""Follower of a job, to its end or to a time limit: observe, decide, carry out.

Only one watcher may start a job again. The right is a lease: an annotation with the watcher's id and an
expiry date, which its holder renews. A patch carries the resourceVersion, so of two concurrent requests one
fails. Other watchers only show what happens.
"""

import queue
import random
import shlex
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import NotReadyError, PacelineError
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.explain import save_evidence
from paceline.k8s.diagnose.findings import Finding
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import Removal, Snapshot, uid_of, with_gone_pods
from paceline.k8s.objects import mapping
from paceline.k8s.submit.follow_rules import (
    Announce,
    End,
    FollowState,
    Recreate,
    Remove,
    ReportFinding,
    WatchOwner,
    next_actions,
)
from paceline.k8s.submit.job_state import (
    JobAnnotations,
    WatchLease,
    lease_patch,
    phase_of,
    read_annotations,
    read_lease,
)
from paceline.k8s.submit.restart import Restart

if TYPE_CHECKING:
    from paceline.k8s.client.api import Manifest
    from paceline.k8s.kinds import Kind
    from paceline.k8s.submit.log_streams import Line, LogStreams

_TRIES = 5  # at a write that others get in the way of
_NO_RETRIES = RetryPolicy(infra=0)  # for jobs that others submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowIntervals:
    look_s: float = 5.0  # longest poll interval
    ring_s: float = 1.0  # shortest poll interval
    lease_s: float = 90.0
    gone_s: float = 180.0  # patience with an old gang that does not go
    logs_s: float = 10.0  # timeout for the ends of logs after a job's end


class FollowClock(Protocol):
    """The time of one follower: the system's, or that of a recorded cluster."""

    def unix_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    def receive(self, items: "queue.Queue[Line | None]", timeout_s: float) -> "Line | None":
        """The next item. Raises queue.Empty after `timeout_s`."""
        ...


class SystemFollowClock:
    def unix_s(self) -> float:
        return unix_now_s()

    def monotonic_s(self) -> float:
        return monotonic_s()

    def receive(self, items: "queue.Queue[Line | None]", timeout_s: float) -> "Line | None":
        return items.get(timeout=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOutput:
    """Destinations of the output."""

    line: "Callable[[Line], None]"
    say: Callable[[str], None]
    tell: Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class FollowResult:
    """`end` is None when the time was over before the job was."""

    end: End | None
    attempt: int


@dataclass(slots=True, kw_only=True)
class Follower:
    cluster: ClusterConnection
    name: str
    shown: FollowOutput
    pace: FollowIntervals = field(default_factory=FollowIntervals)
    clock: FollowClock = field(default_factory=SystemFollowClock)
    watcher: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    evidence: Path | None = None  # folder for what is seen of attempts before they are removed
    _items: "queue.Queue[Line | None]" = field(default_factory=queue.Queue)
    _state: FollowState = field(default_factory=FollowState)
    _uid: str = ""
    _last: "Manifest | None" = None  # as last read
    _seen: Snapshot | None = None  # of the previous poll, of the same attempt
    _mark: JobAnnotations | None = None
    _owner: WatchOwner = WatchOwner.UNOWNED
    _missing_since_s: float | None = None
    _is_cut_off: bool = False
    _again: Restart = field(init=False)

    def __post_init__(self) -> None:
        self._again = Restart(
            cluster=self.cluster,
            name=self.name,
            watcher=self.watcher,
            lease_s=self.pace.lease_s,
            gone_s=self.pace.gone_s,
            say=self.shown.say,
            pause=lambda: self._wait(self.clock.monotonic_s() + self.pace.ring_s),
            clock=self.clock,
        )

    def follow(self, for_s: float | None) -> FollowResult:
        """Follow to the job's end, or for `for_s` seconds. Raises NotReadyError, ApiError."""
        from paceline.k8s.kinds import POD
        from paceline.k8s.submit.job_watch import ChangeWatch
        from paceline.k8s.submit.log_streams import LogStreams

        api = self.cluster.api
        namespace = self.cluster.namespace
        kind = self._kind()
        streams = LogStreams(api, namespace, self.name, self._items.put)
        bell = ChangeWatch(api, namespace, self.name, lambda: self._items.put(None))
        bell.listen(POD, kind)
        end: End | None = None
        until_s = None if for_s is None else self.clock.monotonic_s() + for_s
        try:
            while end is None and (until_s is None or self.clock.monotonic_s() < until_s):
                end = self._poll(kind, streams)
                if end is None:
                    self._wait(until_s)
        finally:
            bell.close()
            streams.finish(self.pace.logs_s if end is not None else 0.0)
            self._drain()
            self._release_lease(kind)
        return FollowResult(end, self._state.watching.attempts.number)

    def _kind(self) -> "Kind":
        """Kind of the job, or of one that is being restarted."""
        from paceline.k8s.submit.job_objects import find_job
        from paceline.k8s.submit.pending_attempts import find_pending

        job = find_job(self.cluster.api, self.name, self.cluster.namespace)
        if job is not None:
            return job[0]
        pending = find_pending(self.cluster.api, self.name, self.cluster.namespace)
        if pending is None:
            raise no_such_job(self.name, self.cluster.namespace)
        return pending.kind

    def _wait(self, until_s: float | None) -> None:
        """Show log lines as they arrive; a wakeup shortens the time to the next poll."""
        began_s = self.clock.monotonic_s()
        next_s = began_s + self.pace.look_s
        while True:
            most_s = min(next_s, until_s or next_s) - self.clock.monotonic_s()
            if most_s <= 0:
                return
            try:
                item = self.clock.receive(self._items, most_s)
            except queue.Empty:
                return
            if item is None:
                next_s = min(next_s, began_s + self.pace.ring_s)
            else:
                self.shown.line(item)

    def _drain(self) -> None:
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self.shown.line(item)

    def _poll(self, kind: "Kind", streams: "LogStreams") -> End | None:
        from paceline.k8s.client.api import UnreachableError

        try:
            job, snapshot = self._see(kind)
            self._acquire_lease(kind, job)
            is_between = job is None and self._resumes_pending()
        except UnreachableError as error:
            if not self._is_cut_off:
                self.shown.say(f"the cluster does not respond, retrying: {error}")
            self._is_cut_off = True
            return None
        self._is_cut_off = False
        if is_between:
            return None
        streams.follow(snapshot.pods)
        if job is None and self._owner is WatchOwner.ANOTHERS and self._may_come_back(snapshot):
            return None
        policy = self._mark.policy if self._mark is not None else _NO_RETRIES
        actions, self._state = next_actions(
            snapshot, job, self._state, policy, charge=self._owner, jitter=random.random()
        )
        for action in actions:
            match action:
                case Announce():
                    self.shown.say(action.text)
                case ReportFinding():
                    self.shown.tell(action.finding)
                case Recreate():
                    assert self._mark is not None, "only a job that carries our mark is ours to start again"
                    self._keep_evidence(snapshot)
                    if not self._again.start(self._mark, action.attempts, snapshot):
                        self._state = FollowState.after(self._mark.attempts)
                case Remove():
                    self._keep_evidence(snapshot)
                    if not self._remove(kind):
                        return None  # it has changed: the next poll judges it
                case End():
                    return action
        return None

    def _keep_evidence(self, snapshot: Snapshot) -> None:
        """Store pods, events and logs before they are removed; a disk that refuses them stops nothing."""
        from paceline.k8s.client.api import ApiError
        from paceline.k8s.submit.job_watch import with_all_logs

        if self.evidence is None:
            return
        attempt = 1 if self._mark is None else self._mark.attempts.number
        folder = self.evidence / self.cluster.namespace / self.name
        try:
            whole = with_all_logs(self.cluster.api, snapshot, self.cluster.namespace)
        except ApiError:
            whole = snapshot
        try:
            path = save_evidence(whole, folder, attempt)
        except OSError as error:
            self.shown.say(f"the evidence of attempt {attempt} is not stored in {folder}: {error.strerror}")
            return
        self.shown.say(
            f"pods, events and logs are saved: paceline job explain --from {shlex.quote(str(path))}"
        )

    def _see(self, kind: "Kind") -> "tuple[Manifest | None, Snapshot]":
        from paceline.k8s.client.api import NotThereError
        from paceline.k8s.submit.job_watch import job_snapshot

        api = self.cluster.api
        namespace = self.cluster.namespace
        try:
            job: Manifest | None = {"kind": kind.name, **api.get(kind, self.name, namespace)}
        except NotThereError:
            job = None
        if job is not None and (uid := str(mapping(job, "metadata").get("uid"))) != self._uid:
            # A new attempt, made here or by another watcher.
            self._mark = read_annotations(job)
            self._uid = uid
            attempts = self._mark.attempts if self._mark is not None else FollowState().watching.attempts
            self._state = FollowState.after(attempts)
            self._seen = None
            self._again.tidy(attempts.number)
        now = job_snapshot(api, job, self.name, namespace, now_s=self.clock.unix_s())
        snapshot = self._seen = with_gone_pods(now, self._seen)
        if job is None and self._last is not None:
            gone = Removal(subject=self._last, ours=False, at_s=snapshot.at_s)
            snapshot = replace(snapshot, removals=(gone,))
        self._last = job or self._last
        return job, snapshot

    def _may_come_back(self, snapshot: Snapshot) -> bool:
        """Another watcher may be making the next attempt."""
        if self._missing_since_s is None:
            self._missing_since_s = snapshot.at_s
        return snapshot.at_s - self._missing_since_s < self.pace.look_s * 2

    def _acquire_lease(self, kind: "Kind", job: "Manifest | None") -> None:
        from paceline.k8s.client.api import ConflictError, ForbiddenError, NotThereError

        if job is None or self._mark is None:
            return
        self._missing_since_s = None
        now_s = self.clock.unix_s()
        watch = read_lease(job)
        is_mine = watch.watcher == self.watcher
        if watch.is_on(now_s) and (not is_mine or watch.until_s - now_s > self.pace.lease_s / 2):
            self._owner = WatchOwner.OURS if is_mine else WatchOwner.ANOTHERS
            return
        patch = lease_patch(
            WatchLease(watcher=self.watcher, until_s=now_s + self.pace.lease_s),
            _version(job),
        )
        try:
            self.cluster.api.patch(kind, self.name, self.cluster.namespace, patch)
            self._owner = WatchOwner.OURS
        except ConflictError:  # a concurrent change, by a watcher or the operator: read at the next poll
            self._owner = WatchOwner.OURS if is_mine and watch.is_on(now_s) else WatchOwner.ANOTHERS
        except (ForbiddenError, NotThereError):
            self._owner = WatchOwner.UNOWNED

    def _release_lease(self, kind: "Kind") -> None:
        from paceline.k8s.client.api import ApiError, ConflictError

        if self._owner is not WatchOwner.OURS:
            return
        self._owner = WatchOwner.ANOTHERS
        api = self.cluster.api
        namespace = self.cluster.namespace
        try:
            for _ in range(_TRIES):
                job = api.get(kind, self.name, namespace)
                if read_lease(job).watcher != self.watcher:  # this lease expired, and another watcher took it
                    return
                try:
                    api.patch(kind, self.name, namespace, lease_patch(None, _version(job)))
                    return
                except ConflictError:  # a concurrent change, by the operator or another watcher
                    continue
        except ApiError as error:  # it expires
            if error.status != 404:
                self.shown.say(f"the lease for restarting it ends in {self.pace.lease_s:.0f} s: {error}")

    def _resumes_pending(self) -> bool:
        """True if there is no job but a pending attempt, which this or another watcher creates."""
        if not self._again.goes_on():
            return False
        self._missing_since_s = None
        return True

    def _remove(self, kind: "Kind") -> bool:
        """Read the job again, and remove it if it is the one that was judged, and has not ended. Retries
        while the server does not respond; reports what may not be removed."""
        from paceline.k8s.client.api import ConflictError, ForbiddenError, NotThereError, UnreachableError
        from paceline.k8s.submit.job_objects import remove_job

        self._drain()
        api = self.cluster.api
        where = self.cluster.namespace
        until_s = self.clock.monotonic_s() + self.pace.gone_s
        while True:
            try:
                now: Manifest = {"kind": kind.name, **api.get(kind, self.name, where)}
                if uid_of(now) != self._uid or phase_of(now, ()).is_over:
                    return False
                remove_job(api, kind, self.name, where, self._mark, version=_version(now))
                return True
            except NotThereError:
                return True
            except ConflictError:  # it has changed since it was read
                continue
            except ForbiddenError as error:
                self.shown.say(f"{error.what}; {error.hint}")
                return True
            except UnreachableError:
                if self.clock.monotonic_s() > until_s:
                    raise
                self._again.pause()


def _version(job: "Manifest") -> str:
    return str(mapping(job, "metadata").get("resourceVersion", ""))


def no_such_job(name: str, namespace: str) -> PacelineError:
    hint = f"list the jobs: paceline job list -n {namespace}; choose another namespace with -n"
    return NotReadyError(f"there is no job {name} in namespace {namespace}", hint)
