"""All rows of the failure table, the patterns that recognise them, and the functions that look for them.

Words are tried in this order, and the first that fit decide: what is exact comes before what is general.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from paceline.kube.diagnosis.failure import Failure, FailureClass, Remedy, Sign, Text
from paceline.kube.diagnosis.snapshot import Snapshot
from paceline.kube.diagnosis.table import (
    access,
    application,
    cloud,
    gpus,
    images,
    lasting,
    nodes,
    queueing,
    ray,
    scheduling,
    starting,
    storage,
)

_SUBJECTS = (
    access,
    queueing,
    scheduling,
    images,
    starting,
    storage,
    nodes,
    gpus,
    ray,
    cloud,
    application,
    lasting,
)

FAILURES: tuple[Failure, ...] = tuple(
    sorted((row for subject in _SUBJECTS for row in subject.ROWS), key=lambda row: row.number)
)
TEXTS: tuple[Text, ...] = (
    *access.TEXTS,
    *queueing.TEXTS,
    *cloud.EARLY_TEXTS,  # a health check is announced by a taint
    *storage.EARLY_TEXTS,  # claims and mounts, before the words of schedulers and kubelets
    *scheduling.TEXTS,
    *nodes.TEXTS,
    *images.TEXTS,
    *starting.TEXTS,
    *ray.TEXTS,
    *storage.FULL_TEXTS,
    *application.TEXTS,
    *images.LATE_TEXTS,
    *cloud.TEXTS,
    *storage.TEXTS,
    *gpus.TEXTS,
    *lasting.TEXTS,
    *gpus.LATE_TEXTS,
    *access.LATE_TEXTS,
    *starting.LATE_TEXTS,
    *nodes.LATE_TEXTS,
    *cloud.LATE_TEXTS,
    *application.LATE_TEXTS,
)
LOOKS: tuple[Callable[[Snapshot], Iterator[Sign]], ...] = tuple(subject.look for subject in _SUBJECTS)

UNKNOWN = Failure(
    number=0,
    name="unknown",
    what="something failed that no rule knows",
    kind=FailureClass.UNKNOWN,
    cause="the failure is not understood yet; these lines tell most",
    why="no rule of the table fits; send these lines with `kubectl describe` and the logs to the cluster's "
    "operators",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
)
# Nothing has ended yet: the job is left alone.
NOT_UNDERSTOOD = replace(
    UNKNOWN,
    what="a job does not run, and no rule knows why",
    cause="the job does not run, and it is not understood yet why; these lines tell most",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp",
    remedy=Remedy.WAIT,
    patience_s=None,
)
