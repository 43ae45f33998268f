"""How does kustomize learn what belongs together? One file beside the others."""

from collections.abc import Iterable

from paceline.kube.parts import Object

FILE = "kustomization.yaml"


def kustomization(namespace: str, files: Iterable[str]) -> Object:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": list(files),
    }
