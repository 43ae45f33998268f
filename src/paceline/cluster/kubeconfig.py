"""Which clusters does this user know? Contexts of kubeconfig files; users' secrets are not looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from paceline import environ
from paceline.errors import NotReadyError
from paceline.kube.reading import mapping, mappings
from paceline.redaction import redact

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
