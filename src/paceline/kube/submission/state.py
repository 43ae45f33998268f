"""How far is a job? One word, from its own status and its pods, whichever operator wrote them."""

from collections.abc import Sequence
from enum import StrEnum

from paceline.kube.diagnosis.pods import conditions, phase
from paceline.kube.diagnosis.snapshot import Object
from paceline.kube.reading import mapping


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
_RAY = {"SUCCEEDED": Phase.SUCCEEDED, "FAILED": Phase.FAILED, "STOPPED": Phase.FAILED}


def phase_of(job: Object | None, pods: Sequence[Object]) -> Phase:
    if job is None:
        return Phase.GONE
    told = {str(one.get("type")) for one in conditions(job) if one.get("status") == "True"}
    if told & set(_GOOD):
        return Phase.SUCCEEDED
    if "Failed" in told:
        return Phase.FAILED
    status, spec = mapping(job, "status"), mapping(job, "spec")
    of_ray = _RAY.get(str(status.get("jobStatus", "")))
    if of_ray is not None:
        return of_ray
    if status.get("jobDeploymentStatus") in ("Failed", "ValidationFailed"):
        return Phase.FAILED
    if status.get("jobDeploymentStatus") in ("Initializing", "Waiting"):
        return Phase.PENDING  # Ray's head runs, and the rest does not yet
    if spec.get("suspend") is True or mapping(spec, "runPolicy").get("suspend") is True:
        return Phase.QUEUED
    return Phase.RUNNING if any(phase(pod) == "Running" for pod in pods) else Phase.PENDING


def has_own_retries(job: Object) -> bool:
    """Does its operator start it again by itself?"""
    spec = mapping(job, "spec")
    counts = [
        spec.get("backoffLimit"),
        mapping(spec, "runPolicy").get("backoffLimit"),
        mapping(spec, "runPolicy").get("jobMaxRetryCount"),
        mapping(spec, "elasticPolicy").get("maxRestarts"),
    ]
    return any(isinstance(count, int) and count > 0 for count in counts)
