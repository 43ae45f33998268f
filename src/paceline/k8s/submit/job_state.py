"""State that a job carries in labels and annotations, so that any machine can follow it.

The cluster is the only memory: who submitted it, which attempt this is, what failed before, what it looked
like when it was sent, what came with it, and who watches it until when.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.k8s.diagnose.pods import conditions, is_terminating, newest_checkpoint, phase
from paceline.k8s.diagnose.retry import Attempts, Fingerprint, RetryPolicy
from paceline.k8s.diagnose.snapshot import Object, Snapshot
from paceline.k8s.objects import COMMAND_RESTARTS, mapping, mappings, pod_specs, read_time, write_time
from paceline.plan.codec import Json

PREFIX = "paceline.dev/"
RUN_LABEL = f"{PREFIX}run"  # a label of every job that paceline submitted
_SENT = f"{PREFIX}sent"
_MANIFEST = f"{PREFIX}manifest"
_BESIDE = f"{PREFIX}beside"
KEEPS_CHECKPOINTS = f"{PREFIX}keeps-checkpoints"
_ATTEMPTS = f"{PREFIX}attempts"
_POLICY = f"{PREFIX}retries"
_WATCHER = f"{PREFIX}watcher"
_UNTIL = f"{PREFIX}watched-until"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnnotations:
    manifest: Mapping[str, object]  # as first submitted, without annotations
    sent_s: float = 0.0
    attempts: Attempts = field(default_factory=Attempts)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    beside: tuple[str, ...] = ()  # made with it, to go with it: apiVersion Kind name
    keeps: bool = True  # its output outlives its pods, as far as is known


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLease:
    """Lease of the one watcher that may start a job again, with its expiry."""

    watcher: str
    until_s: float

    def is_on(self, now_s: float) -> bool:
        return bool(self.watcher) and now_s < self.until_s


def annotate(manifest: Object, mark: JobAnnotations) -> dict[str, object]:
    """The manifest with the mark on it. What was on it already stays."""
    metadata = mapping(manifest, "metadata")
    labels = {**mapping(metadata, "labels"), RUN_LABEL: str(metadata.get("name", ""))[:63]}
    notes = {**mapping(metadata, "annotations"), **_written(mark)}
    return {**manifest, "metadata": {**metadata, "labels": labels, "annotations": notes}}


def _written(mark: JobAnnotations) -> dict[str, str]:
    attempts = mark.attempts
    policy = mark.policy
    past: dict[str, Json] = {
        "number": attempts.number,
        "infra_used": attempts.infra_used,
        "app_used": attempts.app_used,
        "failures": [[failure.failure, failure.rank, failure.step] for failure in attempts.failures],
        "excluded": list(attempts.excluded),
        "changes": list(attempts.changes),
    }
    budget: dict[str, Json] = {"infra": policy.infra, "app": policy.app, "pending_s": policy.pending_s}
    budget["first_delay_s"] = policy.first_delay_s
    budget["changes"] = [*sorted(policy.allowed_changes)]
    return {
        _SENT: write_time(mark.sent_s),
        _ATTEMPTS: _short(past),
        _POLICY: _short(budget),
        _BESIDE: _short(list(mark.beside)),
        KEEPS_CHECKPOINTS: "yes" if mark.keeps else "no",
        _MANIFEST: json.dumps(mark.manifest, separators=(",", ":")),
    }


def read_annotations(job: Object) -> JobAnnotations | None:
    """None for a job that paceline did not submit, or whose annotations are damaged."""
    notes = mapping(job, "metadata", "annotations")
    try:
        manifest = json.loads(str(notes[_MANIFEST]))
        past = json.loads(str(notes[_ATTEMPTS]))
        budget = json.loads(str(notes[_POLICY]))
        companions = json.loads(str(notes[_BESIDE]))
        return JobAnnotations(
            manifest=manifest,
            sent_s=read_time(notes.get(_SENT)) or 0.0,
            attempts=_attempts(past),
            policy=RetryPolicy(
                infra=int(budget["infra"]),
                app=int(budget["app"]),
                pending_s=None if budget["pending_s"] is None else float(budget["pending_s"]),
                first_delay_s=float(budget["first_delay_s"]),
                allowed_changes=frozenset(map(str, budget["changes"])),
            ),
            beside=tuple(map(str, companions)),
            keeps=notes.get(KEEPS_CHECKPOINTS) != "no",
        )
    except (KeyError, ValueError, TypeError):
        return None


def _attempts(past: Mapping[str, object]) -> Attempts:
    failures = past["failures"]
    assert isinstance(failures, list), "the mark holds a list of failures"
    return Attempts(
        number=int(str(past["number"])),
        infra_used=int(str(past["infra_used"])),
        app_used=int(str(past["app_used"])),
        failures=tuple(Fingerprint(str(name), rank, step) for name, rank, step in failures),
        excluded=_texts(past["excluded"]),
        changes=_texts(past["changes"]),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, Sequence) else ()


def read_lease(job: Object) -> WatchLease:
    notes = mapping(job, "metadata", "annotations")
    return WatchLease(watcher=str(notes.get(_WATCHER, "")), until_s=read_time(notes.get(_UNTIL)) or 0.0)


def lease_patch(watch: WatchLease | None, version: str = "") -> dict[str, Json]:
    """A merge patch; with a version it fails after a concurrent change. None: the lease is released."""
    notes: dict[str, Json] = {_WATCHER: None, _UNTIL: None}
    if watch is not None:
        notes = {_WATCHER: watch.watcher, _UNTIL: write_time(watch.until_s)}
    metadata: dict[str, Json] = {"annotations": notes}
    if version:
        metadata["resourceVersion"] = version
    return {"metadata": metadata}


def _short(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


# Pods end before the job's controller reports the end of the job. A job whose pods have started is running
# until the controller reports otherwise, so that the phase does not return to pending in between.


class Phase(StrEnum):
    QUEUED = "queued"  # suspended, by a queue or by a person
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BETWEEN = "between two attempts"
    GONE = "gone"

    @property
    def is_over(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE)


_GOOD = ("Succeeded", "Complete", "Completed")
_STARTED = ("Running", "Succeeded", "Failed")
_AT_WORK = ("Initializing", "Waiting", "Running", "Retrying")
_RAY = {"SUCCEEDED": Phase.SUCCEEDED, "FAILED": Phase.FAILED, "STOPPED": Phase.FAILED}


def phase_of(job: Object | None, pods: Sequence[Object]) -> Phase:
    if job is None:
        return Phase.GONE
    types = {str(condition.get("type")) for condition in conditions(job) if condition.get("status") == "True"}
    if types & set(_GOOD):
        return Phase.SUCCEEDED
    if "Failed" in types:
        return Phase.FAILED
    status = mapping(job, "status")
    spec = mapping(job, "spec")
    deployed = status.get("jobDeploymentStatus")
    of_ray = _RAY.get(str(status.get("jobStatus", "")))
    # KubeRay's last word is its own status: a program that failed may be started again.
    if of_ray is not None and not (deployed in _AT_WORK and has_own_retries(job)):
        return of_ray
    if deployed in ("Failed", "ValidationFailed"):
        return Phase.FAILED
    if spec.get("suspend") is True or mapping(spec, "runPolicy").get("suspend") is True:
        return Phase.QUEUED
    if job.get("kind") == "RayJob" and deployed in (None, "", "Initializing", "Waiting", "Retrying"):
        return Phase.PENDING  # Ray's head runs, and the rest does not yet
    return Phase.RUNNING if any(phase(pod) in _STARTED for pod in pods) else Phase.PENDING


def shown_phase(before: Phase, now: Phase, pods: Sequence[Object]) -> Phase:
    """Phase shown after `before`: a job returns to pending only if pods of it wait to start again."""
    if before is Phase.RUNNING and now is Phase.PENDING:
        waiting = [pod for pod in pods if phase(pod) == "Pending" and not is_terminating(pod)]
        return now if waiting else before
    return now


def repairs_itself(job: Object) -> bool:
    """KubeRay replaces lost pods of a cluster, and a run on Ray may continue without them."""
    return job.get("kind") in ("RayJob", "RayCluster")


def has_own_retries(job: Object) -> bool:
    """True if its operator restarts it, or the pod of its command."""
    if COMMAND_RESTARTS in mapping(job, "metadata", "annotations"):
        return True
    spec = mapping(job, "spec")
    counts = [
        spec.get("backoffLimit"),
        mapping(spec, "runPolicy").get("backoffLimit"),
        mapping(spec, "runPolicy").get("jobMaxRetryCount"),
        mapping(spec, "elasticPolicy").get("maxRestarts"),
    ]
    return any(isinstance(count, int) and count > 0 for count in counts)


# They are made with a pod, or cannot be written to.
_GO_WITH_PODS = ("emptyDir", "configMap", "secret", "projected", "downwardAPI", "image")
_STORES = ("s3://", "gs://", "az://", "hf://")
NO_CHECKPOINT_VOLUME = (
    "no volume for checkpoints, so a restart begins at step 0; render it with --checkpoint-volume CLAIM"
)


def resumes_from(snapshot: Snapshot, job: Object) -> int | None:
    """The step of the newest checkpoint that is still there; 0 where none is kept; None: unknown."""
    return newest_checkpoint(snapshot) if keeps_checkpoints(job) else 0


def keeps_checkpoints(job: Object) -> bool:
    """As recorded at submission, or else as its spec shows."""
    annotation = mapping(job, "metadata", "annotations").get(KEEPS_CHECKPOINTS)
    return annotation == "yes" if annotation is not None else manifests_keep_checkpoints([job])


def manifests_keep_checkpoints(manifests: Sequence[Object]) -> bool:
    """True also if unknown: the volumes of a cluster's runtime are not in the manifests."""
    pods = [pod for manifest in manifests for pod in pod_specs(mapping(manifest, "spec"))]
    if not pods:
        return True
    text = str(
        [mapping(manifest, "spec") for manifest in manifests]
    )  # a store is a word of a command, or a variable
    return any(_keeps(pod) for pod in pods) or any(store in text for store in _STORES)


def _keeps(pod: Object) -> bool:
    lasting = {
        str(volume.get("name"))
        for volume in mappings(pod, "volumes")
        if not any(kind in volume for kind in _GO_WITH_PODS)
        and mapping(volume, "persistentVolumeClaim").get("readOnly") is not True
    }
    return any(
        mount.get("name") in lasting and mount.get("readOnly") is not True
        for container in mappings(pod, "containers")
        for mount in mappings(container, "volumeMounts")
    )
