"""What does HyperPod's training operator not do, about a job whose fields are all right one by one?"""

import re
from collections.abc import Iterator, Mapping

from paceline.kube.admission_job import find_in_commands
from paceline.kube.admission_pod import find_in_pod, twice
from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.well_known import INSTANCE_TYPE

Spec = Mapping[str, object]
_TYPES = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")


def pods_of_hyperpod(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    for number, replica in enumerate(mappings(spec, "replicaSpecs")):
        yield mapping(replica, "template", "spec"), (*path, "replicaSpecs", number, "template", "spec")


def find_in_hyperpod(spec: Spec, path: Path) -> Iterator[Finding]:
    replicas = mappings(spec, "replicaSpecs")
    if not replicas:
        yield Finding((*path, "replicaSpecs"), "there are no pods in it", "add replicaSpecs")
    yield from twice((one.get("name") for one in replicas), (*path, "replicaSpecs"), "replica")
    nodes = sum(count for one in replicas if isinstance(count := one.get("replicas", 1), int))
    procs = spec.get("nprocPerNode")
    for number, one in enumerate(replicas):
        if "template" not in one:
            yield Finding((*path, "replicaSpecs", number), "it has no template for its pods", "add template")
    for pod, where in pods_of_hyperpod(spec, path):
        yield from find_in_pod(pod, where)
        yield from _started_by_its_agent(pod, where)
        yield from _types(pod, where)
        yield from find_in_commands(pod, where, nodes, procs if isinstance(procs, str) else None)
    yield from _patterns(mapping(spec, "runPolicy"), (*path, "runPolicy"))


def _started_by_its_agent(pod: Spec, path: Path) -> Iterator[Finding]:
    for number, one in enumerate(mappings(pod, "containers")):
        words = [*texts(one, "command"), *texts(one, "args")]
        if words and words[0].rpartition("/")[2] == "torchrun":
            what = "torchrun does not hear HyperPod's operator, which then takes the pods for dead"
            where = (*path, "containers", number, "command" if one.get("command") else "args")
            hint = "use hyperpodrun, of an image with hyperpod-elastic-agent in it"
            yield Finding(where, what, hint, is_advice=True)


def _types(pod: Spec, path: Path) -> Iterator[Finding]:
    for name in _TYPES:
        said = mapping(pod, "nodeSelector").get(name)
        if isinstance(said, str) and not said.startswith("ml."):
            what = f"no node of HyperPod is of type {said}: they say ml. before it"
            yield Finding((*path, "nodeSelector", name), what, f"write ml.{said}", is_advice=True)


def _patterns(policy: Spec, path: Path) -> Iterator[Finding]:
    rules = mappings(policy, "logMonitoringConfiguration")
    where = (*path, "logMonitoringConfiguration")
    yield from twice((rule.get("name") for rule in rules), where, "rule")
    for number, rule in enumerate(rules):
        for name in ("logPattern", "stopPattern"):
            try:
                re.compile(str(rule.get(name, "")))
            except re.error as error:
                yield Finding(
                    (*where, number, name), f"it cannot be searched for: {error}", "mend the pattern"
                )
