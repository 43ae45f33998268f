"""A server and the door to it, for every test of what talks to a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.api_server import ApiServer

from paceline.app.cluster_reach import Cluster
from paceline.cluster.kubernetes_door import KubernetesApi, reach


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        running.put_node()
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[KubernetesApi]:
    reached = reach(server.kubeconfig(tmp_path / "kubeconfig"))
    yield reached
    reached.close()


@pytest.fixture
def cluster(api: KubernetesApi) -> Cluster:
    return Cluster(api, "train")
