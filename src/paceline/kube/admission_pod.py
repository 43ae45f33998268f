"""What does a cluster refuse about a pod whose fields are all right one by one?"""

from collections.abc import Iterable, Iterator, Mapping

from paceline.kube.reading import mapping, mappings
from paceline.kube.schema import Finding, Path, advice
from paceline.kube.words import is_extended, read_quantity

Spec = Mapping[str, object]


def find_in_pod(spec: Spec, path: Path, *, is_core: bool = False) -> Iterator[Finding]:
    """`is_core`: in an object of Kubernetes itself. Custom kinds refuse ports and variables given twice."""
    everyone = [("initContainers", c) for c in mappings(spec, "initContainers")]
    everyone += [("containers", c) for c in mappings(spec, "containers")]
    yield from twice((c.get("name") for _, c in everyone), (*path, "containers"), "container")
    yield from twice((v.get("name") for v in mappings(spec, "volumes")), (*path, "volumes"), "volume")
    for number, volume in enumerate(mappings(spec, "volumes")):
        yield from find_in_volume(volume, (*path, "volumes", number))
    volumes = {volume.get("name") for volume in mappings(spec, "volumes")}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(spec, kind)):
            yield from _container(container, volumes, (*path, kind, number), is_core=is_core)


def find_in_volume(volume: Spec, path: Path) -> Iterator[Finding]:
    """One without a source is an emptyDir."""
    if len([name for name, source in volume.items() if source is not None]) > 2:
        what = f"volume {volume.get('name')} must be of exactly one kind"
        yield Finding(path, what, "such as emptyDir or persistentVolumeClaim")


def find_in_resources(resources: Spec, path: Path) -> Iterator[Finding]:
    requests, limits = mapping(resources, "requests"), mapping(resources, "limits")
    for name in {**requests, **limits}:
        asked, allowed = read_quantity(requests.get(name)), read_quantity(limits.get(name))
        where = (*path, "limits" if name in limits else "requests", name)
        if is_extended(name):
            if allowed is None or (asked is not None and asked != allowed):
                yield Finding(where, f"of {name} requests and limits must be the same", "write both alike")
            elif allowed != allowed.to_integral_value():
                yield Finding(where, f"{name} comes in whole pieces only", "write 1, for example")
        elif asked is not None and allowed is not None and asked > allowed:
            what = f"the request {requests[name]} is more than the limit {limits[name]}"
            yield Finding(where, what, "raise the limit, or lower the request")


def twice(names: Iterable[object], path: Path, what: str) -> Iterator[Finding]:
    seen: set[object] = set()
    for name in names:
        if name is not None and name in seen:
            yield Finding(path, f"there are two of {what} {name}", "give each a name of its own")
        seen.add(name)


def _container(container: Spec, volumes: set[object], path: Path, *, is_core: bool) -> Iterator[Finding]:
    yield from find_in_resources(mapping(container, "resources"), (*path, "resources"))
    ports, mounts = mappings(container, "ports"), mappings(container, "volumeMounts")
    yield from twice((p.get("name") for p in ports), (*path, "ports"), "port")
    numbers = (f"{p.get('containerPort')}/{p.get('protocol', 'TCP')}" for p in ports)
    repeated = list(twice(numbers, (*path, "ports"), "port"))
    yield from advice(repeated) if is_core else repeated
    yield from twice((m.get("mountPath") for m in mounts), (*path, "volumeMounts"), "mount path")
    for number, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            what = f"there is no volume {mount.get('name')}"
            yield Finding((*path, "volumeMounts", number), what, "add it to volumes, or remove the mount")
    yield from find_in_variables(container, path, is_core=is_core)


def find_in_variables(container: Spec, path: Path, *, is_core: bool = False) -> Iterator[Finding]:
    variables = mappings(container, "env")
    repeated = list(twice((v.get("name") for v in variables), (*path, "env"), "variable"))
    yield from advice(repeated) if is_core else repeated
    for number, variable in enumerate(variables):
        where = (*path, "env", number)
        if variable.get("value") and variable.get("valueFrom") is not None:
            yield Finding(where, "it has both value and valueFrom", "keep one of them")
        if variable.get("valueFrom") is not None and len(mapping(variable, "valueFrom")) != 1:
            yield Finding((*where, "valueFrom"), "it must name exactly one source", "such as secretKeyRef")
