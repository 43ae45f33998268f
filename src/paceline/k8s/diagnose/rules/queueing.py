"""Quota of the namespace, and of the queue. Rows 6 to 8."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal

from paceline.k8s.diagnose.findings import Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import condition, phase
from paceline.k8s.diagnose.snapshot import Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import mapping, mappings, read_quantity, read_time

QUOTA = Failure(
    number=6,
    name="quota",
    what="the namespace's quota is used up",
    kind=FailureClass.CONFIG,
    cause="pods are not created, because quota {quota} of the namespace does not allow it{numbers}",
    why="a ResourceQuota counts the requests of all pods of the namespace; this job would exceed it",
    command="kubectl describe resourcequota {quota} -n {namespace}",
    remedy=Remedy.STOP,
)
QUOTA_IN_USE = replace(
    QUOTA,
    what="other jobs use the namespace's quota",
    kind=FailureClass.WAIT,
    cause="pods are not created yet, because other pods use up quota {quota} of the namespace{numbers}",
    why="the quota is large enough for the pod; its controller creates it as soon as others have ended",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
QUEUE_WAITING = Failure(
    number=7,
    name="queue-waiting",
    what="the queue has not admitted the job yet",
    kind=FailureClass.WAIT,
    cause="the job waits in queue {queue}{position}: {detail}",
    why="Kueue keeps a job suspended until its queue has quota for all of its pods",
    command="kubectl get workloads -n {namespace} --sort-by=.metadata.creationTimestamp",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
QUEUE_NEVER = Failure(
    number=8,
    name="queue-never",
    what="the queue can never admit the job",
    kind=FailureClass.CONFIG,
    cause="queue {queue} can never admit the job: {detail}",
    why="it requests more than the queue's maximum, or a resource that the queue does not have",
    command="kubectl describe clusterqueue",
    remedy=Remedy.STOP,
)
ROWS = (QUOTA, QUOTA_IN_USE, QUEUE_WAITING, QUEUE_NEVER)

_NUMBERS = re.compile(r"requested: (?P<requested>.*?), used: .*?, limited: (?P<limited>[^\"\n]*)")
_AMOUNT = re.compile(r"([\w./-]+)=([\w.]+)")


def _quota(values: Mapping[str, str], held: Mapping[str, Decimal] | None = None) -> Failure:
    """A pod that fits together with the pods of its own job (`held`) waits for others to end; one that does
    not is refused permanently."""
    match = _NUMBERS.search(values.get("numbers", ""))
    if match is None:
        return QUOTA
    limited = dict(_AMOUNT.findall(match["limited"]))
    fits = []
    for name, amount in _AMOUNT.findall(match["requested"]):
        needs = read_quantity(amount)
        has = read_quantity(limited.get(name))
        own = (held or {}).get(name, Decimal(0))
        fits.append(needs is not None and has is not None and needs + own <= has)
    return QUOTA_IN_USE if fits and all(fits) else QUOTA


def with_own_pods(sign: Sign, snapshot: Snapshot) -> Sign:
    """Add the usage of the job's own pods, which is not released before the job is complete."""
    if sign.failure is not QUOTA_IN_USE:
        return sign
    held: dict[str, Decimal] = {}
    for pod in snapshot.pods:
        if phase(pod) in ("Succeeded", "Failed"):
            continue
        held["pods"] = held.get("pods", Decimal(0)) + 1
        for container in mappings(pod, "spec", "containers"):
            for sort in ("requests", "limits"):
                for name, written in mapping(container, "resources", sort).items():
                    amount = read_quantity(written) or Decimal(0)
                    for key in (f"{sort}.{name}", *((name,) if sort == "requests" else ())):
                        held[key] = held.get(key, Decimal(0)) + amount
    return replace(sign, failure=_quota(sign.values, held))


