"""What can be known of jobs in a cluster, from any machine? State, list, logs, cause; and their end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.app.cluster_reach import Cluster
from paceline.app.explain import Explained
from paceline.app.job_follow import no_such_job
from paceline.clock import unix_now_s
from paceline.kube.diagnosis.judge import Wait, Watching, judge
from paceline.kube.diagnosis.pods import node_of, phase, rank_of
from paceline.kube.diagnosis.progress import newest_checkpoint
from paceline.kube.diagnosis.record import narrowed
from paceline.kube.diagnosis.retry import RetryPolicy
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of, namespace_of
from paceline.kube.reading import mapping, mappings
from paceline.kube.submission.keeping import resumes_from
from paceline.kube.submission.mark import Mark, read_mark, read_watch
from paceline.kube.submission.prefix import prefix_of
from paceline.kube.submission.state import Phase, has_own_retries, phase_of
from paceline.kube.words import without_escapes
from paceline.redaction import LineRedactor

if TYPE_CHECKING:
    from paceline.cluster.job_logs import Line
    from paceline.cluster.job_pending import Found
    from paceline.cluster.kinds import Kind
    from paceline.cluster.port import Manifest

_NOBODY = "nobody; `paceline job attach` takes it over"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    name: str
    rank: int | None
    phase: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    name: str
    kind: str
    namespace: str
    phase: Phase
    attempt: int
    in_charge: str  # who starts it again
    pods: tuple[PodState, ...]
    checkpoint: int | None
    explained: Explained


def job_status(cluster: Cluster, name: str) -> Status:
    """Raises NotReadyError, ApiError."""
    seen = _seen(cluster, name)
    if not isinstance(seen, tuple):
        return _between(seen, cluster.namespace)
    kind, job, snapshot, mark = seen
    return Status(
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


def _between(found: "Found", namespace: str) -> Status:
    """One attempt is removed, and the next is not made yet."""
    pending, by = found.pending, f"watcher {found.watch.watcher}"
    return Status(
        name=pending.job,
        kind=found.kind.name,
        namespace=namespace,
        phase=Phase.BETWEEN,
        attempt=pending.attempt,
        in_charge=by if found.watch.is_on(unix_now_s()) else _NOBODY,
        pods=(),
        checkpoint=None,
        explained=_decided(found),
    )


def explain_live(cluster: Cluster, name: str) -> Explained:
    seen = _seen(cluster, name)
    if not isinstance(seen, tuple):
        return _decided(seen)
    _, job, snapshot, mark = seen
    return _explained(snapshot, job, mark)


def _decided(found: "Found") -> Explained:
    says = f"{found.pending.says}: decided on, and not made yet"
    if not found.watch.is_on(unix_now_s()):
        says += f", and nobody is at it; paceline job attach {found.pending.job} makes it"
    return Explained(finding=None, verdict=Wait(says=says, until_s=None), seen="a written decision")


def stop_job(cluster: Cluster, name: str) -> list[str]:
    """What was removed. Volumes stay."""
    from paceline.cluster.job_objects import find_job, remove_job
    from paceline.cluster.job_pending import find_pending, take_back

    api, space = cluster.api, cluster.namespace
    found = find_job(api, name, space)
    pending = find_pending(api, name, space)
    take_back(api, pending, space)  # first, so that nobody makes the next attempt of what is being removed
    if found is not None:
        gone = remove_job(api, found[0], name, space, read_mark(found[1]))
    elif pending is not None:
        gone = remove_job(api, pending.kind, name, space, pending.pending.mark)
    else:
        raise no_such_job(name, space)
    # A watcher may have decided to start it again while it was removed here.
    take_back(api, find_pending(api, name, space), space)
    back = find_job(api, name, space)
    if back is not None and (found is None or _uid(back[1]) != _uid(found[1])) and read_mark(back[1]):
        remove_job(api, back[0], name, space, read_mark(back[1]))
    return gone


def _uid(one: Object) -> object:
    return mapping(one, "metadata").get("uid")


def list_jobs(cluster: Cluster, *, everywhere: bool) -> list[dict[str, str]]:
    from paceline.cluster.job_objects import jobs_of_ours
    from paceline.cluster.job_pending import all_pending
    from paceline.cluster.job_snapshot import children
    from paceline.cluster.kinds import POD
    from paceline.cluster.port import ForbiddenError

    where = None if everywhere else cluster.namespace
    jobs = jobs_of_ours(cluster.api, where)
    try:
        pods = cluster.api.find(POD, where).items if jobs else ()
    except ForbiddenError:
        pods = ()
    between = children(cluster.api, {kind.name for kind, _ in jobs}, where)
    rows = []
    for kind, job in jobs:
        here = tuple(one for one in (*between, *pods) if namespace_of(one) == namespace_of(job))
        named: Object = {"kind": kind.name, **job}
        mine = narrowed(Snapshot(at_s=0.0, objects=(named, *here)), name_of(job)).pods
        mark = read_mark(job)
        attempt = 1 if mark is None else mark.attempts.number
        rows.append(_row(name_of(job), namespace_of(job), kind.name, phase_of(job, mine), attempt))
    there = {(row["name"], row["namespace"]) for row in rows}
    for space, found in all_pending(cluster.api, where):
        name, attempt = found.pending.job, found.pending.attempt
        if (name, space) not in there:
            rows.append(_row(name, space, found.kind.name, Phase.BETWEEN, attempt))
    return rows


def _row(name: str, namespace: str, kind: str, phase: Phase, attempt: int) -> dict[str, str]:
    about = {"name": name, "namespace": namespace, "kind": kind}
    return {**about, "phase": phase.value, "attempt": str(attempt)}


def job_logs(cluster: Cluster, name: str, rank: int | None, tail: int | None) -> "Iterator[Line]":
    """What is there now, pod by pod. Following is `Follower`'s."""
    from paceline.cluster.job_logs import Line
    from paceline.cluster.port import NotThereError, RefusedError
    from paceline.kube.diagnosis.times import split_line

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
                        redactor.line(without_escapes(split_line(line)[1])),
                        name_of(pod),
                    )
            except (NotThereError, RefusedError):  # it has not begun
                continue


