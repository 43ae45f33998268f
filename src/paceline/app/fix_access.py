"""Which cluster is to be mended, and with whose tools? The kubeconfig of `check`, and the user's own helm."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.app.cluster_fix import Say, Workshop
from paceline.cluster.helm_door import Helm
from paceline.cluster.kubeconfig import contexts, kubeconfig_files
from paceline.errors import NotReadyError


@contextmanager
def workshop(
    kubeconfig: Path | None, context: str | None, records: Path, say: Say
) -> Iterator[tuple[Workshop, str]]:
    """With the namespace that the context names. Raises NotReadyError."""
    try:
        from paceline.cluster.kubernetes_door import reach
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[k8s]', or plan for a snapshot: --from SNAPSHOT.json"
        raise NotReadyError(f"Kubernetes' client is not installed: {error}", hint) from error
    files = kubeconfig_files(kubeconfig)
    its = [one for one in contexts(files) if one.name == context or (context is None and one.is_current)]
    joined = ":".join(str(path) for path in files) if files else None
    api = reach(None if joined is None else Path(joined), context)
    try:
        helm = Helm(joined, context)
        yield Workshop(api=api, helm=helm, records=records, say=say), its[0].namespace if its else "default"
    finally:
        api.close()
