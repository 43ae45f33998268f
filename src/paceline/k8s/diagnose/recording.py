"""Reader of recordings: `kubectl get … -o json`, or the same with logs, times and responses around it.

A list of objects is enough. When a recording does not say when it was made, its newest time is taken for it.
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
    """`where` is the file's name, for messages; `logs` come on top of those in it."""
    if not isinstance(value, dict):
        raise ManifestError([Problem("a recording is one JSON object, and this is none", _HINT, where)])
    objects = _objects(value)
    answers = tuple(_answer(one) for one in mappings(value, "answers"))
    removals = tuple(_removal(one) for one in mappings(value, "watch") if one.get("type") == "DELETED")
    told = (*(_log(one) for one in mappings(value, "logs")), *logs)
    if not (objects or answers or removals or told):
        raise ManifestError([Problem("the recording holds no objects, logs or answers", _HINT, where)])
    at_s = _number(value.get("at")) or newest_time(list(objects)) or 0.0
    listed = value.get("listed_exit_codes")
    return Snapshot(
        at_s=at_s,
        objects=objects,
        logs=told,
        answers=answers,
        removals=removals,
        client=str(value.get("client", "")),
        listed_exit_codes=frozenset(one for one in listed if isinstance(one, int))
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
    for one in objects:
        flat += _flat(mappings(one, "items")) if "items" in one else [one]
    return tuple(flat)


def _log(one: Object) -> Log:
    text = one.get("text", "")
    lines = [str(line) for line in text] if isinstance(text, list) else [str(text)]
    return Log(
        pod=str(one.get("pod", "")),
        container=str(one.get("container", "")),
        text="\n".join(lines),
        previous=one.get("previous") is True,
    )


def _answer(one: Object) -> Answer:
    body = mapping(one, "body")
    code = one.get("code", body.get("code"))
    return Answer(
        verb=str(one.get("verb", "")),
        code=code if isinstance(code, int) else 0,
        message=str(body.get("message", one.get("message", ""))),
        reason=str(body.get("reason", "")),
        path=str(one.get("path", "")),
        at_s=_number(one.get("at")),
        retry_after_s=_number(mapping(one, "headers").get("Retry-After")),
    )


def _removal(one: Object) -> Removal:
    return Removal(subject=mapping(one, "object"), ours=one.get("ours") is True, at_s=_number(one.get("at")))


def _number(value: object) -> float | None:
    """Seconds, as a number or as a time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.replace(".", "", 1).isdigit():
        return float(value)
    return read_time(value)


def narrow_to_job(snapshot: Snapshot, job: str) -> Snapshot:
    """What belongs to one job of a namespace, and what is there for all: nodes and quotas.

    Pods belong to a job through the uids of their owners, as Job -> Pod or RayJob -> RayCluster -> Pod. A job
    of the same name that was deleted may have left pods of the same names and labels. Names and labels count
    only where an owner between the two was not seen, or where the job itself was not.
    """
    root = _root(snapshot, job)
    clusters = _ray_clusters(snapshot, job)
    owned = frozenset() if root is None else _owned(snapshot, uid_of(root))
    everything = [one for one in snapshot.objects if one.get("kind") != "Event"]
    uids = {uid_of(one) for one in everything} - {""}

    def is_of_job(one: Object) -> bool:
        if root is None or one.get("kind") in _ABOUT_ALL:
            return _is_of(one, job, clusters)
        owners = [str(owner.get("uid", "")) for owner in mappings(one, "metadata", "ownerReferences")]
        if uid_of(one) in owned or any(uid in owned for uid in owners):
            return True
        is_between_unseen = any(uid not in uids for uid in owners) and not _is_owned_by_kind(one, root)
        return is_between_unseen and not _is_older(one, root) and _is_of(one, job, clusters)

    kept = [one for one in everything if is_of_job(one)]
    mine = {uid_of(one) for one in kept}
    names = {name_of(one) for one in kept} | {job}
    others = _named_like(snapshot, job, clusters) - names

    def is_ours(name: str) -> bool:
        if name in names:
            return True
        # Of a pod that is gone; but it may have been of another job, whose name begins like this one's.
        return _belongs(name, job) and not any(_belongs(name, other) for other in others)

    def is_event_ours(event: Object) -> bool:
        subject = subject_of(event)
        uid = str(subject.get("uid", ""))
        if root is not None and uid:
            if uid in mine or uid in uids:
                return uid in mine
            if subject.get("kind") == root.get("kind"):
                return False  # of a job of the same name that is gone
        return is_ours(str(subject.get("name", "")))

    events = [one for one in snapshot.of("Event") if is_event_ours(one)]
    logs = tuple(log for log in snapshot.logs if is_ours(log.pod))
    return replace(snapshot, objects=(*kept, *events), logs=logs)


def _root(snapshot: Snapshot, job: str) -> Object | None:
    """The object that stands for the whole job, if it was seen."""
    found = [
        one
        for one in snapshot.jobs
        if name_of(one) == job and uid_of(one) and not mappings(one, "metadata", "ownerReferences")
    ]
    return found[0] if found else None


def _owned(snapshot: Snapshot, root: str) -> frozenset[str]:
    """The uids of all that was made of it, directly or not."""
    owned = {root}
    todo = [one for one in snapshot.objects if one.get("kind") != "Event" and uid_of(one)]
    while True:
        new = {
            uid_of(one)
            for one in todo
            if any(owner.get("uid") in owned for owner in mappings(one, "metadata", "ownerReferences"))
        }
        if new <= owned:
            return frozenset(owned)
        owned |= new


def _is_owned_by_kind(one: Object, root: Object) -> bool:
    """Its owner is a job of this kind, and so another one than this."""
    return any(
        owner.get("kind") == root.get("kind") for owner in mappings(one, "metadata", "ownerReferences")
    )


def _is_older(one: Object, root: Object) -> bool:
    made, born = (read_time(mapping(it, "metadata").get("creationTimestamp")) for it in (one, root))
    return made is not None and born is not None and made < born


def job_names(snapshot: Snapshot) -> list[str]:
    """Jobs that the recording knows of: by themselves, or by the labels of their pods."""
    named = {
        str(labels_of(pod)[label]) for pod in snapshot.pods for label in _OWNERS if label in labels_of(pod)
    }
    return sorted(named | {name_of(job) for job in snapshot.jobs})


def _named_like(snapshot: Snapshot, job: str, clusters: frozenset[str]) -> set[str]:
    """Names that begin like the job's, of objects that are not of it and of the jobs that own them."""
    alien = [one for one in snapshot.objects if one.get("kind") != "Event" and not _is_of(one, job, clusters)]
    labels = (*_OWNERS, _RAY_CLUSTER)
    owners = {str(labels_of(one)[label]) for one in alien for label in labels if label in labels_of(one)}
    return {name for name in owners | {name_of(one) for one in alien} if _belongs(name, job)}


def _ray_clusters(snapshot: Snapshot, job: str) -> frozenset[str]:
    """Those of a RayJob: as it says itself, or as its cluster says. A RayCluster is its own."""
    said = [
        str(mapping(one, "status").get("rayClusterName", ""))
        for one in snapshot.of("RayJob")
        if name_of(one) == job
    ]
    said += [
        name_of(one)
        for one in snapshot.of("RayCluster")
        if labels_of(one).get("ray.io/originated-from-cr-name") == job
    ]
    return frozenset({job, *said} - {""})


def _is_of(one: Object, job: str, clusters: frozenset[str]) -> bool:
    if one.get("kind") in _ABOUT_ALL or name_of(one) == job:
        return True
    named = [str(value) for name, value in labels_of(one).items() if name in _OWNERS]
    if named:
        return job in named
    cluster = labels_of(one).get(_RAY_CLUSTER)
    if isinstance(cluster, str):
        # Before the RayJob says which cluster is its own, only the name tells.
        is_like_one = _belongs(cluster, job) and _MADE_BY_RAY_JOB.fullmatch(cluster[len(job) :]) is not None
        return cluster in clusters or (len(clusters) == 1 and is_like_one)
    owners = [owner for owner in mappings(one, "metadata", "ownerReferences") if owner.get("kind") in _DIRECT]
    if owners:
        return any(owner.get("name") == job for owner in owners)
    return _belongs(name_of(one), job)


def _belongs(name: str, job: str) -> bool:
    return name == job or name.startswith(f"{job}-")
