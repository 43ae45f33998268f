"""Checks of operators: Kubeflow's training operator and Trainer, KubeRay, HyperPod, Kueue."""

import re
from collections.abc import Iterator

import yaml

from paceline.k8s.charts import KUBERAY, TRAINER
from paceline.k8s.check.findings import (
    Finding,
    Level,
    Need,
    check_operator,
    deployments,
    has_label,
    list_names,
    namespaced_name,
    ok_finding,
    version_of,
)
from paceline.k8s.check.snapshot import Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import HYPERPOD_HEALTH, mapping, mappings
from paceline.k8s.spec.job import Target

TRAINING_OPERATOR_AREA = "training operator"
_WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
_WEBHOOKS = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_INSTALL = (
    "kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4'"
)


def check_training_operator(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.PYTORCHJOB
    versions = seen.served.get("pytorchjobs.kubeflow.org", ())
    if not versions:
        yield Finding(
            area=TRAINING_OPERATOR_AREA,
            level=need.absent(matters=matters),
            what="PyTorchJob is not installed",
            evidence="the server does not serve pytorchjobs.kubeflow.org",
            why="its operator is no longer maintained; TrainJob replaces it",
            command=_INSTALL if matters else "",
        )
        return
    operators = deployments(seen, is_training_operator)
    problems = check_operator(
        seen, need, TRAINING_OPERATOR_AREA, operators, name="the training operator", matters=matters
    )
    yield from problems
    version = version_of(operators[0]) if operators else None
    if operators and not problems:
        known = f"{version[0]}.{version[1]}" if version else "of unknown version"
        yield ok_finding(
            TRAINING_OPERATOR_AREA,
            f"PyTorchJob: training operator {known} in {namespaced_name(operators[0])}",
        )
    yield from _old(seen, operators, version)


def _old(seen: Snapshot, operators: list[Object], version: tuple[int, int] | None) -> Iterator[Finding]:
    if version is not None and version < (1, 9):
        yield Finding(
            area=TRAINING_OPERATOR_AREA,
            level=Level.WARNING,
            what=f"the training operator is old: {version[0]}.{version[1]}",
            evidence=f"image of Deployment {namespaced_name(operators[0])}",
            why="versions before 1.9 reject or ignore some rendered fields",
            command=_INSTALL,
        )
    webhooks = [hook for webhook in seen.of(_WEBHOOKS) for hook in mappings(webhook, "webhooks")]
    is_checked = any(hook.get("name") == _WEBHOOK for hook in webhooks)
    if version is not None and version >= (1, 9) and seen.knows(_WEBHOOKS) and not is_checked:
        yield Finding(
            area=TRAINING_OPERATOR_AREA,
            level=Level.WARNING,
            what="PyTorchJobs are not validated on creation",
            evidence=f"no webhook {_WEBHOOK}",
            why="an invalid manifest is accepted, and the job does not start",
            command=_INSTALL,
        )


def is_training_operator(deployment: Object) -> bool:
    return has_label(deployment, "control-plane", "kubeflow-training-operator") or name_of(
        deployment
    ).endswith("training-operator")


TRAINER_AREA = "Trainer and JobSet"
TRAINER_CONFIG = "kubeflow-trainer-public"
TRAINER_NAMESPACE = "kubeflow-system"
_RUNTIMES = ("clustertrainingruntimes.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org")
_FRAMEWORK = "trainer.kubeflow.org/framework"


def check_trainer(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.TRAINJOB
    if "trainjobs.trainer.kubeflow.org" not in seen.served:
        yield Finding(
            area=TRAINER_AREA,
            level=need.absent(matters=matters),
            what="TrainJob is not installed",
            evidence="the server does not serve trainjobs.trainer.kubeflow.org",
            command=TRAINER.command if matters else "",
            cure="trainer",
        )
        return
    controllers = deployments(seen, is_trainer)
    problems = check_operator(seen, need, TRAINER_AREA, controllers, name="Kubeflow Trainer", matters=matters)
    problems += _job_set(seen, need, matters=matters)
    problems += _runtime(seen)
    yield from problems
    version = _version(seen)
    if not problems:
        known = version or "of unknown version"
        yield ok_finding(
            TRAINER_AREA, f"TrainJob: Trainer {known}, JobSet, runtimes {', '.join(_torch(seen)) or 'unseen'}"
        )
    yield from _versions(seen, version)


def _job_set(seen: Snapshot, need: Need, *, matters: bool) -> list[Finding]:
    if "jobsets.jobset.x-k8s.io" in seen.served:
        operators = deployments(seen, is_job_set_operator)
        return check_operator(seen, need, TRAINER_AREA, operators, name="JobSet", matters=matters)
    return [
        Finding(
            area=TRAINER_AREA,
            level=need.broken(matters=matters),
            what="Trainer is installed, but JobSet is not",
            evidence="the server does not serve jobsets.jobset.x-k8s.io",
            why="a TrainJob becomes a JobSet; without it, no pod is created",
            command=TRAINER.command,
            cure="trainer",
        )
    ]


def _runtime(seen: Snapshot) -> list[Finding]:
    """Rendered jobs bring their own runtime, so a missing one never conflicts with the need."""
    if not any(seen.knows(kind) for kind in _RUNTIMES) or _torch(seen):
        return []
    return [
        Finding(
            area=TRAINER_AREA,
            level=Level.WARNING,
            what="there is no runtime for torch",
            evidence=f"no (Cluster)TrainingRuntime with the label {_FRAMEWORK}=torch",
            why="a TrainJob refers to a runtime; job render creates one with its jobs",
            command=TRAINER.command,
            cure="runtime",
        )
    ]


def _versions(seen: Snapshot, version: str) -> Iterator[Finding]:
    if seen.version and seen.minor < (1, 31):
        yield Finding(
            area=TRAINER_AREA,
            level=Level.WARNING,
            what=f"Kubernetes {seen.version} is older than Trainer requires",
            evidence="/version",
            why="Trainer 2 requires 1.31 or newer",
        )
    if seen.knows("configmaps") and not version:
        yield Finding(
            area=TRAINER_AREA,
            level=Level.NOTE,
            what="the version of Trainer is unknown",
            evidence=f"no ConfigMap kubeflow-system/{TRAINER_CONFIG} with kubeflow_trainer_version",
            why="the fields of a TrainJob change from 2.1 to 2.3: a manifest must match the version",
        )


def _version(seen: Snapshot) -> str:
    return next(
        (
            version_in(config_map)
            for config_map in seen.of("configmaps")
            if name_of(config_map) == TRAINER_CONFIG
        ),
        "",
    )


def version_in(config_map: Object) -> str:
    """Such as 2.3.0; empty if there is none."""
    match = re.search(
        r"\d+\.\d+(\.\d+)?", str(mapping(config_map, "data").get("kubeflow_trainer_version", ""))
    )
    return match[0] if match else ""


def _torch(seen: Snapshot) -> list[str]:
    return [
        name_of(runtime)
        for kind in _RUNTIMES
        for runtime in seen.of(kind)
        if labels_of(runtime).get(_FRAMEWORK) == "torch"
    ]


def is_trainer(deployment: Object) -> bool:
    return name_of(deployment) == "kubeflow-trainer-controller-manager" or has_label(
        deployment, "app.kubernetes.io/name", "trainer"
    )


def is_job_set_operator(deployment: Object) -> bool:
    return (
        name_of(deployment).endswith("jobset-controller-manager")
        or name_of(deployment) == "jobset-controller"
        or has_label(deployment, "app.kubernetes.io/name", "jobset")
    )


KUBERAY_AREA = "KubeRay"
_CRDS = (
    "kubectl apply --server-side -k "
    f"'github.com/ray-project/kuberay/ray-operator/config/crd?ref=v{KUBERAY.version}'"
)


def check_kuberay(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target in (Target.RAYJOB, Target.RAYCLUSTER)
    served = {kind: seen.served.get(f"{kind}.ray.io", ()) for kind in ("rayjobs", "rayclusters")}
    if not any(served.values()):
        yield Finding(
            area=KUBERAY_AREA,
            level=need.absent(matters=matters),
            what="RayJob and RayCluster are not installed",
            evidence="the server does not serve rayjobs.ray.io and rayclusters.ray.io",
            command=KUBERAY.command if matters else "",
            cure="kuberay",
        )
        return
    old = [kind for kind, versions in served.items() if "v1" not in versions]
    if old:
        yield Finding(
            area=KUBERAY_AREA,
            level=need.broken(matters=matters),
            what=f"{' and '.join(old)} are not served in version v1",
            evidence=f"served: {', '.join(sorted({v for vs in served.values() for v in vs}))}",
            why="Helm never upgrades CRDs: the operator may be newer than its CRDs",
            command=_CRDS,
        )
    operators = deployments(seen, is_kuberay_operator)
    problems = check_operator(seen, need, KUBERAY_AREA, operators, name="KubeRay", matters=matters)
    yield from problems
    if operators and not problems and not old:
        version = version_of(operators[0])
        known = f"{version[0]}.{version[1]}" if version else "of unknown version"
        yield ok_finding(
            KUBERAY_AREA, f"RayJob, RayCluster: KubeRay {known} in {namespaced_name(operators[0])}"
        )


def is_kuberay_operator(deployment: Object) -> bool:
    return name_of(deployment) == "kuberay-operator" or has_label(
        deployment, "app.kubernetes.io/name", "kuberay-operator"
    )


HYPERPOD_AREA = "HyperPod"
_HYPERPOD_INSTALL = (
    "aws eks create-addon --cluster-name CLUSTER --addon-name amazon-sagemaker-hyperpod-training-operator"
)


def check_hyperpod(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.HYPERPOD
    is_hyperpod = any(HYPERPOD_HEALTH in labels_of(node) for node in seen.of("nodes"))
    if Target.HYPERPOD.resource not in seen.served:
        if is_hyperpod or matters:
            yield Finding(
                area=HYPERPOD_AREA,
                level=need.absent(matters=matters),
                what="HyperPodPyTorchJob is not installed",
                evidence=f"the server does not serve {Target.HYPERPOD.resource}",
                why="its operator is a separate add-on; PyTorchJobs run on HyperPod without it",
                command=_HYPERPOD_INSTALL,
            )
        return
    operators = deployments(seen, is_hyperpod_operator)
    problems = check_operator(
        seen, need, HYPERPOD_AREA, operators, name="the HyperPod operator", matters=matters
    )
    yield from problems
    if operators and not problems:
        yield ok_finding(HYPERPOD_AREA, "HyperPodPyTorchJob: its operator is running")
    if seen.knows("deployments.apps") and not deployments(seen, _is_cert_manager):
        yield Finding(
            area=HYPERPOD_AREA,
            level=need.broken(matters=matters) if matters else Level.WARNING,
            what="cert-manager is not installed",
            evidence="no Deployment of cert-manager",
            why="the webhooks of the HyperPod operator get their certificates from it",
            command="aws eks create-addon --cluster-name CLUSTER --addon-name cert-manager",
        )


def is_hyperpod_operator(deployment: Object) -> bool:
    space = mapping(deployment, "metadata").get("namespace")
    return space == "aws-hyperpod" and ("training" in name_of(deployment) or "hp-" in name_of(deployment))


def _is_cert_manager(deployment: Object) -> bool:
    return name_of(deployment) == "cert-manager" or has_label(
        deployment, "app.kubernetes.io/name", "cert-manager"
    )


KUEUE_AREA = "Kueue"
_QUEUES = "localqueues.kueue.x-k8s.io"
KUEUE_CONFIG = "kueue-manager-config"
KUEUE_CONFIG_FILE = "controller_manager_config.yaml"
_FRAMEWORKS = {
    Target.JOB: "batch/job",
    Target.PYTORCHJOB: "kubeflow.org/pytorchjob",
    Target.TRAINJOB: "trainer.kubeflow.org/trainjob",
    Target.RAYJOB: "ray.io/rayjob",
    Target.RAYCLUSTER: "ray.io/raycluster",
}


def check_kueue(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if _QUEUES not in seen.served:
        return  # queues are optional
    operators = deployments(seen, _is_it)
    problems = check_operator(
        seen, need, KUEUE_AREA, operators, name="Kueue", matters=need.target is not None
    )
    yield from problems
    queues = seen.of(_QUEUES)
    if not seen.knows(_QUEUES) and all(rule.resource != _QUEUES for rule in seen.refused):
        yield Finding(
            area=KUEUE_AREA,
            level=Level.WARNING,
            what=f"queues in namespace {seen.namespace} could not be read",
            evidence=f"{_QUEUES}: the server did not respond",
            why="Kueue's conversion webhook does not respond; jobs that name a queue fail too",
            command="kubectl -n kueue-system get pods,endpoints",
        )
    if seen.knows(_QUEUES) and not queues:
        yield Finding(
            area=KUEUE_AREA,
            level=Level.NOTE,
            what=f"no queue in namespace {seen.namespace}",
            evidence="no LocalQueue",
            why="jobs run unqueued, or stay suspended if Kueue manages jobs without a queue name",
            command="kubectl get localqueues -A",
        )
    stopped = [queue for queue in queues if not _is_active(queue)]
    for queue in stopped:
        yield _inactive(seen, need, queue)
    if queues and not stopped and not problems:
        yield ok_finding(
            KUEUE_AREA, f"queues in {seen.namespace}: {list_names([name_of(queue) for queue in queues])}"
        )
    yield from _integration(seen, need)


def _inactive(seen: Snapshot, need: Need, queue: Object) -> Finding:
    condition = _active(queue)
    return Finding(
        area=KUEUE_AREA,
        level=need.broken(matters=need.target is not None),
        what=f"queue {name_of(queue)} accepts no jobs",
        evidence=f"condition Active={condition.get('status')}: {condition.get('message', '')}",
        why="jobs that name it stay suspended",
        command=f"kubectl -n {seen.namespace} describe localqueue {name_of(queue)}",
    )


def _integration(seen: Snapshot, need: Need) -> Iterator[Finding]:
    frameworks = _frameworks(seen)
    target = need.target or Target.PYTORCHJOB
    framework = _FRAMEWORKS.get(target)
    is_there = target.resource in seen.served or target is Target.JOB
    if frameworks is None or framework is None or framework in frameworks or not is_there:
        return
    is_required = need.target is not None
    yield Finding(
        area=KUEUE_AREA,
        level=Level.WARNING if is_required else Level.NOTE,
        what=f"Kueue does not manage {target.value}s",
        evidence=f"ConfigMap {KUEUE_CONFIG}: integrations.frameworks has no {framework}",
        why="such a job starts at once, bypassing the queue"
        + (" (disabled in Kueue 0.19)" if target is Target.PYTORCHJOB else ""),
        command=f"kubectl -n kueue-system edit configmap {KUEUE_CONFIG}",
    )


def _frameworks(seen: Snapshot) -> list[str] | None:
    """None: not known."""
    for config_map in seen.of("configmaps"):
        if name_of(config_map) != KUEUE_CONFIG:
            continue
        try:
            config = yaml.safe_load(str(mapping(config_map, "data").get(KUEUE_CONFIG_FILE, "")))
        except yaml.YAMLError:
            return None
        frameworks = mapping(config, "integrations").get("frameworks")
        return [str(name) for name in frameworks] if isinstance(frameworks, list) else None
    return None


def _active(queue: Object) -> Object:
    active = [c for c in mappings(queue, "status", "conditions") if c.get("type") == "Active"]
    return active[0] if active else {}


def _is_active(queue: Object) -> bool:
    return _active(queue).get("status", "True") == "True"  # a new queue has no condition yet


def _is_it(deployment: Object) -> bool:
    return name_of(deployment).endswith("kueue-controller-manager") or has_label(
        deployment, "app.kubernetes.io/name", "kueue"
    )
