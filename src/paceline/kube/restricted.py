"""Would a namespace that enforces Pod Security "restricted" take this pod? Its rules, on a pod's spec.

See https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator, Mapping

from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.well_known import EFA

_VOLUMES = frozenset(
    (
        "name",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)
_HINT = "`paceline job render` writes it so; for an image that needs more, use --profile compat"
LOCKING = "IPC_LOCK"
_SECCOMP = ("RuntimeDefault", "Localhost")


def find_privileges(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    """`spec` is that of a pod, at `path`; its shape has been checked."""
    yield from _shared(spec, path)
    pod = mapping(spec, "securityContext")
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(spec, kind)):
            context = mapping(container, "securityContext")
            yield from _container(pod, context, (*path, kind, number), container)


def _shared(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    """With the node."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield Finding((*path, name), f"{name} shares the node with the pod", _HINT)
    for number, volume in enumerate(mappings(spec, "volumes")):
        for kind in volume.keys() - _VOLUMES:
            yield Finding(
                (*path, "volumes", number, kind), f"a volume of kind {kind} is not restricted", _HINT
            )
    if mapping(spec, "securityContext").get("sysctls"):
        yield Finding((*path, "securityContext", "sysctls"), "settings of the kernel are changed", _HINT)


def find_privileges_in_patch(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    """Of what is changed about a pod of others: what takes away from its security, not what is unsaid."""
    yield from _shared(spec, path)
    pod = mapping(spec, "securityContext")
    yield from _loosened(pod, (*path, "securityContext"))
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(spec, kind)):
            where = (*path, kind, number, "securityContext")
            yield from _loosened(mapping(container, "securityContext"), where)


def _loosened(context: Mapping[str, object], path: Path) -> Iterator[Finding]:
    for name, bad in (("allowPrivilegeEscalation", True), ("privileged", True), ("runAsNonRoot", False)):
        if context.get(name) is bad:
            yield Finding((*path, name), f"{name} is {str(bad).lower()}", _HINT)
    if context.get("runAsUser") == 0:
        yield Finding((*path, "runAsUser"), "it runs as user 0, which is root", _HINT)
    if mapping(context, "seccompProfile").get("type", _SECCOMP[0]) not in _SECCOMP:
        yield Finding((*path, "seccompProfile"), "seccompProfile is not RuntimeDefault", _HINT)
    capabilities = mapping(context, "capabilities")
    if capabilities and capabilities.get("drop") != ["ALL"]:
        yield Finding((*path, "capabilities"), "capabilities are not dropped: drop: [ALL]", _HINT)
    # Whether the container has EFA devices stands elsewhere, so memory may be locked.
    if set(texts(capabilities, "add")) - {"NET_BIND_SERVICE", LOCKING}:
        yield Finding((*path, "capabilities", "add"), "capabilities are added", _HINT)


def find_privileges_of(
    context: Mapping[str, object], path: Path, allowed: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Of a container that an operator adds to our pod, by its security context alone."""
    if context.get("allowPrivilegeEscalation") is not False:
        yield Finding(path, "allowPrivilegeEscalation is not false", _HINT)
    capabilities = mapping(context, "capabilities")
    if capabilities.get("drop") != ["ALL"]:
        yield Finding(path, "capabilities are not dropped: drop: [ALL]", _HINT)
    added = capabilities.get("add")
    if isinstance(added, list) and set(map(str, added)) - {"NET_BIND_SERVICE"} - allowed:
        yield Finding((*path, "capabilities", "add"), "capabilities are added", _HINT)
    if context.get("privileged"):
        yield Finding((*path, "privileged"), "the container is privileged", _HINT)


def _container(
    pod: Mapping[str, object], own: Mapping[str, object], path: Path, container: Mapping[str, object]
) -> Iterator[Finding]:
    where = (*path, "securityContext")
    # The one exception, and only where it has a use: EFA registers memory, which must then stay where it is.
    has_efa = EFA in mapping(container, "resources", "limits")
    yield from find_privileges_of(own, where, frozenset({LOCKING} if has_efa else ()))
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield Finding(where, "runAsNonRoot is not true, for the container or its pod", _HINT)
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield Finding(where, "it runs as user 0, which is root", _HINT)
    seccomp = mapping(own, "seccompProfile") or mapping(pod, "seccompProfile")
    if seccomp.get("type") not in _SECCOMP:
        yield Finding(where, "seccompProfile is not RuntimeDefault, for the container or its pod", _HINT)
    if own.get("procMount", "Default") != "Default":
        yield Finding((*where, "procMount"), "/proc is not masked", _HINT)
    for number, port in enumerate(mappings(container, "ports")):
        if "hostPort" in port:
            yield Finding((*path, "ports", number, "hostPort"), "a port of the node is taken", _HINT)
