"""Which cluster is meant, and in which namespace? Found as kubectl finds it, and closed again afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cluster.kubeconfig import contexts, kubeconfig_files
from paceline.errors import MissingPackageError

if TYPE_CHECKING:
    from paceline.cluster.kubernetes_door import KubernetesApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """As the user named it; what was not said is the kubeconfig's."""

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
    kubeconfig: str | None = None  # its files, as the variable KUBECONFIG joins them


@contextmanager
def reached(place: Place, *, without: str = "") -> Iterator[Cluster]:
    """`without`: what else can be done where the client is not installed. Raises NotReadyError, ApiError."""
    try:
        from paceline.cluster.kubernetes_door import reach
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]'" + (f", or {without}" if without else "")
        raise MissingPackageError(f"Kubernetes' client is not installed: {error}", hint) from error
    files = kubeconfig_files(place.kubeconfig)
    wanted = place.context
    its = [one for one in contexts(files) if one.name == wanted or (wanted is None and one.is_current)]
    joined = ":".join(str(path) for path in files) or None
    api = reach(None if joined is None else Path(joined), wanted)
    try:
        yield Cluster(api, place.namespace or (its[0].namespace if its else "default"), joined)
    finally:
        api.close()
