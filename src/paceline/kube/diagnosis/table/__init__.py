"""Which failures are known? All rows of the table, the words they are known by, and who looks for them.

Words are tried in this order, and the first that fit decide: what is exact comes before what is general.
"""

from collections.abc import Callable, Iterator

from paceline.kube.diagnosis.failure import Failure, FailureClass, Remedy, Sign, Text
from paceline.kube.diagnosis.snapshot import Snapshot
from paceline.kube.diagnosis.table import (
    access,
    application,
    gpus,
    images,
    lasting,
    nodes,
    queueing,
    scheduling,
    starting,
)

_SUBJECTS = (access, queueing, scheduling, images, starting, nodes, gpus, application, lasting)

FAILURES: tuple[Failure, ...] = tuple(
    sorted((row for subject in _SUBJECTS for row in subject.ROWS), key=lambda row: row.number)
)
TEXTS: tuple[Text, ...] = (
    *access.TEXTS,
    *queueing.TEXTS,
    *scheduling.TEXTS,
    *nodes.TEXTS,
    *starting.TEXTS,
    *images.TEXTS,
    *application.TEXTS,
    *images.LATE_TEXTS,
    *gpus.TEXTS,
    *lasting.TEXTS,
    *gpus.LATE_TEXTS,
    *access.LATE_TEXTS,
    *application.LATE_TEXTS,
)
LOOKS: tuple[Callable[[Snapshot], Iterator[Sign]], ...] = tuple(subject.look for subject in _SUBJECTS)

UNKNOWN = Failure(
    number=0,
    name="unknown",
    what="something failed that no rule knows",
    kind=FailureClass.UNKNOWN,
    cause="why it failed is not known; this is the best that was seen",
    why="no rule of the table fits; it is treated like a failure of the program, and so not tried again",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
)
