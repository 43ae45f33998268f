"""Can TrainJobs run? Kubeflow Trainer 2, JobSet below it, and a runtime for torch."""

import re
from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.checks.workloads import deployments, fine, has_label, operator_at_work
from paceline.kube.fixes.charts import TRAINER
from paceline.kube.reading import mapping

AREA = "Trainer and JobSet"
CONFIG, CONFIG_NAMESPACE = "kubeflow-trainer-public", "kubeflow-system"
_RUNTIMES = ("clustertrainingruntimes.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org")
_FRAMEWORK = "trainer.kubeflow.org/framework"


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.TRAINJOB
    if "trainjobs.trainer.kubeflow.org" not in seen.served:
        yield Finding(
            area=AREA,
            level=need.absent(matters=matters),
            what="TrainJob is not installed",
            evidence="the server does not serve trainjobs.trainer.kubeflow.org",
            command=TRAINER.command if matters else "",
            cure="trainer",
        )
        return
    controllers = deployments(seen, is_operator)
    troubles = operator_at_work(seen, need, AREA, controllers, name="Kubeflow Trainer", matters=matters)
    troubles += _job_set(seen, need, matters=matters)
    troubles += _runtime(seen)
    yield from troubles
    version = _version(seen)
    if not troubles:
        known = version or "of unknown version"
        yield fine(AREA, f"TrainJob: Trainer {known}, JobSet, runtimes {', '.join(_torch(seen)) or 'unseen'}")
    yield from _versions(seen, version)


def _job_set(seen: Snapshot, need: Need, *, matters: bool) -> list[Finding]:
    if "jobsets.jobset.x-k8s.io" in seen.served:
        found = deployments(seen, is_job_set_operator)
        return operator_at_work(seen, need, AREA, found, name="JobSet", matters=matters)
    return [
        Finding(
            area=AREA,
            level=need.broken(matters=matters),
            what="Trainer is there, but JobSet is not",
            evidence="the server does not serve jobsets.jobset.x-k8s.io",
            why="a TrainJob becomes a JobSet; without it, no pod is made",
            command=TRAINER.command,
            cure="trainer",
        )
    ]


def _runtime(seen: Snapshot) -> list[Finding]:
    """What we render brings a runtime of its own, so nothing that was asked for is in the way."""
    if not any(seen.knows(kind) for kind in _RUNTIMES) or _torch(seen):
        return []
    return [
        Finding(
            area=AREA,
            level=Level.WARNING,
            what="there is no runtime for torch",
            evidence=f"no (Cluster)TrainingRuntime with the label {_FRAMEWORK}=torch",
            why="a TrainJob of others names the runtime that it runs in; job render brings one with its own",
            command=TRAINER.command,
            cure="runtime",
        )
    ]


def _versions(seen: Snapshot, version: str) -> Iterator[Finding]:
    if seen.version and seen.minor < (1, 31):
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"Kubernetes {seen.version} is older than Trainer wants",
            evidence="/version",
            why="Trainer 2 is made for 1.31 and newer",
        )
    if seen.knows("configmaps") and not version:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what="the version of Trainer is not known",
            evidence=f"no ConfigMap kubeflow-system/{CONFIG} with kubeflow_trainer_version",
            why="the fields of a TrainJob change from 2.1 to 2.3: a manifest must be of the right one",
        )


def _version(seen: Snapshot) -> str:
    return next((version_in(one) for one in seen.of("configmaps") if name_of(one) == CONFIG), "")


def version_in(config_map: Object) -> str:
    """Such as 2.3.0; empty where it says none."""
    said = re.search(
        r"\d+\.\d+(\.\d+)?", str(mapping(config_map, "data").get("kubeflow_trainer_version", ""))
    )
    return said[0] if said else ""


def _torch(seen: Snapshot) -> list[str]:
    return [
        name_of(one)
        for kind in _RUNTIMES
        for one in seen.of(kind)
        if labels_of(one).get(_FRAMEWORK) == "torch"
    ]


def is_operator(one: Object) -> bool:
    return name_of(one) == "kubeflow-trainer-controller-manager" or has_label(
        one, "app.kubernetes.io/name", "trainer"
    )


def is_job_set_operator(one: Object) -> bool:
    return (
        name_of(one).endswith("jobset-controller-manager")
        or name_of(one) == "jobset-controller"
        or has_label(one, "app.kubernetes.io/name", "jobset")
    )
