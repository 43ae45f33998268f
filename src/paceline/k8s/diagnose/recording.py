"""Reader of recordings: `kubectl get … -o json`, or the same with logs, times and responses around it.

A list of objects is enough. Without a recorded time, the newest time in it is used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.errors import ManifestError, Problem
from paceline.k8s.diagnose.snapshot import (
    Answer,
    Log,
    Object,
    Removal,
    Snapshot,
    labels_of,
    name_of,
    subject_of,
    uid_of,
)
from paceline.k8s.objects import mapping, mappings, newest_time, read_time

KUBECTL = "kubectl get pods,events,jobs,pvc,resourcequotas,nodes -n NAMESPACE -o json > FILE.json"
_HINT = f"record one: {KUBECTL}"
_OWNERS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/originated-from-cr-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
_RAY_CLUSTER = "ray.io/cluster"
_MADE_BY_RAY_JOB = re.compile(r"(-raycluster)?-[a-z0-9]{5}")  # behind the job's name
_DIRECT = ("PyTorchJob", "HyperPodPyTorchJob")  # they own their pods themselves
_ABOUT_ALL = ("Node", "ResourceQuota", "PersistentVolumeClaim", "Workload")


def read_record(value: object, where: str, logs: Sequence[Log] = ()) -> Snapshot:
    """`where` is the file's name, for messages; `logs` are added to those in it."""
    if not isinstance(value, dict):
        raise ManifestError([Problem("the recording is not a JSON object", _HINT, where)])
    objects = _objects(value)
    answers = tuple(_answer(answer) for answer in mappings(value, "answers"))
    removals = tuple(_removal(event) for event in mappings(value, "watch") if event.get("type") == "DELETED")
    all_logs = (*(_log(log) for log in mappings(value, "logs")), *logs)
    if not (objects or answers or removals or all_logs):
        raise ManifestError([Problem("the recording has no objects, logs or responses", _HINT, where)])
    at_s = _number(value.get("at")) or newest_time(list(objects)) or 0.0
    listed = value.get("listed_exit_codes")
    return Snapshot(
        at_s=at_s,
        objects=objects,
        logs=all_logs,
        answers=answers,
        removals=removals,
        client=str(value.get("client", "")),
        listed_exit_codes=frozenset(obj for obj in listed if isinstance(obj, int))
        if isinstance(listed, list)
        else frozenset(),
    )


def _objects(value: Mapping[str, object]) -> tuple[Object, ...]:
    if "items" in value:
        return _flat(mappings(value, "items"))
    if "objects" in value:
        return _flat(mappings(value, "objects"))
    return (value,) if "kind" in value and "metadata" in value else ()


def _flat(objects: Sequence[Object]) -> tuple[Object, ...]:
    """Lists in lists, as several commands' outputs put together."""
    flat: list[Object] = []
    for obj in objects:
        flat += _flat(mappings(obj, "items")) if "items" in obj else [obj]
    return tuple(flat)


def _log(entry: Object) -> Log:
    text = entry.get("text", "")
    lines = [str(line) for line in text] if isinstance(text, list) else [str(text)]
    return Log(
        pod=str(entry.get("pod", "")),
        container=str(entry.get("container", "")),
        text="\n".join(lines),
        previous=entry.get("previous") is True,
    )


def _answer(entry: Object) -> Answer:
    body = mapping(entry, "body")
    code = entry.get("code", body.get("code"))
    return Answer(
        verb=str(entry.get("verb", "")),
        code=code if isinstance(code, int) else 0,
        message=str(body.get("message", entry.get("message", ""))),
        reason=str(body.get("reason", "")),
        path=str(entry.get("path", "")),
        at_s=_number(entry.get("at")),
        retry_after_s=_number(mapping(entry, "headers").get("Retry-After")),
    )


def _removal(entry: Object) -> Removal:
    return Removal(
        subject=mapping(entry, "object"), ours=entry.get("ours") is True, at_s=_number(entry.get("at"))
    )