_SOURCES = (Source.API, Source.CLUSTER)
TEXTS = (
    text(
        QUOTA,
        r"exceeded quota: (?P<quota>[\w.-]+)(?P<numbers>, requested: .*?, used: .*?, limited: [^\"\n]*)?",
        *_SOURCES,
        choose=_quota,
    ),
    text(QUOTA, r"failed quota: (?P<quota>[\w.-]+)(?P<numbers>: must specify [\w.,/-]+)", *_SOURCES),
    text(QUEUE_NEVER, r"(?P<detail>(?:insufficient quota|request).{0,120}> maximum capacity.*)", *_SOURCES),
    text(QUEUE_NEVER, r"(?P<detail>resource \S+ unavailable in ClusterQueue)", *_SOURCES),
    text(
        QUEUE_NEVER,
        r"(?P<detail>(?:LocalQueue|ClusterQueue) \S* ?(?:doesn't exist|does not exist|is inactive).*)",
        *_SOURCES,
    ),
    text(QUEUE_NEVER, r"(?P<detail>ExceedsMaxQuota|NoMatchingFlavor)", *_SOURCES),
    text(
        QUEUE_NEVER,
        r"(?P<detail>[Ww]orkload[^\n]*(?:is deactivated|has been deactivated|inadmissible)[^\n]*"
        r"|queue \S+ (?:not found|does not exist|is (?:closed"
        r"|not open))[^\n]*|(?:can't|cannot) find queue[^\n]*)",
        *_SOURCES,
    ),
    text(
        QUEUE_WAITING,
        r"(?P<detail>pod ?group is not ready[^\n]*|\d+/\d+ tasks in gang unschedulable[^\n]*"
        r"|NotEnoughResources[^\n]*|[Ww]orkload[^\n]*(?:requeued|backing off)[^\n]*"
        r"|EvictedDueToPodsReadyTimeout[^\n]*|Exceeded the PodsReady timeout[^\n]*|queue resource quota "
        r"insufficient[^\n]*|ClusterQueue \S* ?is stopped[^\n]*)",
        *_SOURCES,
    ),
    # Kueue puts a workload that it preempts back into its queue.
    text(
        QUEUE_WAITING,
        r"(?P<detail>Preempted to accommodate a workload[^\n]*(?:ClusterQueue|cohort)[^\n]*)",
        *_SOURCES,
    ),
    text(QUEUE_WAITING, r"(?P<detail>insufficient unused quota.*)", *_SOURCES),
    text(QUEUE_WAITING, r"(?P<detail>couldn't assign flavors to pod set.*)", *_SOURCES),
)
_NEVER = ("ExceedsMaxQuota", "NoMatchingFlavor", "Inadmissible")
_QUEUE = "kueue.x-k8s.io/queue-name"


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    for workload in snapshot.of("Workload"):
        yield from _workload(workload, snapshot)
    yield from _jobs_without_workload(snapshot)


def _workload(workload: Object, snapshot: Snapshot) -> Iterator[Sign]:
    reserved = condition(workload, "QuotaReserved")
    if reserved.get("status") != "False":
        return
    message = str(reserved.get("message", ""))
    reason = str(reserved.get("reason", ""))
    queue = str(mapping(workload, "spec").get("queueName", ""))
    line = f"Workload/{name_of(workload)} QuotaReserved=False, {reason}: {message}"
    at_s = read_time(reserved.get("lastTransitionTime"))
    values = {"queue": queue, "detail": message or reason}
    forever = reason in _NEVER or any(
        row.words.search(message) for row in TEXTS if row.failure is QUEUE_NEVER
    )
    if forever:
        yield Sign(QUEUE_NEVER, (line,), at_s=at_s, values=values)
        return
    position = mapping(workload, "status").get("position")
    known = (
        {"position": f" at position {position}"}
        if isinstance(position, int)
        else _queue_position(workload, snapshot)
    )
    yield Sign(QUEUE_WAITING, (line,), at_s=at_s, values={**values, **known})


def _queue_position(workload: Object, snapshot: Snapshot) -> dict[str, str]:
    """How many are before it, among those that were seen."""
    queue = mapping(workload, "spec").get("queueName")
    created = str(mapping(workload, "metadata").get("creationTimestamp", ""))
    older = [
        workload
        for workload in snapshot.of("Workload")
        if mapping(workload, "spec").get("queueName") == queue
        and condition(workload, "QuotaReserved").get("status") == "False"
        and str(mapping(workload, "metadata").get("creationTimestamp", "")) < created
    ]
    return {"position": f" behind {len(older)} others"} if older else {}


def _jobs_without_workload(snapshot: Snapshot) -> Iterator[Sign]:
    """Suspended for a queue, but Kueue made no Workload of it: its integration of this kind is off."""
    owned = {str(owner.get("name")) for workload in snapshot.of("Workload") for owner in _owners(workload)}
    for job in snapshot.jobs:
        queue = labels_of(job).get(_QUEUE)
        spec = mapping(job, "spec")
        suspended = spec.get("suspend") is True or mapping(spec, "runPolicy").get("suspend") is True
        born = read_time(mapping(job, "metadata").get("creationTimestamp"))
        old = born is None or snapshot.at_s - born > 30
        if suspended and queue and old and name_of(job) not in owned:
            message = f"Kueue created no Workload for this {job.get('kind')}: its integration is off"
            line = f"{job.get('kind')}/{name_of(job)} is suspended, and has no Workload"
            yield Sign(QUEUE_NEVER, (line,), at_s=born, values={"queue": str(queue), "detail": message})


def _owners(obj: Object) -> list[Object]:
    owners = mapping(obj, "metadata").get("ownerReferences")
    return [owner for owner in owners if isinstance(owner, dict)] if isinstance(owners, list) else []
