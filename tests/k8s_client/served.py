"""Loads a snapshot into the API server of the tests."""

from typing import Any

from tests.fixtures.kubernetes.api_server import ApiServer

from paceline.k8s.kinds import KINDS, NODE, Kind

Object = dict[str, Any]


def serve(server: ApiServer, snapshot: Object) -> None:
    """The server becomes the cluster of the snapshot."""
    by_resource = {kind.resource: kind for kind in KINDS}
    built_in = [
        *("", "apps", "batch", "storage.k8s.io", "networking.k8s.io", "resource.k8s.io"),
        *("admissionregistration.k8s.io", "authorization.k8s.io"),
    ]
    server.served = {kind for kind in KINDS if kind.group in built_in or kind.resource in snapshot["served"]}
    if "nodepools.karpenter.sh" in snapshot["served"]:
        server.served.add(Kind("NodePool", "nodepools", "v1", "karpenter.sh", is_namespaced=False))
    for node in server.of(NODE):
        server.remove(NODE, node["metadata"]["name"])
    for resource, result in snapshot["objects"].items():
        kind = by_resource[resource]
        for item in result:
            if kind.is_namespaced:
                item["metadata"].setdefault("namespace", snapshot["namespace"])
            server.put({"apiVersion": kind.api_version, "kind": kind.name, **item})
