"""How does an attempt that was decided on outlive whoever makes it? It is written down in the cluster first.

Between deleting a gang and creating it anew, the job itself is nowhere. A ConfigMap beside it says what the
next one looks like, which pods must be gone first, and who is at it until when. Whoever comes later goes on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.kube.diagnosis.snapshot import Object
from paceline.kube.reading import mapping
from paceline.kube.submission.mark import RUN, Mark, Watch, read_mark, watch_patch
from paceline.plan.codec import Json

LABELS = {"app.kubernetes.io/managed-by": "paceline", "app.kubernetes.io/component": "next-attempt"}
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())
_JOB, _MANIFEST, _PODS, _SAYS = "job", "manifest", "pods", "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    job: str
    manifest: Object  # marked, as it is to be created
    mark: Mark
    pods: tuple[str, ...]  # of the attempt before: the new ones have their names
    says: str

    @property
    def attempt(self) -> int:
        return self.mark.attempts.number


def pending_name(job: str) -> str:
    return f"{job}-next-attempt"


def written(
    job: str, namespace: str, manifest: Object, pods: Sequence[str], says: str, watch: Watch
) -> dict[str, Json]:
    """The ConfigMap. `watch`: who is about to make the attempt."""
    notes = mapping(watch_patch(watch), "metadata", "annotations")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": pending_name(job),
            "namespace": namespace,
            "labels": {**LABELS, RUN: job[:63]},
            "annotations": {name: str(value) for name, value in notes.items()},
        },
        "data": {
            _JOB: job,
            _MANIFEST: json.dumps(manifest, separators=(",", ":")),
            _PODS: json.dumps(list(pods)),
            _SAYS: says,
        },
    }


def read_pending(found: Object) -> Pending | None:
    """None for a ConfigMap that is none of ours, or that somebody has damaged."""
    data = mapping(found, "data")
    try:
        manifest, pods = json.loads(str(data[_MANIFEST])), json.loads(str(data[_PODS]))
    except (KeyError, ValueError):
        return None
    mark = read_mark(manifest) if isinstance(manifest, dict) else None
    if mark is None or not isinstance(pods, list):
        return None
    return Pending(
        job=str(data.get(_JOB, "")),
        manifest=manifest,
        mark=mark,
        pods=tuple(map(str, pods)),
        says=str(data.get(_SAYS, "")),
    )
