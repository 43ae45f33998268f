"""Where does a job keep its results? The claim that its pods may write to, read from its manifest."""

from collections.abc import Iterator, Mapping

from paceline.kube.reading import mapping, mappings


def written_claims(job: object) -> list[str]:
    """Of any kind of object that has pod templates somewhere inside."""
    found = [claim for spec in _pod_specs(job) for claim in _claims(spec)]
    return list(dict.fromkeys(found))


def _pod_specs(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list) and "volumes" in value:
            yield value
            return
        for inner in value.values():
            yield from _pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pod_specs(inner)


def _claims(spec: Mapping[str, object]) -> Iterator[str]:
    read_only = {
        str(mount.get("name"))
        for container in mappings(spec, "containers")
        for mount in mappings(container, "volumeMounts")
        if mount.get("readOnly")
    }
    for volume in mappings(spec, "volumes"):
        claim = mapping(volume, "persistentVolumeClaim")
        if claim and not claim.get("readOnly") and str(volume.get("name")) not in read_only:
            yield str(claim.get("claimName"))
