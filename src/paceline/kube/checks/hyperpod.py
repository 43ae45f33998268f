"""Is this a HyperPod cluster, and can HyperPodPyTorchJobs run?"""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Snapshot, labels_of, name_of
from paceline.kube.checks.workloads import deployments, fine, has_label, operator_at_work
from paceline.kube.reading import mapping
from paceline.kube.well_known import HYPERPOD_HEALTH

AREA = "HyperPod"
_INSTALL = (
    "aws eks create-addon --cluster-name CLUSTER --addon-name amazon-sagemaker-hyperpod-training-operator"
)


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.HYPERPOD
    is_hyperpod = any(HYPERPOD_HEALTH in labels_of(node) for node in seen.of("nodes"))
    if Target.HYPERPOD.resource not in seen.served:
        if is_hyperpod or matters:
            yield Finding(
                area=AREA,
                level=need.absent(matters=matters),
                what="HyperPodPyTorchJob is not installed",
                evidence=f"the server does not serve {Target.HYPERPOD.resource}",
                why="its operator is an add-on of its own; PyTorchJobs run on HyperPod without it",
                command=_INSTALL,
            )
        return
    found = deployments(seen, is_operator)
    troubles = operator_at_work(seen, need, AREA, found, name="the HyperPod operator", matters=matters)
    yield from troubles
    if found and not troubles:
        yield fine(AREA, "HyperPodPyTorchJob: its operator is at work")
    if seen.knows("deployments.apps") and not deployments(seen, _is_cert_manager):
        yield Finding(
            area=AREA,
            level=need.broken(matters=matters) if matters else Level.WARNING,
            what="cert-manager is not there",
            evidence="no Deployment of cert-manager",
            why="the webhooks of the HyperPod operator get their certificates from it",
            command="aws eks create-addon --cluster-name CLUSTER --addon-name cert-manager",
        )


def is_operator(one: Object) -> bool:
    space = mapping(one, "metadata").get("namespace")
    return space == "aws-hyperpod" and ("training" in name_of(one) or "hp-" in name_of(one))


def _is_cert_manager(one: Object) -> bool:
    return name_of(one) == "cert-manager" or has_label(one, "app.kubernetes.io/name", "cert-manager")
