"""Rules of KubeRay that go beyond single fields: what it refuses, or silently does not do."""

import re
import shlex
from collections.abc import Iterator, Mapping

from paceline.core.humanize import did_you_mean
from paceline.k8s.objects import mapping, mappings
from paceline.k8s.spec.command import find_in_command
from paceline.k8s.validate.admission import find_duplicates, find_in_pod, find_in_resources
from paceline.k8s.validate.schema import Finding, Path

Spec = Mapping[str, object]
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\S*")

# Of `ray start` in Ray 2.60: KubeRay passes each parameter on unchanged.
# fmt: off
_START = frozenset((
    "address", "autoscaling-config", "block", "cgroup-path", "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port", "dashboard-host", "dashboard-port", "disable-usage-stats",
    "enable-object-reconstruction", "enable-resource-isolation", "head", "include-dashboard",
    "include-log-monitor", "labels", "labels-file", "log-color", "log-style", "max-worker-port",
    "memory", "metrics-export-port", "min-worker-port", "no-monitor", "no-redirect-output",
    "node-ip-address", "node-manager-port", "node-name", "num-cpus", "num-gpus", "object-manager-port",
    "object-spilling-directory", "object-store-memory", "plasma-directory", "port", "proxy-server-url",
    "ray-client-server-port", "ray-debugger-external", "redis-password", "redis-shard-ports",
    "redis-username", "resources", "runtime-env-agent-port", "system-config", "system-reserved-cpu",
    "system-reserved-memory", "temp-dir", "tracing-startup-hook", "verbose", "worker-port-list",
))
# fmt: on


