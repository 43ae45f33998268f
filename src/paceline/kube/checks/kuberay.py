"""Can RayJobs and RayClusters run? The KubeRay operator."""

from collections.abc import Iterator

from paceline.kube.checks.finding import Finding
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
from paceline.kube.fixes.charts import KUBERAY

AREA = "KubeRay"
_CRDS = (
    "kubectl apply --server-side -k "
    f"'github.com/ray-project/kuberay/ray-operator/config/crd?ref=v{KUBERAY.version}'"
)


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    matters = need.target in (Target.RAYJOB, Target.RAYCLUSTER)
    served = {kind: seen.served.get(f"{kind}.ray.io", ()) for kind in ("rayjobs", "rayclusters")}
    if not any(served.values()):
        yield Finding(
            area=AREA,
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
            area=AREA,
            level=need.broken(matters=matters),
            what=f"{' and '.join(old)} are not served in version v1",
            evidence=f"served: {', '.join(sorted({v for vs in served.values() for v in vs}))}",
            why="Helm never upgrades CRDs: the operator may be new, and what it reads is old",
            command=_CRDS,
        )
    found = deployments(seen, is_operator)
    troubles = operator_at_work(seen, need, AREA, found, name="KubeRay", matters=matters)
    yield from troubles
    if found and not troubles and not old:
        version = version_of(found[0])
        known = f"{version[0]}.{version[1]}" if version else "of unknown version"
        yield fine(AREA, f"RayJob, RayCluster: KubeRay {known} in {place_of(found[0])}")


def is_operator(one: Object) -> bool:
    return name_of(one) == "kuberay-operator" or has_label(one, "app.kubernetes.io/name", "kuberay-operator")
