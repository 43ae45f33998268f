"""Offline check of manifests: every problem at once, with file, line and field.

Shapes first; only an object with a valid shape is checked by the rules of its kind. A problem is something
that a cluster refuses, or that cannot work. A setting that a cluster accepts and the strict profile does not
is advice: a problem in that profile, a warning in the other.
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
_HINT = "`paceline job render` sets it; for an image that needs more, use --profile compat"
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
    """Findings about namespaces and resources shared with the node."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield Finding((*path, name), f"{name} shares the node with the pod", _HINT)
    for number, volume in enumerate(mappings(spec, "volumes")):
        for kind in volume.keys() - _VOLUMES:
            yield Finding(
                (*path, "volumes", number, kind), f"a volume of kind {kind} is not restricted", _HINT
            )
    if mapping(spec, "securityContext").get("sysctls"):
        yield Finding((*path, "securityContext", "sysctls"), "kernel settings (sysctls) are changed", _HINT)


def find_privileges_in_patch(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    """Findings in a patch of another object's pod: explicit losses of security, not omissions."""
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
    # EFA devices of the container are set elsewhere, so memory may be locked.
    if set(texts(capabilities, "add")) - {"NET_BIND_SERVICE", IPC_LOCK}:
        yield Finding((*path, "capabilities", "add"), "capabilities are added", _HINT)


def find_privileges_of(
    context: Mapping[str, object], path: Path, allowed: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Findings in a container that an operator adds to the pod, by its security context alone."""
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
    # The one exception, and only with EFA: it registers memory, which must then stay resident.
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
            yield Finding((*path, "ports", number, "hostPort"), "a host port is used", _HINT)


# Pod Security "restricted", bounds on what a pod takes, and Ray's token.

Spec = Mapping[str, object]
_BOTH = ("cpu", "memory")


def find_in_strict(kind: KindRules, spec: Spec) -> Iterator[Finding]:
    """Advice only: a cluster accepts the object anyway."""
    yield from advice(_find(kind, spec))


def _find(kind: KindRules, spec: Spec) -> Iterator[Finding]:
    inside = "rayClusterSpec" in spec
    cluster = mapping(spec, "rayClusterSpec") if inside else spec
    is_ray = "headGroupSpec" in cluster or "entrypoint" in spec
    for pod, path in kind.pods(spec, ("spec",)) if kind.pods is not None else ():
        yield from find_privileges(pod, path)
        yield from _find_missing_limits(pod, path, is_ray=is_ray)
        yield from _find_unpinned_images(pod, path)
    for pod, path in kind.patches(spec, ("spec",)) if kind.patches is not None else ():
        yield from find_privileges_in_patch(pod, path)
    if "resourcesPerNode" in mapping(spec, "trainer"):
        where = ("spec", "trainer", "resourcesPerNode")
        yield from _has_limits(mapping(spec, *where[1:]), where, limited=("memory",))
    if "headGroupSpec" in cluster:
        yield from _ray(cluster, ("spec", "rayClusterSpec") if inside else ("spec",))


def _ray(cluster: Spec, path: Path) -> Iterator[Finding]:
    if mapping(cluster, "authOptions").get("mode") != "token":
        message = "any client that reaches the dashboard can run code there"
        yield Finding((*path, "authOptions"), message, "write authOptions: {mode: token}; {} is not enough")
    if cluster.get("enableInTreeAutoscaling"):
        context = mapping(cluster, "autoscalerOptions", "securityContext")
        yield from find_privileges_of(context, (*path, "autoscalerOptions", "securityContext"))
        options = mapping(cluster, "autoscalerOptions", "resources")
        yield from _has_limits(options, (*path, "autoscalerOptions", "resources"))


def _find_missing_limits(pod: Spec, path: Path, *, is_ray: bool) -> Iterator[Finding]:
    """Every container needs a memory limit; Ray's also a CPU limit, from which Ray sizes itself."""
    for number, container in enumerate(mappings(pod, "containers")):
        where = (*path, "containers", number, "resources")
        yield from _has_limits(mapping(container, "resources"), where, _BOTH if is_ray else ("memory",))


def _find_unpinned_images(pod: Spec, path: Path) -> Iterator[Finding]:
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(pod, kind)):
            read = IMAGE.fullmatch(str(container.get("image", "")))
            if read is not None and read["digest"] is None and read["tag"] in (None, "latest"):
                message = f"{container['image']} is not a fixed version"
                yield Finding((*path, kind, number, "image"), message, "name a tag, or better a digest")


def _has_limits(resources: Spec, path: Path, limited: tuple[str, ...] = _BOTH) -> Iterator[Finding]:
    for kind, names in (("requests", _BOTH), ("limits", limited)):
        for name in sorted(set(names) - mapping(resources, kind).keys()):
            yield Finding(path, f"{kind} of {name} is missing", f"add it to {kind}")


# Kinds with names close to a checked kind.
_NAMESAKES = ("PersistentVolume", "RayService", "RayCronJob", "AdminNetworkPolicy")
# Versions that clusters serve in addition to the checked ones, with other fields.
_ALSO_SERVED = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """Objects of the file, and their problems."""

    objects: tuple[str, ...]  # kind/name
    problems: tuple[Problem, ...]
    others: tuple[str, ...] = ()  # objects of other kinds: only searched for secrets
    warnings: tuple[Problem, ...] = ()  # a cluster takes it
    below_strict: int = 0  # number of further findings in the strict profile


def validate(text: str, name: str, profile: Profile = Profile.STRICT) -> ValidationResult:
    """`name` is that of the file, for messages."""
    documents, unreadable = read_documents(text, name)
    problems = list(unreadable)
    seen: set[tuple[object, ...]] = set()
    objects: list[str] = []
    skipped: list[str] = []
    warnings: list[Problem] = []
    below_strict = 0
    for document in documents:
        called = _called(document.value)
        if _identity(document.value) in seen:
            problems.append(_duplicate(called, f"{name}:{document.line(())}"))
        if mapping(document.value, "metadata").get("name"):
            seen.add(_identity(document.value))
        (skipped if _is_other(mapping(document.value)) else objects).append(called)
        findings, beyond = _all_findings(document.value)
        for finding in findings:
            is_problem = not finding.is_advice or profile is Profile.STRICT
            (problems if is_problem else warnings).append(_problem(finding, document, name))
        if profile is Profile.STRICT:
            problems += [_problem(finding, document, name) for finding in beyond]
        else:
            below_strict += len(beyond)
    return ValidationResult(
        objects=tuple(objects),
        problems=tuple(problems),
        others=tuple(skipped),
        warnings=tuple(warnings),
        below_strict=below_strict,
    )


def find_repeated(objects: Sequence[Mapping[str, object]]) -> list[Problem]:
    """One problem for each repeated kind, namespace and name."""
    seen: set[tuple[object, ...]] = set()
    problems: list[Problem] = []
    for value in objects:
        if _identity(value) in seen:
            problems.append(_duplicate(_called(value), None))
        seen.add(_identity(value))
    return problems


def _duplicate(called: str, where: str | None) -> Problem:
    return Problem(f"{called} is defined twice", "keep one, or rename one", where)


def find_problems(value: object, profile: Profile) -> list[Finding]:
    """Those that are problems in this profile."""
    findings, beyond = _all_findings(value)
    if profile is Profile.STRICT:
        return [*findings, *beyond]
    return [finding for finding in findings if not finding.is_advice]


def _all_findings(value: object) -> tuple[list[Finding], list[Finding]]:
    """Problems and settings without effect; and further findings of the strict profile."""
    head = mapping(value)
    kind = KIND_RULES.get((str(head.get("apiVersion")), str(head.get("kind"))))
    findings = list(find_secrets(value))
    if kind is None and _is_other(head):
        return findings, []
    if kind is None:
        head_text = f"apiVersion {head.get('apiVersion')}, kind {head.get('kind')}"
        hint = "supported are " + ", ".join(f"{kind} ({version})" for version, kind in KIND_RULES)
        return [*findings, Finding((), f"{head_text} is not supported", hint)], []
    shape = list(check(kind.schema, value))
    findings = shape + findings
    if any(not finding.is_advice for finding in shape):
        return findings, []
    findings += kind.rules(mapping(value, *kind.inside), kind.inside)
    return findings, list(find_in_strict(kind, mapping(value, "spec")))


def _is_other(head: Spec) -> bool:
    """Surely something else than what is checked here, and no misspelling of it."""
    version = head.get("apiVersion")
    kind = head.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    group = version.rpartition("/")[0]
    if version in _ALSO_SERVED:
        return True
    ours = {known.rpartition("/")[0] for known, _ in KIND_RULES}
    if group not in ours and not get_close_matches(group, ours, cutoff=0.8):
        return True  # a Job of another group is another kind
    return kind in _NAMESAKES or not get_close_matches(kind, [known for _, known in KIND_RULES], cutoff=0.8)


def _identity(value: object) -> tuple[object, ...]:
    head = mapping(value)
    metadata = mapping(value, "metadata")
    return head.get("apiVersion"), head.get("kind"), metadata.get("namespace"), metadata.get("name")


def _called(value: object) -> str:
    metadata = mapping(value, "metadata")
    return f"{mapping(value).get('kind')}/{metadata.get('name') or metadata.get('generateName')}"


def _problem(finding: Finding, document: Document, name: str) -> Problem:
    where = f"{name}:{document.line(finding.path)}"
    return Problem(f"{_dotted(finding.path)}: {finding.what}", finding.hint, where)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the object"
