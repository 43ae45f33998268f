"""How is a whole job started again, so that it is not lost with whoever does it? Written down, removed, made.

What is decided stands in the cluster before the old attempt goes (kube/submission/pending.py). Whoever finds
it there, with nobody at it, carries it out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.app.cluster_reach import Cluster
from paceline.errors import PacelineError
from paceline.kube.diagnosis.retry import Attempts
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of
from paceline.kube.reading import mapping
from paceline.kube.submission.again import can_exclude, next_manifest
from paceline.kube.submission.mark import Mark, Watch, marked
from paceline.kube.submission.pending import read_pending, written

if TYPE_CHECKING:
    from paceline.app.job_follow import FollowClock
    from paceline.kube.submission.pending import Pending


@dataclass(slots=True, kw_only=True)
class Restart:
    """Of one job, by one watcher."""

    cluster: Cluster
    name: str
    watcher: str
    lease_s: float
    gone_s: float  # patience with an old gang that does not go
    say: Callable[[str], None]
    pause: Callable[[], None]
    clock: "FollowClock"
    _told: int = 0  # the attempt of another's that was last spoken of

    def start(self, mark: Mark, attempts: Attempts, snapshot: Snapshot) -> None:
        """Raises PacelineError when the old pods do not go."""
        from paceline.cluster.job_objects import until_answered
        from paceline.cluster.job_pending import forget, write_down

        original = mark.manifest
        if attempts.excluded and not can_exclude(original):
            self.say("this job's pods are its runtime's: nodes cannot be left out of the next attempt")
        manifest = _next(mark, attempts)
        pods = [name_of(pod) for pod in snapshot.pods]
        says = f"attempt {attempts.number} after {attempts.failures[-1].failure}" if attempts.failures else ""
        noted = written(self.name, self.cluster.namespace, manifest, pods, says, self._watch())
        pending = read_pending(noted)
        assert pending is not None, "what was written can be read"
        # The job stands as long as nothing is written: a server that does not answer now is asked again.
        wait = self._patience(pending)
        is_written = until_answered(lambda: write_down(self.cluster.api, noted), wait)
        if not until_answered(lambda: self._is_still(manifest, snapshot), wait):
            forget(self.cluster.api, self.name, self.cluster.namespace)
            self.say(f"attempt {pending.attempt} is not made: the job was stopped meanwhile")
            return
        if not is_written:
            self.say(
                "no ConfigMap may be made here: if this watcher dies in the next seconds, the job is lost"
            )
        self._make(pending, is_written=is_written)

    def goes_on(self) -> bool:
        """Is the job only away because an attempt is being made? If nobody is at it, we make it."""
        from paceline.cluster.job_pending import find_pending, take_over

        found = find_pending(self.cluster.api, self.name, self.cluster.namespace)
        if found is None:
            return False
        if not take_over(self.cluster.api, found, self.cluster.namespace, self._watch(), self.clock.unix_s()):
            if found.pending.attempt != self._told:
                self._told = found.pending.attempt
                self.say(f"attempt {found.pending.attempt} is being made by watcher {found.watch.watcher}")
        else:
            self.say(f"attempt {found.pending.attempt} was decided on, and nobody is left to make it: we do")
            self._make(found.pending, is_written=True)
        return True

    def tidy(self, attempt: int) -> None:
        """Whoever made an attempt may have died before forgetting that it was to be made."""
        from paceline.cluster.job_pending import find_pending, forget

        found = find_pending(self.cluster.api, self.name, self.cluster.namespace)
        if found is not None and found.pending.attempt <= attempt:
            forget(self.cluster.api, self.name, self.cluster.namespace)

    def _is_still(self, manifest: Object, snapshot: Snapshot) -> bool:
        """Is the job there that was judged? Who stops it between that look and now must not see it again."""
        from paceline.cluster.kinds import kind_of
        from paceline.cluster.port import NotThereError

        judged = {mapping(job, "metadata").get("uid") for job in snapshot.jobs if name_of(job) == self.name}
        try:
            now = self.cluster.api.get(kind_of(dict(manifest)), self.name, self.cluster.namespace)
        except NotThereError:
            return False
        about = mapping(now, "metadata")
        return about.get("uid") in judged and about.get("deletionTimestamp") is None

    def _patience(self, pending: "Pending", *, is_written: bool = False) -> Callable[[], None]:
        """Waits a moment; raises PacelineError when it has been long enough."""
        from paceline.cluster.job_pending import renew

        until_s, renewed_s = self.clock.monotonic_s() + self.gone_s, self.clock.monotonic_s()
        where = self.cluster.namespace

        def wait() -> None:
            nonlocal renewed_s
            if self.clock.monotonic_s() > until_s:
                what = f"the pods of attempt {pending.attempt - 1} do not go away, or nobody answers"
                hint = f"is a node lost? Then: paceline job attach {self.name} -n {where}"
                raise PacelineError(what, hint)
            if is_written and self.clock.monotonic_s() - renewed_s > self.lease_s / 2:
                renewed_s = self.clock.monotonic_s()
                renew(self.cluster.api, self.name, where, self._watch())
            self.pause()

        return wait

    def _make(self, pending: "Pending", *, is_written: bool) -> None:
        from paceline.cluster.job_pending import make

        wait = self._patience(pending, is_written=is_written)
        if make(self.cluster.api, pending, self.cluster.namespace, is_written=is_written, wait=wait):
            self.say(f"attempt {pending.attempt} is sent")
        else:
            self.say(f"attempt {pending.attempt} is not made: the job was stopped meanwhile")

    def _watch(self) -> Watch:
        return Watch(watcher=self.watcher, until_s=self.clock.unix_s() + self.lease_s)


def _next(mark: Mark, attempts: Attempts) -> Object:
    manifest = next_manifest(mark.manifest, attempts.excluded, attempts.changes)
    return marked(manifest, replace(mark, attempts=attempts))
