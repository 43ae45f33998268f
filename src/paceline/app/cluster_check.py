"""Is a cluster good for what is wanted of it? A snapshot is taken, or read from a file, and checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.app.cluster_reach import Place, reached
from paceline.cluster.kubeconfig import Context, contexts, kubeconfig_files
from paceline.errors import (
    CannotWriteError,
    ClusterWishError,
    MissingPackageError,
    Problem,
    UnreadableFileError,
)
from paceline.kube.checks.check import Checked, check
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Snapshot, read_snapshot

if TYPE_CHECKING:
    from paceline.cluster.eks_door import EksCluster

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
        raise MissingPackageError(f"Amazon's client is not installed: {error}", hint) from error
    return eks_clusters(region, profile)


def look_at_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, target: Target | None
) -> Snapshot:
    """Raises ApiError, NotReadyError."""
    from paceline.cluster.snapshot import take_snapshot

    place = Place(kubeconfig=kubeconfig, context=context, namespace=namespace)
    with reached(place, without="check a snapshot: --from SNAPSHOT.json") as cluster:
        return take_snapshot(cluster.api, cluster.namespace, target)


def load_snapshot(path: Path) -> Snapshot:
    """Raises ConfigError, PacelineError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", _RECORD) from error
    except (ValueError, RecursionError) as error:
        raise ClusterWishError([Problem("the file is not JSON", _RECORD, str(path))]) from error
    return read_snapshot(value, str(path))


def save_snapshot(seen: Snapshot, path: Path) -> None:
    try:
        path.write_text(json.dumps(seen.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        hint = "name a file in a folder that exists and can be written to"
        raise CannotWriteError(f"cannot write {path}: {error.strerror}", hint) from error
