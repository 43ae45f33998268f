"""Does what a job writes outlive its pods? Only then does another attempt go on from a checkpoint."""

from collections.abc import Sequence

from paceline.kube.diagnosis.progress import newest_checkpoint
from paceline.kube.diagnosis.snapshot import Object, Snapshot
from paceline.kube.reading import mapping, mappings, pod_specs
from paceline.kube.submission.mark import KEEPS

# They are made with a pod, or cannot be written to.
_GO_WITH_PODS = ("emptyDir", "configMap", "secret", "projected", "downwardAPI", "image")
_STORES = ("s3://", "gs://", "az://", "hf://")
LOST = (
    "no volume keeps checkpoints, so a new attempt begins at step 0; render it with --checkpoint-volume CLAIM"
)


def resumes_from(snapshot: Snapshot, job: Object) -> int | None:
    """The step of the newest checkpoint that is still there; 0 where none is kept; None: nobody knows."""
    return newest_checkpoint(snapshot) if keeps_checkpoints(job) else 0


def keeps_checkpoints(job: Object) -> bool:
    """As it was seen when it was sent, or as it looks."""
    said = mapping(job, "metadata", "annotations").get(KEEPS)
    return said == "yes" if said is not None else keeps_in([job])


def keeps_in(manifests: Sequence[Object]) -> bool:
    """Also where it cannot be known: pods of a runtime that is the cluster's, whose volumes are not seen."""
    pods = [pod for one in manifests for pod in pod_specs(mapping(one, "spec"))]
    if not pods:
        return True
    said = str([mapping(one, "spec") for one in manifests])  # a store is a word of a command, or a variable
    return any(_keeps(pod) for pod in pods) or any(store in said for store in _STORES)


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
