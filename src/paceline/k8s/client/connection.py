"""Connection to a cluster: context and namespace, resolved as kubectl does, closed after use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from paceline.core import environ
from paceline.core.errors import MissingPackageError, NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.objects import mapping, mappings

if TYPE_CHECKING:
    from paceline.k8s.client.kubernetes_api import KubernetesApi


_HINT = "name one by --kubeconfig or KUBECONFIG, or make one: `aws eks update-kubeconfig --name CLUSTER`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    name: str
    cluster: str
    server: str
    namespace: str
    is_current: bool


def kubeconfig_files(said: Path | None = None) -> list[Path]:
    """What was said, or KUBECONFIG, or ~/.kube/config; empty where there is none."""
    if said is not None:
        return [said]
    variable = environ.kubeconfig()
    if variable is not None:
        named = [Path(part) for part in variable.split(":") if part]
        return [path for path in named if path.exists()] or named[:1]  # as kubectl: some may be missing
    usual = Path.home() / ".kube" / "config"
    return [usual] if usual.exists() else []


def contexts(files: Sequence[Path]) -> list[Context]:
    """Of all files; as kubectl has it, the first that says something wins. Raises NotReadyError."""
    said = [_read(path) for path in files]
    current = next((str(one["current-context"]) for one in said if one.get("current-context")), "")
    servers = {
        str(one.get("name")): str(mapping(one, "cluster").get("server", ""))
        for file in reversed(said)
        for one in mappings(file, "clusters")
    }
    found: dict[str, Context] = {}
    for one in [one for file in said for one in mappings(file, "contexts")]:
        name, inner = str(one.get("name")), mapping(one, "context")
        cluster = str(inner.get("cluster", ""))
        its = Context(
            name=name,
            cluster=cluster,
            server=redact(servers.get(cluster, "")),
            namespace=str(inner.get("namespace") or "default"),
            is_current=name == current,
        )
        found.setdefault(name, its)
    return list(found.values())


def _read(path: Path) -> dict[str, object]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotReadyError(f"cannot read {path}: {error.strerror}", _HINT) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The reason may quote the line, and the line may hold a token.
        raise NotReadyError(f"{path} is no kubeconfig: it is not YAML", _HINT) from error
    if not isinstance(value, dict):
        raise NotReadyError(f"{path} is no kubeconfig: it holds no mapping", _HINT)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """As the user named it; what was not said is the kubeconfig's."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def words(self) -> list[str]:
        """For a command that shall mean the same."""
        said = {"--kubeconfig": self.kubeconfig, "--context": self.context, "--namespace": self.namespace}
        return [word for flag, value in said.items() if value is not None for word in (flag, str(value))]


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    api: "KubernetesApi"
    namespace: str
    kubeconfig: str | None = None  # its files, as the variable KUBECONFIG joins them


@contextmanager
def open_cluster(place: ClusterTarget, *, without: str = "") -> Iterator[ClusterConnection]:
    """`without`: what else can be done where the client is not installed. Raises NotReadyError, ApiError."""
    try:
        from paceline.k8s.client.kubernetes_api import connect
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]'" + (f", or {without}" if without else "")
        raise MissingPackageError(f"Kubernetes' client is not installed: {error}", hint) from error
    files = kubeconfig_files(place.kubeconfig)
    wanted = place.context
    its = [one for one in contexts(files) if one.name == wanted or (wanted is None and one.is_current)]
    joined = ":".join(str(path) for path in files) or None
    api = connect(None if joined is None else Path(joined), wanted)
    try:
        yield ClusterConnection(api, place.namespace or (its[0].namespace if its else "default"), joined)
    finally:
        api.close()
