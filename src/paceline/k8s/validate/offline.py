"""Offline check of manifests: every problem at once, with file, line and field.

Shapes first; only an object whose shape is right is asked the rules of its kind. A problem is something that
a cluster refuses, or that cannot work. What a cluster accepts and the strict profile does not is advice: a
problem in that profile, a warning in the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from paceline.core.errors import Problem
from paceline.k8s.objects import EFA, IMAGE, mapping, mappings, texts
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.kinds import KIND_RULES, KindRules
from paceline.k8s.validate.manifest import Document, find_secrets, read_documents
from paceline.k8s.validate.schema import Finding, Path, advice, check

# See https://kubernetes.io/docs/concepts/security/pod-security-standards/

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
IPC_LOCK = "IPC_LOCK"
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
    if set(texts(capabilities, "add")) - {"NET_BIND_SERVICE", IPC_LOCK}:
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
    yield from find_privileges_of(own, where, frozenset({IPC_LOCK} if has_efa else ()))
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


# Pod Security "restricted", bounds on what a pod takes, and Ray's token.

Spec = Mapping[str, object]
_BOTH = ("cpu", "memory")


def find_in_strict(kind: KindRules, spec: Spec) -> Iterator[Finding]:
    """All of it is advice: a cluster takes the object all the same."""
    yield from advice(_find(kind, spec))


def _find(kind: KindRules, spec: Spec) -> Iterator[Finding]:
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


# Kinds that are called almost like one of ours.
_NAMESAKES = ("PersistentVolume", "RayService", "RayCronJob", "AdminNetworkPolicy")
# Versions that clusters serve beside those that are checked here, with other fields.
_ALSO_SERVED = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What is in the file, and what is wrong with it."""

    objects: tuple[str, ...]  # kind/name
    problems: tuple[Problem, ...]
    others: tuple[str, ...] = ()  # of kinds that are none of ours: only looked through for secrets
    warnings: tuple[Problem, ...] = ()  # a cluster takes it
    below_strict: int = 0  # how much more the strict profile asks for


def validate(text: str, name: str, profile: Profile = Profile.STRICT) -> ValidationResult:
    """`name` is that of the file, for messages."""
    documents, unreadable = read_documents(text, name)
    problems = list(unreadable)
    seen: set[tuple[object, ...]] = set()
    objects: list[str] = []
    others: list[str] = []
    warnings: list[Problem] = []
    below_strict = 0
    for document in documents:
        called = _called(document.value)
        if _identity(document.value) in seen:
            problems.append(_duplicate(called, f"{name}:{document.line(())}"))
        if mapping(document.value, "metadata").get("name"):
            seen.add(_identity(document.value))
        (others if _is_other(mapping(document.value)) else objects).append(called)
        found, beyond = _all_findings(document.value)
        for finding in found:
            is_problem = not finding.is_advice or profile is Profile.STRICT
            (problems if is_problem else warnings).append(_problem(finding, document, name))
        if profile is Profile.STRICT:
            problems += [_problem(finding, document, name) for finding in beyond]
        else:
            below_strict += len(beyond)
    return ValidationResult(
        objects=tuple(objects),
        problems=tuple(problems),
        others=tuple(others),
        warnings=tuple(warnings),
        below_strict=below_strict,
    )


def find_repeated(objects: Sequence[Mapping[str, object]]) -> list[Problem]:
    """One for each object that is there already, under the same kind, namespace and name."""
    seen: set[tuple[object, ...]] = set()
    problems: list[Problem] = []
    for value in objects:
        if _identity(value) in seen:
            problems.append(_duplicate(_called(value), None))
        seen.add(_identity(value))
    return problems


def _duplicate(called: str, where: str | None) -> Problem:
    return Problem(f"{called} is there twice", "keep one, or rename one", where)


def find_problems(value: object, profile: Profile) -> list[Finding]:
    """Those that are problems in this profile."""
    found, beyond = _all_findings(value)
    if profile is Profile.STRICT:
        return [*found, *beyond]
    return [one for one in found if not one.is_advice]


def _all_findings(value: object) -> tuple[list[Finding], list[Finding]]:
    """What is wrong or does nothing; and what the strict profile asks for on top."""
    head = mapping(value)
    kind = KIND_RULES.get((str(head.get("apiVersion")), str(head.get("kind"))))
    found = list(find_secrets(value))
    if kind is None and _is_other(head):
        return found, []
    if kind is None:
        said = f"apiVersion {head.get('apiVersion')}, kind {head.get('kind')}"
        hint = "known are " + ", ".join(f"{kind} ({version})" for version, kind in KIND_RULES)
        return [*found, Finding((), f"{said} is not known", hint)], []
    shape = list(check(kind.schema, value))
    found = shape + found
    if any(not finding.is_advice for finding in shape):
        return found, []
    found += kind.rules(mapping(value, *kind.inside), kind.inside)
    return found, list(find_in_strict(kind, mapping(value, "spec")))


def _is_other(head: Spec) -> bool:
    """Surely something else than what is checked here, and no misspelling of it."""
    version, kind = head.get("apiVersion"), head.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    group = version.rpartition("/")[0]
    if version in _ALSO_SERVED:
        return True
    ours = {known.rpartition("/")[0] for known, _ in KIND_RULES}
    if group not in ours and not get_close_matches(group, ours, cutoff=0.8):
        return True  # a Job of another group is another thing
    return kind in _NAMESAKES or not get_close_matches(kind, [known for _, known in KIND_RULES], cutoff=0.8)


def _identity(value: object) -> tuple[object, ...]:
    head, about = mapping(value), mapping(value, "metadata")
    return head.get("apiVersion"), head.get("kind"), about.get("namespace"), about.get("name")


def _called(value: object) -> str:
    about = mapping(value, "metadata")
    return f"{mapping(value).get('kind')}/{about.get('name') or about.get('generateName')}"


def _problem(finding: Finding, document: Document, name: str) -> Problem:
    where = f"{name}:{document.line(finding.path)}"
    return Problem(f"{_dotted(finding.path)}: {finding.what}", finding.hint, where)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the object"
