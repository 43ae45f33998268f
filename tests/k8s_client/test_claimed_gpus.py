"""A job whose pods claim GPUs is refused where no node offers them, before anything exists."""

from pathlib import Path
from typing import Any

from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.wording import Wording
from tests.k8s.torch_rendered import BIG, GPUS, rendered

from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.client.kubernetes_api import connect
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import CLAIM_TEMPLATE, PYTORCH_JOB
from paceline.k8s.spec.job import Target
from paceline.k8s.submit.submission import NoRoomError, submit

Object = dict[str, Any]


def put_nodes(server: ApiServer, gpus: int) -> None:
    for name in ("a", "b"):
        has: Object = {"cpu": "192", "memory": "2Ti"}
        server.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": has}}
        )
        devices = [{"name": f"gpu-{n}"} for n in range(gpus)]
        pool: Object = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec: Object = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": devices}
        about = {"name": f"{name}-gpus"}
        server.put(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": about, "spec": spec}
        )


def test_claims_that_cannot_be_satisfied_are_refused(tmp_path: Path, wording: Wording) -> None:
    made: Any = rendered(Target.PYTORCHJOB, {}, {**GPUS, "nodes": 2, "gpu_claims": True}, BIG).objects
    with ApiServer().running() as server:
        put_nodes(server, gpus=4)
        api = connect(server.kubeconfig(tmp_path / "kubeconfig"))
        try:
            cluster = ClusterConnection(api, "train")
            with wording.raises(NoRoomError):
                submit(cluster, list(made), RetryPolicy())
            assert server.writes == []
            put_nodes(server, gpus=8)
            submit(cluster, list(made), RetryPolicy())
            assert len(server.of(CLAIM_TEMPLATE)) == len(server.of(PYTORCH_JOB)) == 1
        finally:
            api.close()
