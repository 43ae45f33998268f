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


_HINT = "set --kubeconfig or KUBECONFIG, or create one: `aws eks update-kubeconfig --name CLUSTER`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    name: str
    cluster: str
    server: str
    namespace: str
    is_current: bool


def kubeconfig_files(given: Path | None = None) -> list[Path]:
    """The given file, or KUBECONFIG, or ~/.kube/config; empty if there is none."""
    if given is not None:
        return [given]
    variable = environ.kubeconfig()
    if variable is not None:
        named = [Path(part) for part in variable.split(":") if part]
        return [path for path in named if path.exists()] or named[:1]  # like kubectl: some may be missing
    default = Path.home() / ".kube" / "config"
    return [default] if default.exists() else []


def contexts(files: Sequence[Path]) -> list[Context]:
    """Contexts of all files; as in kubectl, the first definition wins. Raises NotReadyError."""
    kubeconfigs = [_read(path) for path in files]
    current = next((str(file["current-context"]) for file in kubeconfigs if file.get("current-context")), "")
    servers = {
        str(cluster.get("name")): str(mapping(cluster, "cluster").get("server", ""))
        for file in reversed(kubeconfigs)
        for cluster in mappings(file, "clusters")
    }
    by_name: dict[str, Context] = {}
    for entry in [context for file in kubeconfigs for context in mappings(file, "contexts")]:
        name = str(entry.get("name"))
        inner = mapping(entry, "context")
        cluster = str(inner.get("cluster", ""))
        its = Context(
            name=name,
            cluster=cluster,
            server=redact(servers.get(cluster, "")),
            namespace=str(inner.get("namespace") or "default"),
            is_current=name == current,
        )
        by_name.setdefault(name, its)
    return list(by_name.values())


def _read(path: Path) -> dict[str, object]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotReadyError(f"cannot read {path}: {error.strerror}", _HINT) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The reason may quote the line, and the line may hold a token.
        raise NotReadyError(f"{path} is not a kubeconfig: it is not YAML", _HINT) from error
    if not isinstance(value, dict):
        raise NotReadyError(f"{path} is not a kubeconfig: it is not a mapping", _HINT)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """Cluster as selected by flags; the rest is taken from the kubeconfig."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def argv(self) -> list[str]:
        """Flags that give another command the same target."""
        options = {"--kubeconfig": self.kubeconfig, "--context": self.context, "--namespace": self.namespace}
        return [word for flag, value in options.items() if value is not None for word in (flag, str(value))]


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    api: "KubernetesApi"
    namespace: str
    kubeconfig: str | None = None  # its files, as the variable KUBECONFIG joins them


@contextmanager
def open_cluster(target: ClusterTarget, *, without: str = "") -> Iterator[ClusterConnection]:
    """`without`: what else can be done where the client is not installed. Raises NotReadyError, ApiError."""
    try:
        from paceline.k8s.client.kubernetes_api import connect
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]'" + (f", or {without}" if without else "")
        raise MissingPackageError(f"Kubernetes' client is not installed: {error}", hint) from error
    files = kubeconfig_files(target.kubeconfig)
    context_name = target.context
    its = [
        context
        for context in contexts(files)
        if context.name == context_name or (context_name is None and context.is_current)
    ]
    joined = ":".join(str(path) for path in files) or None
    api = connect(None if joined is None else Path(joined), context_name)
    try:
        yield ClusterConnection(api, target.namespace or (its[0].namespace if its else "default"), joined)
    finally:
        api.close()
