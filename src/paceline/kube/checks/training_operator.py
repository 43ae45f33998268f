"""Can PyTorchJobs run? The training operator of Kubeflow, version 1."""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding, Level
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Snapshot, name_of
from paceline.kube.checks.workloads import (
    deployments,
    fine,
    has_label,
    operator_at_work,
    place_of,
    version_of,
)
from paceline.kube.reading import mappings

AREA = "training operator"
_WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
_WEBHOOKS = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_INSTALL = (
    "kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4'"
)


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target is Target.PYTORCHJOB
    versions = seen.served.get("pytorchjobs.kubeflow.org", ())
    if not versions:
        yield Finding(
            area=AREA,
            level=need.absent(matters=matters),
            what="PyTorchJob is not installed",
            evidence="the server does not serve pytorchjobs.kubeflow.org",
            why="its operator is not maintained any more; TrainJob follows it",
            command=_INSTALL if matters else "",
        )
        return
    found = deployments(seen, is_operator)
    troubles = operator_at_work(seen, need, AREA, found, name="the training operator", matters=matters)
    yield from troubles
    version = version_of(found[0]) if found else None
    if found and not troubles:
        known = f"{version[0]}.{version[1]}" if version else "of unknown version"
        yield fine(AREA, f"PyTorchJob: training operator {known} in {place_of(found[0])}")
    yield from _old(seen, found, version)


def _old(seen: Snapshot, found: list[Object], version: tuple[int, int] | None) -> Iterator[Finding]:
    if version is not None and version < (1, 9):
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"the training operator is old: {version[0]}.{version[1]}",
            evidence=f"image of Deployment {place_of(found[0])}",
            why="before 1.9 some fields that are rendered are refused or ignored",
            command=_INSTALL,
        )
    webhooks = [hook for one in seen.of(_WEBHOOKS) for hook in mappings(one, "webhooks")]
    is_checked = any(hook.get("name") == _WEBHOOK for hook in webhooks)
    if version is not None and version >= (1, 9) and seen.knows(_WEBHOOKS) and not is_checked:
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what="nobody checks PyTorchJobs when they are created",
            evidence=f"no webhook {_WEBHOOK}",
            why="a mistake in a manifest is then accepted, and the job never starts",
            command=_INSTALL,
        )


def is_operator(one: Object) -> bool:
    return has_label(one, "control-plane", "kubeflow-training-operator") or name_of(one).endswith(
        "training-operator"
    )
