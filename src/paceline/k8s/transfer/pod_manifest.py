"""The manifest of the helper pod, and the reasons why it does not start.

It passes Pod Security "restricted", has no API token and a read-only root. It stops by itself if it is not
removed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from paceline.k8s.deploy.service import CONTAINER_SECURITY
from paceline.k8s.objects import GPU, mapping, mappings, pod_specs
from paceline.k8s.render.pod import USER
from paceline.plan.codec import Json

Object = dict[str, Json]

IMAGE = "busybox:1.37"
CONTAINER = "files"
VOLUME = "/volume"
SCRATCH = "/scratch"
DEADLINE_S = 6 * 3600
LABELS = {
    "app.kubernetes.io/name": "paceline",
    "app.kubernetes.io/component": "helper",
    "app.kubernetes.io/managed-by": "paceline",
}
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())  # finds those that were left
# Nothing that is waited for will change these.
_FINAL = {
    "ErrImageNeverPull": "the image is not on the node, and its pull policy is Never",
    "InvalidImageName": "the image's name is invalid",
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "CreateContainerConfigError": "the container cannot be created",
    "CreateContainerError": "the container cannot be created",
    "RunContainerError": "the container does not start: check that the image has `sleep`",
    "CrashLoopBackOff": "the container exits at once: check that the image has `sleep`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperRequest:
    namespace: str
    claim: str
    image: str = IMAGE
    reads_only: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    why: str
    is_final: bool


def helper_pod(name: str, request: HelperRequest) -> Object:
    only: Object = {"readOnly": True} if request.reads_only else {}
    metadata: Object = {
        "name": name,
        "namespace": request.namespace,
        "labels": dict(LABELS),
        "annotations": {"sidecar.istio.io/inject": "false"},
    }
    spec: Object = {
        "activeDeadlineSeconds": DEADLINE_S,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # A volume may be tied to a node that is kept for jobs with GPUs.
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [_container(request.image, only)],
        "volumes": [
            {"name": "volume", "persistentVolumeClaim": {"claimName": request.claim, **only}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(image: str, only: Object) -> Object:
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(DEADLINE_S)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "volume", "mountPath": VOLUME, **only},
            {"name": "scratch", "mountPath": SCRATCH},
        ],
    }


def is_running(pod: Mapping[str, object]) -> bool:
    states = [mapping(status, "state") for status in mappings(pod, "status", "containerStatuses")]
    is_going = mapping(pod, "metadata").get("deletionTimestamp") is not None
    return not is_going and bool(states) and all("running" in state for state in states)


def has_ended(pod: Mapping[str, object]) -> bool:
    return mapping(pod, "status").get("phase") in ("Succeeded", "Failed")


def why_not_running(pod: Mapping[str, object], events: Iterable[Mapping[str, object]]) -> Stuck:
    """The cluster's own messages, if there are any."""
    status = mapping(pod, "status")
    if has_ended(pod):
        return Stuck(
            f"it ended: {status.get('reason') or status.get('message') or status.get('phase')}", True
        )
    for status_entry in mappings(status, "containerStatuses"):
        waiting = mapping(status_entry, "state", "waiting")
        reason = str(waiting.get("reason", ""))
        if reason in _FINAL:
            return Stuck(f"{_FINAL[reason]} ({reason}: {waiting.get('message') or 'no details'})", True)
    for condition in mappings(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Stuck(
                f"it cannot be scheduled: {condition.get('message') or condition.get('reason')}", False
            )
    warnings = [event for event in events if event.get("type") == "Warning"]
    if warnings:
        last = warnings[-1]
        return Stuck(f"{last.get('reason')}: {last.get('message')}", False)
    return Stuck(f"it is {status.get('phase') or 'Pending'}, without further details", False)


def written_claims(job: object) -> list[str]:
    """Writable claims of any object that contains pod templates."""
    claims = [claim for spec in pod_specs(job) for claim in _claims(spec)]
    return list(dict.fromkeys(claims))


def _claims(spec: Mapping[str, object]) -> Iterator[str]:
    mounts = [
        mount for container in mappings(spec, "containers") for mount in mappings(container, "volumeMounts")
    ]
    # One volume may be mounted twice: its data to be read, and its results to be written.
    writable = {mount.get("name") for mount in mounts if not mount.get("readOnly")}
    only_read = {mount.get("name") for mount in mounts} - writable
    for volume in mappings(spec, "volumes"):
        claim = mapping(volume, "persistentVolumeClaim")
        if claim and not claim.get("readOnly") and volume.get("name") not in only_read:
            yield str(claim.get("claimName"))
