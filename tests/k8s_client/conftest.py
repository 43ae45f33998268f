"""A server and the client connected to it, for every test that talks to a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer

from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.client.kubernetes_api import KubernetesApi, connect


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        running.put_node()
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[KubernetesApi]:
    reached = connect(server.kubeconfig(tmp_path / "kubeconfig"))
    yield reached
    reached.close()


@pytest.fixture
def cluster(api: KubernetesApi) -> ClusterConnection:
    return ClusterConnection(api, "train")
