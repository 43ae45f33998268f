"""What does Kubeflow Trainer refuse about a TrainJob or a runtime? In the words of its webhooks and CRDs.

See pkg/webhooks and pkg/runtime/framework/plugins of kubeflow/trainer 2.1 to 2.3.
"""

import re
from collections.abc import Iterator, Mapping

from paceline.kube.admission_job import find_in_commands, find_in_job_spec
from paceline.kube.admission_pod import find_in_resources, find_in_variables, find_in_volume, twice
from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.words import DNS_SUBDOMAIN

Spec = Mapping[str, object]
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_GROUP = "trainer.kubeflow.org"
_MANAGERS = (f"{_GROUP}/trainjob-controller", "kueue.x-k8s.io/multikueue")
_RESERVED = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
_OWN = ("dataset-initializer", "model-initializer", "node")
_POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
_WORDS_OF_PROCS = ("auto", "cpu", "gpu")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_PATCHED = ("template", "spec", "replicatedJobs")


def patched_pods(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    """What a TrainJob changes about pods: never whole ones."""
    for number, patch in enumerate(mappings(spec, "runtimePatches")):
        inside = (*path, "runtimePatches", number, "trainingRuntimeSpec", *_PATCHED)
        for index, job in enumerate(mappings(patch, "trainingRuntimeSpec", *_PATCHED)):
            where = (*inside, index, "template", "spec", "template", "spec")
            yield mapping(job, "template", "spec", "template", "spec"), where
    for number, override in enumerate(mappings(spec, "podTemplateOverrides")):
        yield mapping(override, "spec"), (*path, "podTemplateOverrides", number, "spec")


def find_in_trainjob(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from _references(spec, path)
    yield from _trainer(mapping(spec, "trainer"), (*path, "trainer"))
    managers = (patch.get("manager") for patch in mappings(spec, "runtimePatches"))
    yield from twice(managers, (*path, "runtimePatches"), "manager")
    for number, patch in enumerate(mappings(spec, "runtimePatches")):
        jobs = (job.get("name") for job in mappings(patch, "trainingRuntimeSpec", *_PATCHED))
        yield from twice(jobs, (*path, "runtimePatches", number), "job")
        prefix, slash, rest = str(patch.get("manager")).partition("/")
        if not (slash and rest and DNS_SUBDOMAIN.fullmatch(prefix)):
            what = 'must be a domain-prefixed path (such as "acme.io/foo")'
            where = (*path, "runtimePatches", number, "manager")
            yield Finding(where, what, "write paceline.dev/launcher, for example")
    for pod, where in patched_pods(spec, path):
        yield from _patch(pod, where)
    yield from _versions(spec, path)


def _references(spec: Spec, path: Path) -> Iterator[Finding]:
    reference, where = mapping(spec, "runtimeRef"), (*path, "runtimeRef")
    kind, group = reference.get("kind", RUNTIMES[0]), reference.get("apiGroup", _GROUP)
    if kind not in RUNTIMES or group != _GROUP:
        what = f"unsupported runtime: {kind}.{group}"
        yield Finding(where, what, f"write kind: {RUNTIMES[0]} or {RUNTIMES[1]}, apiGroup: {_GROUP}")
    if spec.get("managedBy", _MANAGERS[0]) not in _MANAGERS:
        what = f"ManagedBy must be {_MANAGERS[0]} or {_MANAGERS[1]} if set"
        yield Finding((*path, "managedBy"), what, "leave it out")
    for name in ("dataset", "model"):
        uri = mapping(spec, "initializer", name).get("storageUri")
        if isinstance(uri, str) and uri and not _URI.fullmatch(uri):
            what = "storageUri may be empty, or it must be a valid URI (scheme://...)"
            yield Finding(
                (*path, "initializer", name, "storageUri"), what, "write s3://bucket/data, for example"
            )


def _trainer(trainer: Spec, path: Path) -> Iterator[Finding]:
    procs = trainer.get("numProcPerNode")
    if isinstance(procs, str) and procs not in _WORDS_OF_PROCS:
        what = f"must have an int value or [{' '.join(_WORDS_OF_PROCS)}]"
        yield Finding((*path, "numProcPerNode"), what, "write numProcPerNode: 1, for example")
    names = {str(variable.get("name")) for variable in mappings(trainer, "env")}
    if taken := sorted(names.intersection(_RESERVED)):
        what = f"must not have reserved envs, invalid envs configured: [{' '.join(taken)}]"
        yield Finding((*path, "env"), what, "leave them out: Trainer sets them")
    yield from find_in_variables(trainer, path)
    yield from find_in_resources(mapping(trainer, "resourcesPerNode"), (*path, "resourcesPerNode"))
    words = {"command": trainer.get("command"), "args": trainer.get("args")}
    nodes = trainer.get("numNodes", 1)
    said = texts(words, "command")
    if said and isinstance(nodes, int):
        pod = {"containers": [words]}
        for found in find_in_commands(pod, (), nodes, None if procs is None else str(procs)):
            yield Finding((*path, "args"), found.what, found.hint)


def _patch(pod: Spec, path: Path) -> Iterator[Finding]:
    for kind in ("initContainers", "containers"):
        yield from twice((c.get("name") for c in mappings(pod, kind)), (*path, kind), "container")
        for number, container in enumerate(mappings(pod, kind)):
            where = (*path, kind, number)
            yield from twice((m.get("name") for m in mappings(container, "volumeMounts")), where, "mount")
            if kind == "containers" and container.get("env") and container.get("name") in _OWN:
                what = f"must not have envs for the {', '.join(_OWN)} containers"
                yield Finding((*where, "env"), what, "write them in trainer.env")
    yield from twice((v.get("name") for v in mappings(pod, "volumes")), (*path, "volumes"), "volume")
    for number, volume in enumerate(mappings(pod, "volumes")):
        yield from find_in_volume(volume, (*path, "volumes", number))


def _versions(spec: Spec, path: Path) -> Iterator[Finding]:
    """podTemplateOverrides were Trainer 2.1's; what came with 2.2 cannot stand beside them."""
    if "podTemplateOverrides" not in spec:
        return
    for name in ("runtimePatches", "activeDeadlineSeconds"):
        if name in spec:
            what = f"{name} is of Trainer 2.2 and later, which have no podTemplateOverrides"
            yield Finding((*path, name), what, "write runtimePatches instead of podTemplateOverrides")
    for number, override in enumerate(mappings(spec, "podTemplateOverrides")):
        pod, where = mapping(override, "spec"), (*path, "podTemplateOverrides", number, "spec")
        for name in ("securityContext", "terminationGracePeriodSeconds"):
            if name in pod:
                what = f"podTemplateOverrides of Trainer 2.1 have no {name}"
                yield Finding((*where, name), what, "write it in the runtime")


def pods_of_runtime(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    for number, job in enumerate(mappings(spec, *_PATCHED)):
        where = (*path, *_PATCHED, number, "template", "spec", "template", "spec")
        yield mapping(job, "template", "spec", "template", "spec"), where


def find_in_runtime(spec: Spec, path: Path) -> Iterator[Finding]:
    policy = mapping(spec, "mlPolicy")
    if len([name for name in _POLICIES if name in policy]) > 1:
        yield Finding((*path, "mlPolicy"), "Only one of the policy can be configured", "keep one of them")
    jobs = mappings(spec, *_PATCHED)
    where = (*path, *_PATCHED)
    yield from twice((job.get("name") for job in jobs), where, "job")
    if not jobs:
        yield Finding(where, "there is no job in it", "add replicatedJobs with a job called node")
    for number, job in enumerate(jobs):
        inside = (*where, number, "template", "spec")
        yield from find_in_job_spec(mapping(job, "template", "spec"), inside, usual="OnFailure")
    names = {
        c.get("name")
        for job in jobs
        for c in mappings(job, "template", "spec", "template", "spec", "containers")
    }
    if "torch" in policy and jobs and not ({"node"} <= {job.get("name") for job in jobs} and "node" in names):
        what = "Trainer looks for a job called node, with a container called node, and finds none"
        yield Finding(where, what, "call both node", is_advice=True)
    template = mapping(spec, "template", "spec")
    ordered = mapping(template, "startupPolicy").get("startupPolicyOrder") == "InOrder"
    if ordered and any("dependsOn" in job for job in jobs):
        what = "StartupPolicy and DependsOn APIs are mutually exclusive"
        yield Finding((*path, "template", "spec", "startupPolicy"), what, "keep dependsOn")
