"""What does the strict profile ask of objects that a cluster would take anyway?

Pod Security "restricted", bounds on what a pod takes, and Ray's token.
"""

from collections.abc import Iterator, Mapping

from paceline.kube.kinds import Kind
from paceline.kube.reading import mapping, mappings
from paceline.kube.restricted import find_privileges, find_privileges_in_patch, find_privileges_of
from paceline.kube.schema import Finding, Path, advice
from paceline.kube.words import IMAGE

Spec = Mapping[str, object]
_BOTH = ("cpu", "memory")


def find_in_strict(kind: Kind, spec: Spec) -> Iterator[Finding]:
    """All of it is advice: a cluster takes the object all the same."""
    yield from advice(_find(kind, spec))


def _find(kind: Kind, spec: Spec) -> Iterator[Finding]:
    inside = "rayClusterSpec" in spec
    cluster = mapping(spec, "rayClusterSpec") if inside else spec
    is_ray = "headGroupSpec" in cluster or "entrypoint" in spec
    for pod, path in kind.pods(spec, ("spec",)) if kind.pods is not None else ():
        yield from find_privileges(pod, path)
        yield from _bounded(pod, path, is_ray=is_ray)
        yield from _pinned(pod, path)
    for pod, path in kind.patches(spec, ("spec",)) if kind.patches is not None else ():
        yield from find_privileges_in_patch(pod, path)
    if "resourcesPerNode" in mapping(spec, "trainer"):
        where = ("spec", "trainer", "resourcesPerNode")
        yield from _has_limits(mapping(spec, *where[1:]), where, limited=("memory",))
    if "headGroupSpec" in cluster:
        yield from _ray(cluster, ("spec", "rayClusterSpec") if inside else ("spec",))


def _ray(cluster: Spec, path: Path) -> Iterator[Finding]:
    if mapping(cluster, "authOptions").get("mode") != "token":
        what = "whoever reaches the dashboard may run code there"
        yield Finding((*path, "authOptions"), what, "write authOptions: {mode: token}; {} is not enough")
    if cluster.get("enableInTreeAutoscaling"):
        context = mapping(cluster, "autoscalerOptions", "securityContext")
        yield from find_privileges_of(context, (*path, "autoscalerOptions", "securityContext"))
        options = mapping(cluster, "autoscalerOptions", "resources")
        yield from _has_limits(options, (*path, "autoscalerOptions", "resources"))


def _bounded(pod: Spec, path: Path, *, is_ray: bool) -> Iterator[Finding]:
    """Ray reads the limits to know what it has; a CPU that nobody else needs may be used by others."""
    for number, container in enumerate(mappings(pod, "containers")):
        where = (*path, "containers", number, "resources")
        yield from _has_limits(mapping(container, "resources"), where, _BOTH if is_ray else ("memory",))


def _pinned(pod: Spec, path: Path) -> Iterator[Finding]:
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(pod, kind)):
            read = IMAGE.fullmatch(str(container.get("image", "")))
            if read is not None and read["digest"] is None and read["tag"] in (None, "latest"):
                what = f"{container['image']} may be another image tomorrow"
                yield Finding((*path, kind, number, "image"), what, "name a tag, or better a digest")


def _has_limits(resources: Spec, path: Path, limited: tuple[str, ...] = _BOTH) -> Iterator[Finding]:
    for kind, names in (("requests", _BOTH), ("limits", limited)):
        for name in sorted(set(names) - mapping(resources, kind).keys()):
            yield Finding(path, f"{kind} of {name} is missing", f"add it to {kind}")