def pods_of_cluster(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    yield mapping(spec, "headGroupSpec", "template", "spec"), (*path, "headGroupSpec", "template", "spec")
    for number, group in enumerate(mappings(spec, "workerGroupSpecs")):
        yield mapping(group, "template", "spec"), (*path, "workerGroupSpecs", number, "template", "spec")


def pods_of_job(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    if "rayClusterSpec" in spec:
        yield from pods_of_cluster(mapping(spec, "rayClusterSpec"), (*path, "rayClusterSpec"))
    if "submitterPodTemplate" in spec:
        where = (*path, "submitterPodTemplate", "spec")
        yield mapping(spec, "submitterPodTemplate", "spec"), where


def find_in_cluster(spec: Spec, path: Path) -> Iterator[Finding]:
    for pod, where in pods_of_cluster(spec, path):
        yield from find_in_pod(pod, where)
        if spec.get("enableInTreeAutoscaling") and pod.get("restartPolicy", "Never") != "Never":
            message = "pods of a cluster that Ray scales must not be restarted by others"
            is_old = mapping(spec, "autoscalerOptions").get("version") != "v2"  # v2 refuses it
            yield Finding((*where, "restartPolicy"), message, "write restartPolicy: Never", is_advice=is_old)
    groups = mappings(spec, "workerGroupSpecs")
    yield from find_duplicates((g.get("groupName") for g in groups), (*path, "workerGroupSpecs"), "group")
    yield from _start_params(mapping(spec, "headGroupSpec"), (*path, "headGroupSpec"))
    for number, group in enumerate(groups):
        where = (*path, "workerGroupSpecs", number)
        yield from _start_params(group, where)
        yield from _replicas(group, where)
    options = (*path, "autoscalerOptions")
    yield from find_in_resources(mapping(spec, "autoscalerOptions", "resources"), (*options, "resources"))
    if "autoscalerOptions" in spec and not spec.get("enableInTreeAutoscaling"):
        message = "there is no autoscaler that reads it"
        yield Finding(options, message, "add enableInTreeAutoscaling: true", is_advice=True)
    version = spec.get("rayVersion")
    if version and not _VERSION.fullmatch(str(version)):
        message = f"{version} is not a version of Ray"
        yield Finding((*path, "rayVersion"), message, "write 2.60.0, for example", is_advice=True)


def find_in_job(spec: Spec, path: Path) -> Iterator[Finding]:
    if ("rayClusterSpec" in spec) == ("clusterSelector" in spec):
        yield Finding(path, "it needs rayClusterSpec or clusterSelector, and not both", "keep one of them")
    if "rayClusterSpec" in spec:
        yield from find_in_cluster(mapping(spec, "rayClusterSpec"), (*path, "rayClusterSpec"))
    if "submitterPodTemplate" in spec:
        where = (*path, "submitterPodTemplate", "spec")
        submitter = mapping(spec, "submitterPodTemplate", "spec")
        yield from find_in_pod(submitter, where)
        if submitter.get("restartPolicy", "Never") == "Always":
            yield Finding((*where, "restartPolicy"), "a Job's pod cannot always restart", "write Never")
    yield from _ending(spec, path)
    yield from _submission(spec, path)
    if not spec.get("entrypoint"):
        if spec.get("submissionMode") != "InteractiveMode":
            message = "entrypoint is missing: there is nothing to submit"
            yield Finding((*path, "entrypoint"), message, "add entrypoint")
        return
    try:
        argv = shlex.split(str(spec["entrypoint"]))
    except ValueError as error:
        yield Finding((*path, "entrypoint"), f"a shell cannot read it: {error}", "close every quote")
        return
    yield from find_in_command(argv, (*path, "entrypoint"))


def find_in_service(spec: Spec, path: Path) -> Iterator[Finding]:
    ports = mappings(spec, "ports")
    yield from find_duplicates((p.get("name") for p in ports), (*path, "ports"), "port")
    for name in ("nodePort", "port"):
        numbers = [f"{p[name]}/{p.get('protocol', 'TCP')}" for p in ports if name in p]
        yield from find_duplicates(numbers, (*path, "ports"), name)
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield Finding((*path, "ports"), "Required value", "add a port, or write clusterIP: None")
    for number, port in enumerate(ports):
        if len(ports) > 1 and "name" not in port:
            yield Finding((*path, "ports", number), "one of several ports needs a name", "add name")
        if "nodePort" in port and spec.get("type") not in ("NodePort", "LoadBalancer"):
            yield Finding(
                (*path, "ports", number, "nodePort"), "only a NodePort has one", "write type: NodePort"
            )


def _start_params(group: Spec, path: Path) -> Iterator[Finding]:
    for name in mapping(group, "rayStartParams"):
        if name not in _START:
            hint = did_you_mean(name, sorted(_START), otherwise="see `ray start --help`")
            message = f"`ray start` of Ray 2.60 has no parameter {name}"
            yield Finding((*path, "rayStartParams", name), message, hint, is_advice=True)


def _replicas(group: Spec, path: Path) -> Iterator[Finding]:
    """KubeRay refuses a minimum above the maximum, and moves `replicas` between the two."""
    minimum = _count(group, "minReplicas", 0)
    maximum = _count(group, "maxReplicas", 2**31 - 1)
    replicas = _count(group, "replicas", minimum)
    if minimum > maximum:
        message = f"minReplicas {minimum} is more than maxReplicas {maximum}"
        yield Finding((*path, "minReplicas"), message, "change one of the two")
    elif not minimum <= replicas <= maximum:
        message = (
            f"replicas is {replicas}, but it must be from minReplicas {minimum} to maxReplicas {maximum}"
        )
        yield Finding((*path, "replicas"), message, "change one of the three", is_advice=True)


def _count(group: Spec, name: str, default: int) -> int:
    value = group.get(name)
    return value if isinstance(value, int) else default


def _ending(spec: Spec, path: Path) -> Iterator[Finding]:
    ends = spec.get("shutdownAfterJobFinishes")
    if spec.get("ttlSecondsAfterFinished") and not ends:
        message = "ttlSecondsAfterFinished does nothing without shutdownAfterJobFinishes: true"
        yield Finding((*path, "ttlSecondsAfterFinished"), message, "add shutdownAfterJobFinishes: true")
    if ends and "clusterSelector" in spec:
        message = "an existing cluster is not shut down"
        yield Finding((*path, "shutdownAfterJobFinishes"), message, "leave it out with clusterSelector")
    if spec.get("suspend") and not ends:
        message = "only a job that shuts its cluster down can be suspended"
        yield Finding((*path, "suspend"), message, "add shutdownAfterJobFinishes: true")
    strategy = mapping(spec, "deletionStrategy")
    if "deletionRules" in strategy and ends:
        message = "deletionRules and shutdownAfterJobFinishes cannot be used together"
        yield Finding((*path, "deletionStrategy"), message, "keep one of them")
    if "deletionRules" in strategy and {"onSuccess", "onFailure"} & strategy.keys():
        message = "legacy policies (onSuccess/onFailure) and deletionRules cannot be used together"
        yield Finding((*path, "deletionStrategy"), message, "keep deletionRules")
    for number, rule in enumerate(mappings(strategy, "deletionRules")):
        if len({"jobStatus", "jobDeploymentStatus"} & mapping(rule, "condition").keys()) != 1:
            where = (*path, "deletionStrategy", "deletionRules", number, "condition")
            yield Finding(where, "it must name jobStatus or jobDeploymentStatus", "keep one of them")


def _submission(spec: Spec, path: Path) -> Iterator[Finding]:
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode != "K8sJobMode" and "submitterPodTemplate" in spec:
        message = f"there is no submitter's pod with submissionMode {mode}"
        is_ignored = mode != "SidecarMode"  # which refuses it
        hint = "remove it, or use K8sJobMode"
        yield Finding((*path, "submitterPodTemplate"), message, hint, is_advice=is_ignored)
    if mode == "SidecarMode" and "clusterSelector" in spec:
        message = "a sidecar cannot be added to an existing cluster"
        yield Finding((*path, "submissionMode"), message, "use K8sJobMode")
    if mode == "InteractiveMode" and spec.get("backoffLimit"):
        message = "a job that you submit by hand cannot be retried"
        yield Finding((*path, "backoffLimit"), message, "leave it out")