def _number(value: object) -> float | None:
    """Seconds, as a number or as a time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.replace(".", "", 1).isdigit():
        return float(value)
    return read_time(value)


def narrow_to_job(snapshot: Snapshot, job: str) -> Snapshot:
    """Objects of one job of a namespace, and shared objects: nodes and quotas.

    Pods belong to a job through the uids of their owners, as Job -> Pod or RayJob -> RayCluster -> Pod. A job
    of the same name that was deleted may have left pods of the same names and labels. Names and labels count
    only if an owner between the two, or the job itself, is not in the snapshot.
    """
    root = _root(snapshot, job)
    clusters = _ray_clusters(snapshot, job)
    owned = frozenset() if root is None else _owned(snapshot, uid_of(root))
    everything = [obj for obj in snapshot.objects if obj.get("kind") != "Event"]
    uids = {uid_of(obj) for obj in everything} - {""}

    def is_of_job(obj: Object) -> bool:
        if root is None or obj.get("kind") in _ABOUT_ALL:
            return _is_of(obj, job, clusters)
        owners = [str(owner.get("uid", "")) for owner in mappings(obj, "metadata", "ownerReferences")]
        if uid_of(obj) in owned or any(uid in owned for uid in owners):
            return True
        is_between_unseen = any(uid not in uids for uid in owners) and not _is_owned_by_kind(obj, root)
        return is_between_unseen and not _is_older(obj, root) and _is_of(obj, job, clusters)

    kept = [obj for obj in everything if is_of_job(obj)]
    own_uids = {uid_of(obj) for obj in kept}
    names = {name_of(obj) for obj in kept} | {job}
    other_jobs = _named_like(snapshot, job, clusters) - names

    def is_ours(name: str) -> bool:
        if name in names:
            return True
        # Event of a deleted pod, possibly of another job whose name begins with this one's.
        return _belongs(name, job) and not any(_belongs(name, other) for other in other_jobs)

    def is_event_ours(event: Object) -> bool:
        subject = subject_of(event)
        uid = str(subject.get("uid", ""))
        if root is not None and uid:
            if uid in own_uids or uid in uids:
                return uid in own_uids
            if subject.get("kind") == root.get("kind"):
                return False  # of a deleted job of the same name
        return is_ours(str(subject.get("name", "")))

    events = [obj for obj in snapshot.of("Event") if is_event_ours(obj)]
    logs = tuple(log for log in snapshot.logs if is_ours(log.pod))
    return replace(snapshot, objects=(*kept, *events), logs=logs)


def _root(snapshot: Snapshot, job: str) -> Object | None:
    """The object that represents the whole job, if it is in the snapshot."""
    roots = [
        candidate
        for candidate in snapshot.jobs
        if name_of(candidate) == job
        and uid_of(candidate)
        and not mappings(candidate, "metadata", "ownerReferences")
    ]
    return roots[0] if roots else None


def _owned(snapshot: Snapshot, root: str) -> frozenset[str]:
    """The uids of all that was made of it, directly or not."""
    owned = {root}
    todo = [obj for obj in snapshot.objects if obj.get("kind") != "Event" and uid_of(obj)]
    while True:
        new = {
            uid_of(obj)
            for obj in todo
            if any(owner.get("uid") in owned for owner in mappings(obj, "metadata", "ownerReferences"))
        }
        if new <= owned:
            return frozenset(owned)
        owned |= new


def _is_owned_by_kind(obj: Object, root: Object) -> bool:
    """Its owner is a job of this kind, and so another one than this."""
    return any(
        owner.get("kind") == root.get("kind") for owner in mappings(obj, "metadata", "ownerReferences")
    )


def _is_older(obj: Object, root: Object) -> bool:
    created, born = (read_time(mapping(it, "metadata").get("creationTimestamp")) for it in (obj, root))
    return created is not None and born is not None and created < born


def job_names(snapshot: Snapshot) -> list[str]:
    """Jobs in the recording: the objects themselves, or the labels of their pods."""
    named = {
        str(labels_of(pod)[label]) for pod in snapshot.pods for label in _OWNERS if label in labels_of(pod)
    }
    return sorted(named | {name_of(job) for job in snapshot.jobs})


def _named_like(snapshot: Snapshot, job: str, clusters: frozenset[str]) -> set[str]:
    """Names that begin like the job's, of objects that are not of it and of the jobs that own them."""
    alien = [obj for obj in snapshot.objects if obj.get("kind") != "Event" and not _is_of(obj, job, clusters)]
    labels = (*_OWNERS, _RAY_CLUSTER)
    owners = {str(labels_of(obj)[label]) for obj in alien for label in labels if label in labels_of(obj)}
    return {name for name in owners | {name_of(obj) for obj in alien} if _belongs(name, job)}


def _ray_clusters(snapshot: Snapshot, job: str) -> frozenset[str]:
    """RayClusters of a RayJob, by its status or by their labels. A RayCluster is its own."""
    names = [
        str(mapping(ray_job, "status").get("rayClusterName", ""))
        for ray_job in snapshot.of("RayJob")
        if name_of(ray_job) == job
    ]
    names += [
        name_of(ray_cluster)
        for ray_cluster in snapshot.of("RayCluster")
        if labels_of(ray_cluster).get("ray.io/originated-from-cr-name") == job
    ]
    return frozenset({job, *names} - {""})


def _is_of(obj: Object, job: str, clusters: frozenset[str]) -> bool:
    if obj.get("kind") in _ABOUT_ALL or name_of(obj) == job:
        return True
    named = [str(value) for name, value in labels_of(obj).items() if name in _OWNERS]
    if named:
        return job in named
    cluster = labels_of(obj).get(_RAY_CLUSTER)
    if isinstance(cluster, str):
        # Before the RayJob's status names its cluster, only the name identifies it.
        is_like_one = _belongs(cluster, job) and _MADE_BY_RAY_JOB.fullmatch(cluster[len(job) :]) is not None
        return cluster in clusters or (len(clusters) == 1 and is_like_one)
    owners = [owner for owner in mappings(obj, "metadata", "ownerReferences") if owner.get("kind") in _DIRECT]
    if owners:
        return any(owner.get("name") == job for owner in owners)
    return _belongs(name_of(obj), job)


def _belongs(name: str, job: str) -> bool:
    return name == job or name.startswith(f"{job}-")
