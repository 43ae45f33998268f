"""Who sends a job: we, or HyperPod's own command? Either way the cluster is asked first, and remembers it."""

from collections.abc import Mapping, Sequence
from typing import cast

from paceline.app.cluster_reach import Place
from paceline.cluster.hyp_door import Hyp
from paceline.cluster.kubeconfig import kubeconfig_files
from paceline.cluster.port import Manifest
from paceline.kube.diagnosis.snapshot import JOB_KINDS
from paceline.kube.hyp import KIND, handed


class ThroughHyp:
    """Looks for `hyp` at once, so that nothing is made where it is missing. Raises HypError."""

    def __init__(self, place: Place) -> None:
        self._hyp = Hyp(kubeconfig_files(place.kubeconfig), place.context)
        self.notes: list[str] = [f"sent by hyp {self._hyp.check()}"]

    def prepared(self, manifests: Sequence[Mapping[str, object]]) -> list[Manifest]:
        """With the job as hyp can carry it; what it cannot is in `notes`, or raises ConfigError."""
        made: list[Manifest] = []
        for one in manifests:
            if one.get("kind") not in JOB_KINDS:
                made.append(cast("Manifest", one))  # beside the job, and made by us
                continue
            done = handed(one)
            self.notes += done.notes
            made.append(cast("Manifest", done.job))
        return made

    def create(self, job: Mapping[str, object]) -> None:
        assert job.get("kind") == KIND, "prepared before it is sent"
        self._hyp.create(job)
