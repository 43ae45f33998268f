"""A snapshot of one job: pods, events, quotas, claims, nodes, child objects, and the ends of its logs.

Pods and events are required: without the right to list them there is no diagnosis, and the missing right is
raised. What else the server does not show is left out.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from paceline.k8s.client.api import (
    Api,
    ApiError,
    ForbiddenError,
    GoneError,
    Manifest,
    NotThereError,
    RefusedError,
    UnreachableError,
)
from paceline.k8s.diagnose.pods import condition, is_terminating, phase
from paceline.k8s.diagnose.recording import narrow_to_job
from paceline.k8s.diagnose.snapshot import Log, Object, Snapshot, event_time, name_of
from paceline.k8s.kinds import CLAIM, EVENT, JOB, JOB_SET, NODE, POD, QUOTA, RAY_CLUSTER, WORKLOAD, Kind
from paceline.k8s.objects import mapping, mappings, read_time

_TAIL = 400
# Objects that an operator derives from a job: pods belong to the job through these, and refusals of pods are
# reported only there.
_CHILDREN = {"RayJob": (RAY_CLUSTER, JOB), "TrainJob": (JOB_SET, JOB), "JobSet": (JOB,)}
_MOST_LOGS = 64  # of failed pods; more logs would repeat the same


def job_snapshot(
    api: Api, job: Manifest | None, name: str, namespace: str, *, now_s: float, logs: bool = True
) -> Snapshot:
    """`logs`: those of pods that failed or were restarted are read too. Raises ForbiddenError."""
    objects: list[Object] = [] if job is None else [job]
    for kind in (POD, EVENT):
        objects += api.find(kind, namespace).items
    for kind in (QUOTA, CLAIM, WORKLOAD):
        objects += _all(api, kind, namespace)
    if job is not None:
        objects += children(api, {str(job.get("kind"))}, namespace)
    if any(_asks_for_nodes(obj) for obj in objects if obj.get("kind") == "Pod"):
        objects += _all(api, NODE, None)
    born_s = read_time(mapping(job, "metadata").get("creationTimestamp")) if job is not None else None
    kept = tuple(obj for obj in objects if not _is_older(obj, born_s))
    seen = narrow_to_job(Snapshot(at_s=now_s, objects=kept), name)
    if not logs:
        return seen
    ray_failed = mapping(job, "status").get("jobStatus") == "FAILED"
    ends = [log for pod in seen.pods[:_MOST_LOGS] for log in _ends(api, pod, namespace, driver=ray_failed)]
    return Snapshot(at_s=seen.at_s, objects=seen.objects, logs=tuple(ends))


def children(api: Api, kinds: Collection[str], namespace: str | None) -> list[Object]:
    """Objects that operators make of jobs of these kinds, and through which pods belong to the jobs."""
    child_kinds = dict.fromkeys(child for kind in kinds for child in _CHILDREN.get(kind, ()))
    return [obj for child in child_kinds for obj in _all(api, child, namespace)]


def with_all_logs(api: Api, snapshot: Snapshot, namespace: str) -> Snapshot:
    """The same with the end of every container's log: what is to be kept before pods are removed."""
    logs: list[Log] = []
    for pod in snapshot.pods[:_MOST_LOGS]:
        for of in ("initContainerStatuses", "containerStatuses"):
            for status in mappings(pod, "status", of):
                container = str(status.get("name", ""))
                logs += _log(api, name_of(pod), namespace, container, previous=False)
                if mapping(status, "lastState", "terminated"):
                    logs += _log(api, name_of(pod), namespace, container, previous=True)
    read = {(log.pod, log.container, log.previous) for log in logs}
    kept = [log for log in snapshot.logs if (log.pod, log.container, log.previous) not in read]
    return replace(snapshot, logs=(*kept, *logs))


def _asks_for_nodes(pod: Object) -> bool:
    """It has no place, or what becomes of it depends on its node: a kubelet that is lost reports nothing."""
    is_unready = condition(pod, "Ready").get("status") == "False" and phase(pod) == "Running"
    return phase(pod) == "Pending" or is_unready or is_terminating(pod)


def _is_older(obj: Object, born_s: float | None) -> bool:
    """Events stay for an hour, and pods of the next attempt have the names of the last."""
    if born_s is None or obj.get("kind") != "Event":
        return False
    at_s = event_time(obj)
    return at_s is not None and at_s < born_s


def _all(api: Api, kind: Kind, namespace: str | None) -> list[Object]:
    try:
        return list(api.find(kind, namespace).items)
    except (ForbiddenError, NotThereError):
        return []


def _ends(api: Api, pod: Object, namespace: str, *, driver: bool = False) -> list[Log]:
    """`driver`: the job is a RayJob that failed; the pod that submitted it succeeds, and has the log."""
    logs: list[Log] = []
    for status in mappings(pod, "status", "containerStatuses"):
        container = str(status.get("name", ""))
        now_ended = bool(mapping(status, "state", "terminated"))
        before_ended = bool(mapping(status, "lastState", "terminated"))
        is_bad = mapping(status, "state", "terminated").get("exitCode") != 0
        if (now_ended and (is_bad or driver)) or phase(pod) == "Failed":
            logs += _log(api, name_of(pod), namespace, container, previous=False)
        elif before_ended and not now_ended:
            logs += _log(api, name_of(pod), namespace, container, previous=True)
    return logs


def _log(api: Api, pod: str, namespace: str, container: str, *, previous: bool) -> list[Log]:
    try:
        lines = list(api.logs(pod, namespace, container, tail=_TAIL, previous=previous))
    except (NotThereError, ForbiddenError, RefusedError, UnreachableError):  # a node that is lost has none
        return []
    return [Log(pod=pod, container=container, text="\n".join(lines), previous=previous)] if lines else []


# A watch is only a wakeup. The state is read again each time, so nothing is lost when a watch is cut or the
# server has dropped its history (410): that is a wakeup too, because anything may have changed.

_PAUSE_S = 2.0
_BREATH_S = 0.2
_WATCH_S = 50.0


@dataclass(slots=True)
class ChangeWatch:
    api: Api
    namespace: str
    job: str
    ring: Callable[[], None]
    _over: threading.Event = field(default_factory=threading.Event)

    def listen(self, *kinds: Kind) -> None:
        for kind in kinds:
            threading.Thread(
                target=self._listen, args=(kind,), name=f"watch {kind.plural}", daemon=True
            ).start()

    def close(self) -> None:
        """Threads end with their next word from the server, or with the process."""
        self._over.set()

    def _listen(self, kind: Kind) -> None:
        since = ""
        while not self._over.is_set():
            try:
                if not since:
                    since = self.api.find(kind, self.namespace).version
                    self.ring()
                for change in self.api.watch(kind, self.namespace, since=since, seconds=_WATCH_S):
                    if self._over.is_set():
                        return
                    since = change.version
                    if name_of(change.object).startswith(self.job):
                        self.ring()
                self._over.wait(_BREATH_S)  # a server that ends every watch at once is not run down
            except GoneError:
                since = ""
            except (ForbiddenError, NotThereError):  # polling must suffice
                return
            except ApiError:  # cut off, or a login that is being renewed
                self._over.wait(_PAUSE_S)
