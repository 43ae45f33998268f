"""Starts a whole job again: the decision is written down, the old attempt removed, the next one made.

The decision stands in the cluster before the old attempt goes (k8s/submit/attempts.py): another watcher
can carry it out. It is inspected again before anything is removed: the job must be the one that was judged,
and in the state it was judged for. Pods of a lost node are removed by force, with the reason printed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.errors import PacelineError
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.pods import is_terminating, node_of
from paceline.k8s.diagnose.retry import Attempts
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of, uid_of
from paceline.k8s.objects import mapping
from paceline.k8s.submit.attempts import (
    can_exclude,
    next_manifest,
    pending_config_map,
    read_pending,
    reason_to_force,
)
from paceline.k8s.submit.job_state import JobAnnotations, Phase, WatchLease, annotate, phase_of

if TYPE_CHECKING:
    from paceline.k8s.submit.attempts import PendingAttempt
    from paceline.k8s.submit.follow import FollowClock

_STOPPED = "the job was stopped meanwhile"


@dataclass(slots=True, kw_only=True)
class Restart:
    """Restart of one job by one watcher."""

    cluster: ClusterConnection
    name: str
    watcher: str
    lease_s: float
    gone_s: float  # patience with an old gang that does not go
    say: Callable[[str], None]
    pause: Callable[[], None]
    clock: "FollowClock"
    _refused: set[str] = field(default_factory=set)  # pods that may not be removed, and were named
    _reported_attempt: int = 0  # last reported attempt of another watcher

    def start(self, mark: JobAnnotations, attempts: Attempts, snapshot: Snapshot) -> bool:
        """False when it is not made, because the job has changed. Raises PacelineError when old pods stay."""
        from paceline.k8s.submit.job_objects import retry_until_answered
        from paceline.k8s.submit.pending_attempts import delete_pending, save_pending

        original = mark.manifest
        if attempts.excluded and not can_exclude(original):
            self.say(
                "the pods of this job are defined by its runtime: nodes cannot be excluded from the next "
                "attempt"
            )
        manifest = _next(mark, attempts)
        pods = [name_of(pod) for pod in snapshot.pods]
        announcement = (
            f"attempt {attempts.number} after {attempts.failures[-1].failure}" if attempts.failures else ""
        )
        noted = pending_config_map(
            self.name, self.cluster.namespace, manifest, pods, announcement, self._watch()
        )
        pending = read_pending(noted)
        assert pending is not None, "what was written can be read"
        # The job is unchanged until the first write, so requests are retried without a response.
        wait = self._patience(pending)
        is_written = retry_until_answered(lambda: save_pending(self.cluster.api, noted), wait)
        reason = self._remove_judged(manifest, snapshot, wait)
        if reason:
            delete_pending(self.cluster.api, self.name, self.cluster.namespace)
            self.say(f"attempt {pending.attempt} is cancelled: {reason}")
            return False
        if not is_written:
            self.say(
                "no permission to create a ConfigMap: if this watcher is killed in the next seconds, the "
                "job is lost"
            )
        self._make(pending, is_written=is_written)
        return True

    def goes_on(self) -> bool:
        """True if the job is absent only because an attempt is pending; created here if its lease expired."""
        from paceline.k8s.submit.pending_attempts import find_pending, take_over

        stored = find_pending(self.cluster.api, self.name, self.cluster.namespace)
        if stored is None:
            return False
        if not take_over(
            self.cluster.api, stored, self.cluster.namespace, self._watch(), self.clock.unix_s()
        ):
            if stored.pending.attempt != self._reported_attempt:
                self._reported_attempt = stored.pending.attempt
                self.say(
                    f"attempt {stored.pending.attempt} is being started by watcher {stored.watch.watcher}"
                )
        else:
            self.say(
                f"attempt {stored.pending.attempt} was scheduled, but its watcher has ended; starting it now"
            )
            self._make(stored.pending, is_written=True)
        return True

    def tidy(self, attempt: int) -> None:
        """Remove the pending attempt of a watcher that ended after creating it."""
        from paceline.k8s.submit.pending_attempts import delete_pending, find_pending

        stored = find_pending(self.cluster.api, self.name, self.cluster.namespace)
        if stored is not None and stored.pending.attempt <= attempt:
            delete_pending(self.cluster.api, self.name, self.cluster.namespace)

    def _remove_judged(self, manifest: Object, snapshot: Snapshot, wait: Callable[[], None]) -> str:
        """Deletes the job that was judged, unless it has changed. The reason not to; empty: it is deleted."""
        from paceline.k8s.client.api import ConflictError, NotThereError
        from paceline.k8s.kinds import kind_of
        from paceline.k8s.submit.job_objects import retry_until_answered

        api = self.cluster.api
        where = self.cluster.namespace
        kind = kind_of(dict(manifest))
        judged = next((job for job in snapshot.jobs if name_of(job) == self.name), None)
        is_sent = False
        while True:
            try:
                now = retry_until_answered(lambda: api.get(kind, self.name, where), wait)
            except NotThereError:
                return "" if is_sent else _STOPPED
            if is_sent and is_terminating(now):
                return ""
            reason = _reason_not_to({"kind": kind.name, **now}, judged)
            if reason:
                return reason
            version = str(mapping(now, "metadata").get("resourceVersion", ""))
            is_sent = True
            try:
                retry_until_answered(partial(api.delete, kind, self.name, where, version=version), wait)
                return ""
            except ConflictError:  # it has changed since it was read
                continue

    def _free(self, pod: Object) -> None:
        """Removes a pod of the attempt before by force, where its node is lost. Raises UnreachableError."""
        from paceline.k8s.client.api import ConflictError, ForbiddenError, NotThereError
        from paceline.k8s.kinds import NODE, POD

        name = name_of(pod)
        try:
            try:
                node: Object | None = self.cluster.api.get(NODE, node_of(pod) or "none")
            except NotThereError:
                node = None
            reason = reason_to_force(pod, node, self.clock.unix_s())
            if not reason:
                return
            self.cluster.api.delete(POD, name, self.cluster.namespace, uid=uid_of(pod), grace_s=0)
            self.say(f"pod {name} is removed by force: {reason}")
        except ConflictError:  # another pod of this name: not of the attempt before
            return
        except ForbiddenError as error:
            if name not in self._refused:
                self.say(f"pod {name} stays until its node responds: {error}")
            self._refused.add(name)

    def _patience(self, pending: "PendingAttempt", *, is_written: bool = False) -> Callable[[], None]:
        """Waits a moment; raises PacelineError when it has been long enough."""
        from paceline.k8s.submit.pending_attempts import renew_lease

        until_s = self.clock.monotonic_s() + self.gone_s
        renewed_s = self.clock.monotonic_s()
        where = self.cluster.namespace

        def wait() -> None:
            nonlocal renewed_s
            if self.clock.monotonic_s() > until_s:
                message = (
                    f"the pods of attempt {pending.attempt - 1} do not terminate, or the server does "
                    "not respond"
                )
                forced = f"kubectl delete pod {' '.join(pending.pods)} -n {where} --force --grace-period=0"
                hint = f"if their node is lost: {forced}; then: paceline job attach {self.name} -n {where}"
                raise PacelineError(message, hint)
            if is_written and self.clock.monotonic_s() - renewed_s > self.lease_s / 2:
                renewed_s = self.clock.monotonic_s()
                renew_lease(self.cluster.api, self.name, where, self._watch())
            self.pause()

        return wait

    def _make(self, pending: "PendingAttempt", *, is_written: bool) -> None:
        from paceline.k8s.submit.pending_attempts import make

        wait = self._patience(pending, is_written=is_written)
        where = self.cluster.namespace
        if make(self.cluster.api, pending, where, is_written=is_written, wait=wait, free=self._free):
            self.say(f"attempt {pending.attempt} is submitted")
        else:
            self.say(f"attempt {pending.attempt} is cancelled: {_STOPPED}")

    def _watch(self) -> WatchLease:
        return WatchLease(watcher=self.watcher, until_s=self.clock.unix_s() + self.lease_s)


def _reason_not_to(now: Object, judged: Object | None) -> str:
    """Why a job must not be removed, or started again, on what was judged of it before."""
    if judged is None or uid_of(now) != uid_of(judged) or is_terminating(now):
        return _STOPPED
    before = phase_of(judged, ())
    after = phase_of(now, ())
    if after is Phase.SUCCEEDED:
        return "the job has succeeded meanwhile"
    if before is Phase.FAILED and after is not Phase.FAILED:
        return "its operator has restarted it meanwhile"
    return ""


def _next(mark: JobAnnotations, attempts: Attempts) -> Object:
    manifest = next_manifest(mark.manifest, attempts.excluded, attempts.changes)
    return annotate(manifest, replace(mark, attempts=attempts))
