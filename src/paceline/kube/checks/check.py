"""What do all checks say about a snapshot, and is what was asked for fine?"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.kube.checks import (
    efa,
    gpu_software,
    hyperpod,
    kuberay,
    kueue,
    node_health,
    nodes,
    policy,
    rights,
    storage,
    trainer,
    training_operator,
)
from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need
from paceline.kube.checks.snapshot import Object, Snapshot

SUBJECTS = (
    nodes,
    node_health,
    gpu_software,
    efa,
    training_operator,
    trainer,
    kuberay,
    kueue,
    hyperpod,
    storage,
    policy,
    rights,
)


@dataclass(frozen=True, slots=True)
class Checked:
    findings: tuple[Finding, ...]

    def of(self, *levels: Level) -> list[Finding]:
        return [one for one in self.findings if one.level in levels]

    @property
    def is_fine(self) -> bool:
        return not self.of(Level.PROBLEM)


# Which Deployments act on a job of this kind.
OPERATORS: dict[str, tuple[tuple[str, Callable[[Object], bool]], ...]] = {
    "PyTorchJob": (("the training operator", training_operator.is_operator),),
    "TrainJob": (
        ("Kubeflow Trainer", trainer.is_operator),
        ("JobSet", trainer.is_job_set_operator),
    ),
    "RayJob": (("KubeRay", kuberay.is_operator),),
    "RayCluster": (("KubeRay", kuberay.is_operator),),
    "HyperPodPyTorchJob": (("the HyperPod operator", hyperpod.is_operator),),
}


def check(seen: Snapshot, need: Need) -> Checked:
    return Checked(tuple(finding for subject in SUBJECTS for finding in subject.check(seen, need)))
