"""All checks of a snapshot, and the verdict on the request."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.k8s.check import devices, namespace, nodes, operators, storage
from paceline.k8s.check import nodes as node_health
from paceline.k8s.check.findings import Finding, Level, Need
from paceline.k8s.check.snapshot import Object, Snapshot

CHECKS = (
    nodes.check_nodes,
    node_health.check_node_health,
    devices.check_gpu_software,
    devices.check_efa,
    operators.check_training_operator,
    operators.check_trainer,
    operators.check_kuberay,
    operators.check_kueue,
    operators.check_hyperpod,
    storage.check_storage,
    namespace.check_policy,
    namespace.check_rights,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    findings: tuple[Finding, ...]

    def of(self, *levels: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level in levels]

    @property
    def is_fine(self) -> bool:
        return not self.of(Level.PROBLEM)


# Which Deployments act on a job of this kind.
OPERATORS: dict[str, tuple[tuple[str, Callable[[Object], bool]], ...]] = {
    "PyTorchJob": (("the training operator", operators.is_training_operator),),
    "TrainJob": (
        ("Kubeflow Trainer", operators.is_trainer),
        ("JobSet", operators.is_job_set_operator),
    ),
    "RayJob": (("KubeRay", operators.is_kuberay_operator),),
    "RayCluster": (("KubeRay", operators.is_kuberay_operator),),
    "HyperPodPyTorchJob": (("the HyperPod operator", operators.is_hyperpod_operator),),
}


def run_checks(seen: Snapshot, need: Need) -> CheckResult:
    return CheckResult(tuple(finding for find in CHECKS for finding in find(seen, need)))
