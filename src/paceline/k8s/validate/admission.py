"""Rules of Kubernetes' own kinds that go beyond single fields."""

import re
from collections.abc import Iterable, Iterator, Mapping

from paceline.core.humanize import did_you_mean
from paceline.k8s.objects import DNS_SUBDOMAIN, is_extended, mapping, mappings, read_quantity, texts
from paceline.k8s.spec.command import find_in_torchrun, read_torchrun
from paceline.k8s.validate.schema import Finding, Path, advice

Spec = Mapping[str, object]


def find_in_pod(spec: Spec, path: Path, *, is_core: bool = False) -> Iterator[Finding]:
    """`is_core`: in an object of Kubernetes itself. Custom kinds refuse ports and variables given twice."""
    everyone = [("initContainers", c) for c in mappings(spec, "initContainers")]
    everyone += [("containers", c) for c in mappings(spec, "containers")]
    yield from find_duplicates((c.get("name") for _, c in everyone), (*path, "containers"), "container")
    yield from find_duplicates(
        (v.get("name") for v in mappings(spec, "volumes")), (*path, "volumes"), "volume"
    )
    for number, volume in enumerate(mappings(spec, "volumes")):
        yield from find_in_volume(volume, (*path, "volumes", number))
    volumes = {volume.get("name") for volume in mappings(spec, "volumes")}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(mappings(spec, kind)):
            yield from _container(container, volumes, (*path, kind, number), is_core=is_core)


def find_in_volume(volume: Spec, path: Path) -> Iterator[Finding]:
    """One without a source is an emptyDir."""
    if len([name for name, source in volume.items() if source is not None]) > 2:
        message = f"volume {volume.get('name')} must be of exactly one kind"
        yield Finding(path, message, "such as emptyDir or persistentVolumeClaim")


def find_in_resources(resources: Spec, path: Path) -> Iterator[Finding]:
    requests = mapping(resources, "requests")
    limits = mapping(resources, "limits")
    for name in {**requests, **limits}:
        requested = read_quantity(requests.get(name))
        allowed = read_quantity(limits.get(name))
        where = (*path, "limits" if name in limits else "requests", name)
        if is_extended(name):
            if allowed is None or (requested is not None and requested != allowed):
                yield Finding(
                    where, f"of {name} requests and limits must be the same", "write the same value for both"
                )
            elif allowed != allowed.to_integral_value():
                yield Finding(where, f"{name} must be a whole number", "write 1, for example")
        elif requested is not None and allowed is not None and requested > allowed:
            message = f"the request {requests[name]} is more than the limit {limits[name]}"
            yield Finding(where, message, "raise the limit, or lower the request")


def find_duplicates(names: Iterable[object], path: Path, noun: str) -> Iterator[Finding]:
    seen: set[object] = set()
    for name in names:
        if name is not None and name in seen:
            yield Finding(path, f"{noun} {name} is defined twice", "give each its own name")
        seen.add(name)


def _container(container: Spec, volumes: set[object], path: Path, *, is_core: bool) -> Iterator[Finding]:
    yield from find_in_resources(mapping(container, "resources"), (*path, "resources"))
    ports = mappings(container, "ports")
    mounts = mappings(container, "volumeMounts")
    yield from find_duplicates((p.get("name") for p in ports), (*path, "ports"), "port")
    numbers = (f"{p.get('containerPort')}/{p.get('protocol', 'TCP')}" for p in ports)
    repeated = list(find_duplicates(numbers, (*path, "ports"), "port"))
    yield from advice(repeated) if is_core else repeated
    yield from find_duplicates((m.get("mountPath") for m in mounts), (*path, "volumeMounts"), "mount path")
    for number, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            message = f"there is no volume {mount.get('name')}"
            yield Finding((*path, "volumeMounts", number), message, "add it to volumes, or remove the mount")
    yield from find_in_variables(container, path, is_core=is_core)