def _order(pod: Object) -> tuple[int, str]:
    rank = rank_of(pod)
    return (1 << 30) if rank is None else rank, name_of(pod)


def _seen(
    cluster: Cluster, name: str, *, logs: bool = True
) -> "tuple[Kind, Manifest, Snapshot, Mark | None] | Found":
    """Or, where there is no job just now, the decision to start it again."""
    from paceline.cluster.job_objects import find_job
    from paceline.cluster.job_pending import find_pending
    from paceline.cluster.job_snapshot import job_snapshot

    found = find_job(cluster.api, name, cluster.namespace)
    if found is None:
        pending = find_pending(cluster.api, name, cluster.namespace)
        if pending is None:
            raise no_such_job(name, cluster.namespace)
        return pending
    kind, job = found
    snapshot = job_snapshot(cluster.api, job, name, cluster.namespace, now_s=unix_now_s(), logs=logs)
    return kind, job, snapshot, read_mark(job)


def _explained(snapshot: Snapshot, job: Object, mark: Mark | None) -> Explained:
    policy = RetryPolicy() if mark is None else mark.policy
    past = Watching() if mark is None else Watching(attempts=mark.attempts)
    verdict, finding, _ = judge(snapshot, past, policy, checkpoint=resumes_from(snapshot, job))
    seen = f"{len(snapshot.pods)} pods, {len(snapshot.events)} events, {len(snapshot.logs)} logs"
    return Explained(finding=finding, verdict=verdict, seen=seen)


def _in_charge(job: Object, mark: Mark | None) -> str:
    watch = read_watch(job)
    if mark is not None and watch.is_on(unix_now_s()):
        return f"watcher {watch.watcher}"
    if has_own_retries(job):
        return "its operator"
    return "nobody" if mark is None else _NOBODY
