"""Which cluster is to be mended, and with whose tools? The kubeconfig of `check`, and the user's own helm."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.app.cluster_fix import Say, Workshop
from paceline.app.cluster_reach import Place, reached
from paceline.cluster.helm_door import Helm


@contextmanager
def workshop(
    kubeconfig: Path | None, context: str | None, records: Path, say: Say
) -> Iterator[tuple[Workshop, str]]:
    """With the namespace that the context names. Raises NotReadyError."""
    place = Place(kubeconfig=kubeconfig, context=context)
    with reached(place, without="plan for a snapshot: --from SNAPSHOT.json") as cluster:
        helm = Helm(cluster.kubeconfig, context)
        yield Workshop(api=cluster.api, helm=helm, records=records, say=say), cluster.namespace
