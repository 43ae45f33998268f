"""Where does a job keep its results? The claim that its pods may write to, read from its manifest."""

from collections.abc import Iterator, Mapping

from paceline.kube.reading import mapping, mappings, pod_specs


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
