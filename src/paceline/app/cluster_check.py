"""Is a cluster good for what is wanted of it? A snapshot is taken, or read from a file, and checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cluster.kubeconfig import Context, contexts, kubeconfig_files
from paceline.errors import ConfigError, NotReadyError, PacelineError, Problem
from paceline.kube.checks.check import Checked, check
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Snapshot, read_snapshot

if TYPE_CHECKING:
    from paceline.cluster.eks_door import EksCluster
    from paceline.cluster.kubernetes_door import KubernetesApi

_RECORD = "record one: paceline cluster check --save SNAPSHOT.json"


def check_cluster(seen: Snapshot, need: Need) -> Checked:
    return check(seen, need)


def known_contexts(kubeconfig: Path | None) -> list[Context]:
    """Of the kubeconfig files of this user; none where there is no such file."""
    return contexts(kubeconfig_files(kubeconfig))


def clusters_of_eks(region: str | None, profile: str | None = None) -> "list[EksCluster]":
    """Raises NotReadyError without boto3, and UnreachableError."""
    try:
        from paceline.cluster.eks_door import eks_clusters
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[aws]'"
        raise NotReadyError(f"Amazon's client is not installed: {error}", hint) from error
    return eks_clusters(region, profile)


def look_at_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, target: Target | None
) -> Snapshot:
    """Raises ApiError, NotReadyError."""
    from paceline.cluster.snapshot import take_snapshot

    files = kubeconfig_files(kubeconfig)
    its = [one for one in contexts(files) if one.name == context or (context is None and one.is_current)]
    reach = _door()
    api = reach(Path(":".join(str(path) for path in files)) if files else None, context)
    try:
        return take_snapshot(api, namespace or (its[0].namespace if its else "default"), target)
    finally:
        api.close()


def load_snapshot(path: Path) -> Snapshot:
    """Raises ConfigError, PacelineError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PacelineError(f"cannot read {path}: {error.strerror}", _RECORD) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem("the file is not JSON", _RECORD, str(path))]) from error
    return read_snapshot(value, str(path))


def save_snapshot(seen: Snapshot, path: Path) -> None:
    try:
        path.write_text(json.dumps(seen.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        hint = "name a file in a folder that exists and can be written to"
        raise PacelineError(f"cannot write {path}: {error.strerror}", hint) from error


def _door() -> "Callable[[Path | None, str | None], KubernetesApi]":
    """Only who asks a cluster needs the client."""
    try:
        from paceline.cluster.kubernetes_door import reach
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]', or check a snapshot: --from SNAPSHOT.json"
        raise NotReadyError(f"Kubernetes' client is not installed: {error}", hint) from error
    return reach
