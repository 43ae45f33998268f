"""Which cluster is meant, and in which namespace? Found as kubectl finds it, and closed again afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cluster.kubeconfig import contexts, kubeconfig_files
from paceline.errors import NotReadyError

if TYPE_CHECKING:
    from paceline.cluster.kubernetes_door import KubernetesApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """As the user named it; what was not said is the kubeconfig's."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


@contextmanager
def reached(cluster: Cluster) -> "Iterator[tuple[KubernetesApi, str]]":
    """The door, and the namespace. Raises NotReadyError."""
    try:
        from paceline.cluster.kubernetes_door import reach
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]'"
        raise NotReadyError(f"Kubernetes' client is not installed: {error}", hint) from error
    files = kubeconfig_files(cluster.kubeconfig)
    wanted = cluster.context
    its = [one for one in contexts(files) if one.name == wanted or (wanted is None and one.is_current)]
    api = reach(Path(":".join(str(path) for path in files)) if files else None, wanted)
    try:
        yield api, cluster.namespace or (its[0].namespace if its else "default")
    finally:
        api.close()
