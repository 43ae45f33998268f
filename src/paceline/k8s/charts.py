"""Helm charts that a fix installs, in pinned versions: the same command makes the same cluster.

`--atomic --wait`: Helm rolls back what does not get ready.
"""

import shlex
from dataclasses import dataclass

_MOST = "10m"  # images of operators are small, and of device plugins too


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    release: str
    chart: str
    version: str
    namespace: str
    repository: str = ""  # empty: the chart's address includes it
    values: tuple[str, ...] = ()

    def upgrade(self, *, dry_run: bool = False) -> list[str]:
        """Arguments of `helm`."""
        argv = ["upgrade", "--install", self.release, self.chart]
        argv += ["--repo", self.repository] if self.repository else []
        argv += ["--version", self.version, "--namespace", self.namespace, "--create-namespace"]
        for value in self.values:
            argv += ["--set", value]
        return [*argv, "--dry-run=server"] if dry_run else [*argv, "--atomic", "--wait", "--timeout", _MOST]

    @property
    def command(self) -> str:
        """Shell command; needs no `helm repo add` before."""
        return shlex.join(["helm", *self.upgrade()])

    @property
    def deployed(self) -> str:
        """How `helm list` calls it."""
        return f"{self.chart.rpartition('/')[2]}-{self.version}"


KUBERAY = Chart(
    release="kuberay-operator",
    chart="kuberay-operator",
    version="1.7.0",
    namespace="ray-system",
    repository="https://ray-project.github.io/kuberay-helm/",
)
TRAINER = Chart(
    release="kubeflow-trainer",
    chart="oci://ghcr.io/kubeflow/charts/kubeflow-trainer",
    version="2.3.0",
    namespace="kubeflow-system",
    values=("runtimes.torchDistributed.enabled=true",),
)
GPU_PLUGIN = Chart(
    release="nvdp",
    chart="nvidia-device-plugin",
    version="0.20.0",
    namespace="nvidia-device-plugin",
    repository="https://nvidia.github.io/k8s-device-plugin",
)
EFA_PLUGIN = Chart(
    release="aws-efa-k8s-device-plugin",
    chart="aws-efa-k8s-device-plugin",
    version="0.5.30",
    namespace="kube-system",
    repository="https://aws.github.io/eks-charts",
)
CHARTS = (KUBERAY, TRAINER, GPU_PLUGIN, EFA_PLUGIN)
