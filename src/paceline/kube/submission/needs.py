"""Objects that the pods of a job refer to: claims, Secrets, ConfigMaps, service accounts, priority classes.

Read from the manifests before anything exists. Only names: what a Secret holds is never read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.kube.diagnosis.snapshot import Object, name_of
from paceline.kube.reading import mapping, mappings, pod_specs

CLAIM, SECRET, CONFIG_MAP = "PersistentVolumeClaim", "Secret", "ConfigMap"
ACCOUNT, PRIORITY = "ServiceAccount", "PriorityClass"


@dataclass(frozen=True, slots=True)
class Reference:
    kind: str
    name: str
    is_required: bool = True  # False: the pod starts without it


def references(manifests: Sequence[Object]) -> list[Reference]:
    """Each once, the required ones of a name before an optional one; not what comes with the manifests."""
    brought = {(str(one.get("kind")), name_of(one)) for one in manifests}
    found: dict[tuple[str, str], Reference] = {}
    for one in manifests:
        for reference in _of_object(one):
            key = (reference.kind, reference.name)
            if key in brought or not reference.name:
                continue
            if key not in found or reference.is_required:
                found[key] = reference
    return list(found.values())


def _of_object(one: Object) -> Iterator[Reference]:
    for pod in pod_specs(mapping(one, "spec")):
        yield from _of_pod(pod)
    if one.get("kind") != "TrainJob":
        return
    for part in ("dataset", "model"):
        secret = mapping(one, "spec", "initializer", part, "secretRef")
        yield from _named(SECRET, secret, "name")
    yield from _of_container(mapping(one, "spec", "trainer"))


def _of_pod(pod: Object) -> Iterator[Reference]:
    for volume in mappings(pod, "volumes"):
        yield from _of_volume(volume)
    for kind in ("initContainers", "containers"):
        for container in mappings(pod, kind):
            yield from _of_container(container)
    for secret in mappings(pod, "imagePullSecrets"):
        # The kubelet tries without it: the image may be public.
        yield Reference(SECRET, str(secret.get("name", "")), is_required=False)
    account = pod.get("serviceAccountName") or pod.get("serviceAccount") or "default"
    if account != "default":  # which every namespace has
        yield Reference(ACCOUNT, str(account))
    if pod.get("priorityClassName"):
        yield Reference(PRIORITY, str(pod["priorityClassName"]))


def _of_volume(volume: Object) -> Iterator[Reference]:
    yield from _named(CLAIM, mapping(volume, "persistentVolumeClaim"), "claimName")
    yield from _named(SECRET, mapping(volume, "secret"), "secretName")
    yield from _named(CONFIG_MAP, mapping(volume, "configMap"), "name")
    for source in mappings(volume, "projected", "sources"):
        yield from _named(SECRET, mapping(source, "secret"), "name")
        yield from _named(CONFIG_MAP, mapping(source, "configMap"), "name")


def _of_container(container: Object) -> Iterator[Reference]:
    for variable in mappings(container, "env"):
        yield from _named(SECRET, mapping(variable, "valueFrom", "secretKeyRef"), "name")
        yield from _named(CONFIG_MAP, mapping(variable, "valueFrom", "configMapKeyRef"), "name")
    for source in mappings(container, "envFrom"):
        yield from _named(SECRET, mapping(source, "secretRef"), "name")
        yield from _named(CONFIG_MAP, mapping(source, "configMapRef"), "name")


def _named(kind: str, source: Object, key: str) -> Iterator[Reference]:
    if source.get(key):
        yield Reference(kind, str(source[key]), is_required=source.get("optional") is not True)
