"""Queries about jobs in a cluster, from any machine: state, list, logs, cause; and stopping one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.clock import unix_now_s
from paceline.core.humanize import pluralize
from paceline.core.redaction import LineRedactor
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.explain import Explanation
from paceline.k8s.diagnose.pods import newest_checkpoint, node_of, phase, rank_of
from paceline.k8s.diagnose.recording import narrow_to_job
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of, namespace_of
from paceline.k8s.diagnose.verdict import Wait, WatchState, judge
from paceline.k8s.objects import mapping, mappings, strip_ansi
from paceline.k8s.submit.follow import no_such_job
from paceline.k8s.submit.job_state import (
    JobAnnotations,
    Phase,
    has_own_retries,
    phase_of,
    read_annotations,
    read_lease,
    resumes_from,
)
from paceline.k8s.submit.log_lines import prefix_of

if TYPE_CHECKING:
    from paceline.k8s.client.api import Manifest
    from paceline.k8s.kinds import Kind
    from paceline.k8s.submit.log_streams import Line
    from paceline.k8s.submit.pending_attempts import StoredAttempt

_NO_WATCHER = "none; `paceline job attach` takes over"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    name: str
    rank: int | None
    phase: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    name: str
    kind: str
    namespace: str
    phase: Phase
    attempt: int
    in_charge: str  # the watcher that starts it again
    pods: tuple[PodState, ...]
    checkpoint: int | None
    explained: Explanation


def job_status(cluster: ClusterConnection, name: str) -> JobStatus:
    """Raises NotReadyError, ApiError."""
    seen = _seen(cluster, name)
    if not isinstance(seen, tuple):
        return _pending_status(seen, cluster.namespace)
    kind, job, snapshot, mark = seen
    return JobStatus(
        name=name,
        kind=kind.name,
        namespace=cluster.namespace,
        phase=phase_of(job, snapshot.pods),
        attempt=1 if mark is None else mark.attempts.number,
        in_charge=_in_charge(job, mark),
        pods=tuple(
            PodState(name=name_of(pod), rank=rank_of(pod), phase=phase(pod), node=node_of(pod))
            for pod in snapshot.pods
        ),
        checkpoint=newest_checkpoint(snapshot),
        explained=_explained(snapshot, job, mark),
    )


def _pending_status(stored: "StoredAttempt", namespace: str) -> JobStatus:
    """One attempt is removed, and the next is not made yet."""
    pending = stored.pending
    by = f"watcher {stored.watch.watcher}"
    return JobStatus(
        name=pending.job,
        kind=stored.kind.name,
        namespace=namespace,
        phase=Phase.BETWEEN,
        attempt=pending.attempt,
        in_charge=by if stored.watch.is_on(unix_now_s()) else _NO_WATCHER,
        pods=(),
        checkpoint=None,
        explained=_explain_pending(stored),
    )


def explain_live(cluster: ClusterConnection, name: str) -> Explanation:
    seen = _seen(cluster, name)
    if not isinstance(seen, tuple):
        return _explain_pending(seen)
    _, job, snapshot, mark = seen
    return _explained(snapshot, job, mark)


def _explain_pending(stored: "StoredAttempt") -> Explanation:
    announcement = f"{stored.pending.says}: scheduled but not started yet"
    if not stored.watch.is_on(unix_now_s()):
        announcement += f"; it has no watcher; to start it: paceline job attach {stored.pending.job}"
    return Explanation(finding=None, verdict=Wait(says=announcement, until_s=None), seen="a written decision")


def stop_job(cluster: ClusterConnection, name: str) -> list[str]:
    """Remove the job; returns the removed objects. Volumes stay."""
    from paceline.k8s.submit.job_objects import find_job, remove_job
    from paceline.k8s.submit.pending_attempts import cancel_pending, find_pending

    api = cluster.api
    space = cluster.namespace
    job = find_job(api, name, space)
    pending = find_pending(api, name, space)
    # First, so that no watcher creates the next attempt of a job that is being removed.
    cancel_pending(api, pending, space)
    if job is not None:
        gone = remove_job(api, job[0], name, space, read_annotations(job[1]))
    elif pending is not None:
        gone = remove_job(api, pending.kind, name, space, pending.pending.mark)
    else:
        raise no_such_job(name, space)
    # A watcher may have decided to start it again while it was removed here.
    cancel_pending(api, find_pending(api, name, space), space)
    back = find_job(api, name, space)
    if back is not None and (job is None or _uid(back[1]) != _uid(job[1])) and read_annotations(back[1]):
        remove_job(api, back[0], name, space, read_annotations(back[1]))
    return gone


def _uid(obj: Object) -> object:
    return mapping(obj, "metadata").get("uid")


def list_jobs(cluster: ClusterConnection, *, everywhere: bool) -> list[dict[str, str]]:
    from paceline.k8s.client.api import ForbiddenError
    from paceline.k8s.kinds import POD
    from paceline.k8s.submit.job_objects import list_labelled_jobs
    from paceline.k8s.submit.job_watch import children
    from paceline.k8s.submit.pending_attempts import all_pending

    where = None if everywhere else cluster.namespace
    jobs = list_labelled_jobs(cluster.api, where)
    try:
        pods = cluster.api.find(POD, where).items if jobs else ()
    except ForbiddenError:
        pods = ()
    between = children(cluster.api, {kind.name for kind, _ in jobs}, where)
    rows = []
    for kind, job in jobs:
        peers = tuple(obj for obj in (*between, *pods) if namespace_of(obj) == namespace_of(job))
        named: Object = {"kind": kind.name, **job}
        own = narrow_to_job(Snapshot(at_s=0.0, objects=(named, *peers)), name_of(job)).pods
        mark = read_annotations(job)
        attempt = 1 if mark is None else mark.attempts.number
        rows.append(_row(name_of(job), namespace_of(job), kind.name, phase_of(job, own), attempt))
    listed = {(row["name"], row["namespace"]) for row in rows}
    for space, stored in all_pending(cluster.api, where):
        name = stored.pending.job
        attempt = stored.pending.attempt
        if (name, space) not in listed:
            rows.append(_row(name, space, stored.kind.name, Phase.BETWEEN, attempt))
    return rows


def _row(name: str, namespace: str, kind: str, phase: Phase, attempt: int) -> dict[str, str]:
    identity = {"name": name, "namespace": namespace, "kind": kind}
    return {**identity, "phase": phase.value, "attempt": str(attempt)}


def job_logs(cluster: ClusterConnection, name: str, rank: int | None, tail: int | None) -> "Iterator[Line]":
    """Current logs, pod by pod. `Follower` follows them."""
    from paceline.k8s.client.api import NotThereError, RefusedError
    from paceline.k8s.objects import split_line
    from paceline.k8s.submit.log_streams import Line

    seen = _seen(cluster, name, logs=False)
    if not isinstance(seen, tuple):
        return  # its pods went with the attempt before
    _, _, snapshot, _ = seen
    for pod in sorted(snapshot.pods, key=_order):
        if rank is not None and rank_of(pod) != rank:
            continue
        for container in mappings(pod, "spec", "containers"):
            redactor = LineRedactor()
            try:
                its = cluster.api.logs(name_of(pod), cluster.namespace, str(container["name"]), tail=tail)
                for line in its:
                    yield Line(
                        prefix_of(pod, name),
                        redactor.line(strip_ansi(split_line(line)[1])),
                        name_of(pod),
                    )
            except (NotThereError, RefusedError):  # it has not begun
                continue


def _order(pod: Object) -> tuple[int, str]:
    rank = rank_of(pod)
    return (1 << 30) if rank is None else rank, name_of(pod)


def _seen(
    cluster: ClusterConnection, name: str, *, logs: bool = True
) -> "tuple[Kind, Manifest, Snapshot, JobAnnotations | None] | StoredAttempt":
    """Or, where there is no job just now, the decision to start it again."""
    from paceline.k8s.submit.job_objects import find_job
    from paceline.k8s.submit.job_watch import job_snapshot
    from paceline.k8s.submit.pending_attempts import find_pending

    kind_and_job = find_job(cluster.api, name, cluster.namespace)
    if kind_and_job is None:
        pending = find_pending(cluster.api, name, cluster.namespace)
        if pending is None:
            raise no_such_job(name, cluster.namespace)
        return pending
    kind, job = kind_and_job
    snapshot = job_snapshot(cluster.api, job, name, cluster.namespace, now_s=unix_now_s(), logs=logs)
    return kind, job, snapshot, read_annotations(job)


def _explained(snapshot: Snapshot, job: Object, mark: JobAnnotations | None) -> Explanation:
    policy = RetryPolicy() if mark is None else mark.policy
    past = WatchState() if mark is None else WatchState(attempts=mark.attempts)
    verdict, finding, _ = judge(snapshot, past, policy, checkpoint=resumes_from(snapshot, job))
    seen = (
        f"{pluralize(len(snapshot.pods), 'pod')}, {pluralize(len(snapshot.events), 'event')}, "
        f"{pluralize(len(snapshot.logs), 'log')}"
    )
    return Explanation(finding=finding, verdict=verdict, seen=seen)


def _in_charge(job: Object, mark: JobAnnotations | None) -> str:
    watch = read_lease(job)
    if mark is not None and watch.is_on(unix_now_s()):
        return f"watcher {watch.watcher}"
    if has_own_retries(job):
        return "its operator"
    return "none" if mark is None else _NO_WATCHER
