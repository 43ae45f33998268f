"""Which cluster is meant, and as whom and where do we talk to it?"""

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
class Place:
    """As it was said on the command line."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def words(self) -> list[str]:
        """For a command that shall mean the same."""
        said = {"--kubeconfig": self.kubeconfig, "--context": self.context, "--namespace": self.namespace}
        return [word for flag, value in said.items() if value is not None for word in (flag, str(value))]


@dataclass(frozen=True, slots=True)
class Cluster:
    api: "KubernetesApi"
    namespace: str


@contextmanager
def reached(place: Place) -> Iterator[Cluster]:
    """Raises NotReadyError, ApiError."""
    files = kubeconfig_files(place.kubeconfig)
    its = [
        one
        for one in contexts(files)
        if one.name == place.context or (place.context is None and one.is_current)
    ]
    try:
        from paceline.cluster.kubernetes_door import reach
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]'"
        raise NotReadyError(f"Kubernetes' client is not installed: {error}", hint) from error
    api = reach(Path(":".join(str(path) for path in files)) if files else None, place.context)
    try:
        yield Cluster(api, place.namespace or (its[0].namespace if its else "default"))
    finally:
        api.close()
