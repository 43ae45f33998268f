"""The manifest of the helper pod, and the reasons why it does not start.

It passes Pod Security "restricted", has no API token and a root that nobody writes to. It ends by itself when
nobody takes it away.
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
VOLUME, SCRATCH = "/volume", "/scratch"
DEADLINE_S = 6 * 3600
LABELS = {
    "app.kubernetes.io/name": "paceline",
    "app.kubernetes.io/component": "helper",
    "app.kubernetes.io/managed-by": "paceline",
}
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())  # finds those that were left
# Nothing that is waited for will change these.
_FINAL = {
    "ErrImageNeverPull": "the image is not on the node, and may not be pulled",
    "InvalidImageName": "the image's name is not one",
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "CreateContainerConfigError": "the container cannot be made",
    "CreateContainerError": "the container cannot be made",
    "RunContainerError": "the container does not start: has the image `sleep`?",
    "CrashLoopBackOff": "the container ends at once: has the image `sleep`?",
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


def helper_pod(name: str, wanted: HelperRequest) -> Object:
    only: Object = {"readOnly": True} if wanted.reads_only else {}
    about: Object = {
        "name": name,
        "namespace": wanted.namespace,
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
        "containers": [_container(wanted.image, only)],
        "volumes": [
            {"name": "volume", "persistentVolumeClaim": {"claimName": wanted.claim, **only}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


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
    states = [mapping(one, "state") for one in mappings(pod, "status", "containerStatuses")]
    is_going = mapping(pod, "metadata").get("deletionTimestamp") is not None
    return not is_going and bool(states) and all("running" in state for state in states)


def has_ended(pod: Mapping[str, object]) -> bool:
    return mapping(pod, "status").get("phase") in ("Succeeded", "Failed")


def why_not_running(pod: Mapping[str, object], events: Iterable[Mapping[str, object]]) -> Stuck:
    """In the cluster's own words, as far as it has said any."""
    status = mapping(pod, "status")
    if has_ended(pod):
        return Stuck(
            f"it ended: {status.get('reason') or status.get('message') or status.get('phase')}", True
        )
    for one in mappings(status, "containerStatuses"):
        waiting = mapping(one, "state", "waiting")
        reason = str(waiting.get("reason", ""))
        if reason in _FINAL:
            return Stuck(f"{_FINAL[reason]} ({reason}: {waiting.get('message') or 'no more is said'})", True)
    for one in mappings(status, "conditions"):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return Stuck(f"no node takes it: {one.get('message') or one.get('reason')}", False)
    warnings = [one for one in events if one.get("type") == "Warning"]
    if warnings:
        last = warnings[-1]
        return Stuck(f"{last.get('reason')}: {last.get('message')}", False)
    return Stuck(f"it is {status.get('phase') or 'Pending'}, and nothing more is said", False)


def written_claims(job: object) -> list[str]:
    """Of any kind of object that has pod templates somewhere inside."""
    found = [claim for spec in pod_specs(job) for claim in _claims(spec)]
    return list(dict.fromkeys(found))


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
