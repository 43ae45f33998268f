"""Phase of a job: one word, from its own status and its pods, for every operator that writes them.

Pods end before the job's controller says how the job ended. A job whose pods have started is running until
the controller says otherwise, so that the phase does not go back to pending in between.
"""

from collections.abc import Sequence
from enum import StrEnum

from paceline.kube.diagnosis.pods import conditions, is_terminating, phase
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
_STARTED = ("Running", "Succeeded", "Failed")
_AT_WORK = ("Initializing", "Waiting", "Running", "Retrying")
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
    """What is shown after `before`: a job goes back to pending only if pods of it wait to start again."""
    if before is Phase.RUNNING and now is Phase.PENDING:
        waiting = [pod for pod in pods if phase(pod) == "Pending" and not is_terminating(pod)]
        return now if waiting else before
    return now


def repairs_itself(job: Object) -> bool:
    """KubeRay replaces lost pods of a cluster, and a run on Ray may continue without them."""
    return job.get("kind") in ("RayJob", "RayCluster")


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