def find_in_variables(container: Spec, path: Path, *, is_core: bool = False) -> Iterator[Finding]:
    variables = mappings(container, "env")
    repeated = list(find_duplicates((v.get("name") for v in variables), (*path, "env"), "variable"))
    yield from advice(repeated) if is_core else repeated
    for number, variable in enumerate(variables):
        where = (*path, "env", number)
        if variable.get("value") and variable.get("valueFrom") is not None:
            yield Finding(where, "it has both value and valueFrom", "keep one of them")
        if variable.get("valueFrom") is not None and len(mapping(variable, "valueFrom")) != 1:
            yield Finding((*where, "valueFrom"), "it must name exactly one source", "such as secretKeyRef")


_MOST_INDEXED = 100_000


def pods_of_template(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    yield mapping(spec, "template", "spec"), (*path, "template", "spec")


def find_in_job(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from find_in_job_spec(spec, path)
    nodes = spec.get("parallelism", 1)
    pod = mapping(spec, "template", "spec")
    if spec.get("completionMode") == "Indexed" and spec.get("completions") != nodes:
        message = f"{nodes} pods run in parallel, but {spec.get('completions')} are to be completed"
        if any(True for _ in _torchruns(pod)):
            yield Finding(
                (*path, "parallelism"), message, "write the same number twice: torchrun needs all at once"
            )
    yield from find_in_commands(pod, (*path, "template", "spec"), nodes if isinstance(nodes, int) else None)


def find_in_job_spec(spec: Spec, path: Path, default_policy: str | None = None) -> Iterator[Finding]:
    """The rules of `batch/v1`. `default_policy`: the restart policy that an operator fills in."""
    pod = mapping(spec, "template", "spec")
    where = (*path, "template", "spec")
    yield from find_in_pod(pod, where, is_core=default_policy is None)
    if pod.get("restartPolicy", default_policy) not in ("OnFailure", "Never"):
        message = 'Required value: valid values: "OnFailure", "Never"'
        yield Finding((*where, "restartPolicy"), message, "write restartPolicy: Never")
    is_indexed = spec.get("completionMode") == "Indexed"
    if is_indexed and "completions" not in spec:
        yield Finding(
            (*path, "completions"), "Required value: when completion mode is Indexed", "add completions"
        )
    if is_indexed and _number(spec.get("parallelism")) > _MOST_INDEXED:
        message = f"must be less than or equal to {_MOST_INDEXED} when completion mode is Indexed"
        yield Finding((*path, "parallelism"), message, "use fewer pods")
    for name in ("backoffLimitPerIndex", "successPolicy"):
        if name in spec and not is_indexed:
            yield Finding((*path, name), "requires indexed completion mode", "add completionMode: Indexed")
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        yield Finding((*where, "restartPolicy"), message, "write restartPolicy: Never")
    yield from _find_in_failure_policy(mapping(spec, "podFailurePolicy"), (*path, "podFailurePolicy"))
    if "selector" in spec and not spec.get("manualSelector"):
        yield Finding((*path, "selector"), "`selector` not auto-generated", "leave it out")


_POD_CONDITIONS = ("DisruptionTarget", "PodScheduled", "Ready", "Initialized", "ContainersReady")


def _find_in_failure_policy(policy: Spec, path: Path) -> Iterator[Finding]:
    for number, rule in enumerate(mappings(policy, "rules")):
        where = (*path, "rules", number)
        if "onExitCodes" in rule and mapping(rule, "onExitCodes").get("operator") not in ("In", "NotIn"):
            message = 'Unsupported value: supported values: "In", "NotIn"'
            yield Finding((*where, "onExitCodes", "operator"), message, "write operator: In")
        for index, condition in enumerate(mappings(rule, "onPodConditions")):
            if condition.get("type") not in _POD_CONDITIONS:
                message = f"Kubernetes sets no condition {condition.get('type')} on pods"
                inside = (*where, "onPodConditions", index, "type")
                yield Finding(inside, message, "write type: DisruptionTarget", is_advice=True)


def find_in_commands(pod: Spec, path: Path, nodes: int | None, procs: str | None = None) -> Iterator[Finding]:
    for number, argv in _torchruns(pod):
        yield from find_in_torchrun(argv, (*path, "containers", number, "args"), nodes, procs)


def _torchruns(pod: Spec) -> Iterator[tuple[int, list[str]]]:
    for number, container in enumerate(mappings(pod, "containers")):
        argv = [*texts(container, "command"), *texts(container, "args")]
        if read_torchrun(argv) is not None:
            yield number, argv


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


_PERCENT = re.compile(r"[0-9]+%")


def find_in_deployment(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from find_in_pod(mapping(spec, "template", "spec"), (*path, "template", "spec"), is_core=True)
    yield from _always_on(spec, path, "deployment")
    strategy = mapping(spec, "strategy")
    where = (*path, "strategy")
    rolling = mapping(strategy, "rollingUpdate")
    for name in rolling:
        yield from _share(rolling[name], (*where, "rollingUpdate", name))
    if strategy.get("type") == "Recreate" and rolling:
        message = "Forbidden: may not be specified when strategy `type` is 'Recreate'"
        yield Finding((*where, "rollingUpdate"), message, "leave it out")


def find_in_set(spec: Spec, path: Path) -> Iterator[Finding]:
    pod = mapping(spec, "template", "spec")
    where = (*path, "template", "spec")
    claims = [
        mapping(template, "metadata").get("name") for template in mappings(spec, "volumeClaimTemplates")
    ]
    yield from find_duplicates(claims, (*path, "volumeClaimTemplates"), "claim")
    # Each pod has a volume for each claim; one of the same name in `volumes` is replaced by it.
    named = {volume.get("name") for volume in mappings(pod, "volumes")}
    claimed = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims if name not in named
    ]
    yield from find_in_pod({**pod, "volumes": [*mappings(pod, "volumes"), *claimed]}, where, is_core=True)
    rolling = mapping(spec, "updateStrategy", "rollingUpdate")
    if "maxUnavailable" in rolling:
        where = (*path, "updateStrategy", "rollingUpdate", "maxUnavailable")
        yield from _share(rolling["maxUnavailable"], where)
    yield from _always_on(spec, path, "statefulset")


def _always_on(spec: Spec, path: Path, kind: str) -> Iterator[Finding]:
    """Rules of all kinds that keep a number of pods running."""
    if mapping(spec, "template", "spec").get("restartPolicy", "Always") != "Always":
        message = 'Unsupported value: supported values: "Always"'
        yield Finding((*path, "template", "spec", "restartPolicy"), message, "leave it out")
    selector = mapping(spec, "selector", "matchLabels")
    labels = mapping(spec, "template", "metadata", "labels")
    if any(labels.get(name) != value for name, value in selector.items()):
        message = "Invalid value: `selector` does not match template `labels`"
        yield Finding(
            (*path, "template", "metadata", "labels"), message, "give the pods the selector's labels"
        )
    if not selector and not mappings(spec, "selector", "matchExpressions"):
        message = f"Invalid value: empty selector is invalid for {kind}"
        yield Finding((*path, "selector"), message, "add matchLabels")


def find_in_budget(spec: Spec, path: Path) -> Iterator[Finding]:
    for name in ("minAvailable", "maxUnavailable"):
        if name in spec:
            yield from _share(spec[name], (*path, name))
    if "minAvailable" in spec and "maxUnavailable" in spec:
        message = "minAvailable and maxUnavailable cannot be both set"
        yield Finding(path, f"Invalid value: {message}", "keep one of them")
    if "minAvailable" not in spec and "maxUnavailable" not in spec:
        yield Finding(
            path,
            "it has neither minAvailable nor maxUnavailable, so it has no effect",
            "add one",
            is_advice=True,
        )


def _share(value: object, path: Path) -> Iterator[Finding]:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_number and not (isinstance(value, str) and _PERCENT.fullmatch(value)):
        yield Finding(
            path, "Invalid value: it is neither a number of pods nor a percentage", "write 1, or 25%"
        )


_MOST_BYTES = 1 << 20
_VERBS: tuple[str, ...] = (
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
)
_VERBS += ("escalate", "impersonate", "approve", "sign", "attest", "*")


def find_in_configmap(value: Spec, path: Path) -> Iterator[Finding]:
    data = mapping(value, "data")
    binary = mapping(value, "binaryData")
    for name in sorted(set(data).intersection(binary)):
        yield Finding(
            (*path, "binaryData", name), "Invalid value: duplicate of key present in data", "keep one"
        )
    size = sum(len(str(text).encode()) for text in (*data.values(), *binary.values()))
    if size > _MOST_BYTES:
        message = f"Too long: must have at most {_MOST_BYTES} bytes, and it has {size}"
        yield Finding((*path, "data"), message, "put it into the image, or onto a volume")


def find_in_claim(spec: Spec, path: Path) -> Iterator[Finding]:
    amount = read_quantity(mapping(spec, "resources", "requests").get("storage"))
    if amount is not None and amount <= 0:
        where = (*path, "resources", "requests", "storage")
        yield Finding(where, "Invalid value: must be greater than zero", "write 10Gi, for example")
    modes = texts(spec, "accessModes")
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        message = "may not use ReadWriteOncePod with other access modes"
        yield Finding((*path, "accessModes"), message, "keep one of them")


def find_in_binding(value: Spec, path: Path) -> Iterator[Finding]:
    for number, subject in enumerate(mappings(value, "subjects")):
        if subject.get("kind") != "ServiceAccount":
            continue
        if not DNS_SUBDOMAIN.fullmatch(str(subject.get("name"))):
            message = "it is not a valid account name"
            yield Finding(
                (*path, "subjects", number, "name"), message, "use lower-case letters, digits, - and ."
            )
        if "namespace" not in subject:
            hint = "write the namespace that the account is in"
            yield Finding((*path, "subjects", number, "namespace"), "Required value", hint)


def find_in_role(value: Spec, path: Path) -> Iterator[Finding]:
    for number, rule in enumerate(mappings(value, "rules")):
        for verb in texts(rule, "verbs"):
            if verb not in _VERBS:
                message = f"{verb} is not a verb of Kubernetes"
                where = (*path, "rules", number, "verbs")
                yield Finding(
                    where, message, did_you_mean(verb, _VERBS, otherwise="such as get"), is_advice=True
                )


def find_in_policy(spec: Spec, path: Path) -> Iterator[Finding]:
    types = texts(spec, "policyTypes")
    for name, kind, peers in (("ingress", "Ingress", "from"), ("egress", "Egress", "to")):
        if name in spec and types and kind not in types:
            message = f"{name} is given, but policyTypes lacks {kind}, so it is ignored"
            yield Finding((*path, name), message, f"add {kind} to policyTypes", is_advice=True)
        for number, rule in enumerate(mappings(spec, name)):
            for index, peer in enumerate(mappings(rule, peers)):
                where = (*path, name, number, peers, index)
                if not peer:
                    yield Finding(where, "Required value: must specify a peer", "add podSelector")
                elif "ipBlock" in peer and len(peer) > 1:
                    message = "may not specify both ipBlock and another peer"
                    yield Finding(where, f"Forbidden: {message}", "split it into two peers")


def find_nothing(_value: Spec, _path: Path) -> Iterator[Finding]:
    """No rules beyond the schema."""
    return iter(())


def find_in_claim_template(spec: Mapping[str, object], path: Path) -> Iterator[Finding]:
    where = (*path, "spec", "devices", "requests")
    for number, request in enumerate(mappings(spec, "spec", "devices", "requests")):
        if ("exactly" in request) == ("firstAvailable" in request):
            message = "Invalid value: exactly one of `exactly` or `firstAvailable` is required"
            yield Finding((*where, number), message, "keep one of them")
        exactly = mapping(request, "exactly")
        if exactly.get("allocationMode") == "All" and "count" in exactly:
            message = "Invalid value: must not be specified when allocationMode is 'All'"
            yield Finding((*where, number, "exactly", "count"), message, "leave it out")
