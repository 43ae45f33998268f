"""Classification of a text by the first row of the table of failures that matches it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Text
from paceline.k8s.diagnose.rules import (
    api_server,
    application,
    cloud,
    container_start,
    gpus,
    images,
    nodes,
    queueing,
    ray,
    scheduling,
    storage,
    timeouts,
)
from paceline.k8s.diagnose.snapshot import Snapshot

# Patterns are tried in this order, and the first match decides: exact patterns before general ones.

_SUBJECTS = (
    api_server,
    queueing,
    scheduling,
    images,
    container_start,
    storage,
    nodes,
    gpus,
    ray,
    cloud,
    application,
    timeouts,
)

FAILURES: tuple[Failure, ...] = tuple(
    sorted((row for subject in _SUBJECTS for row in subject.ROWS), key=lambda row: row.number)
)
TEXTS: tuple[Text, ...] = (
    *api_server.TEXTS,
    *queueing.TEXTS,
    *cloud.EARLY_TEXTS,  # a health check is announced by a taint
    *storage.EARLY_TEXTS,  # claims and mounts, before the words of schedulers and kubelets
    *scheduling.TEXTS,
    *nodes.TEXTS,
    *images.TEXTS,
    *container_start.TEXTS,
    *ray.TEXTS,
    *storage.FULL_TEXTS,
    *application.TEXTS,
    *images.LATE_TEXTS,
    *cloud.TEXTS,
    *storage.TEXTS,
    *gpus.TEXTS,
    *timeouts.TEXTS,
    *gpus.LATE_TEXTS,
    *api_server.LATE_TEXTS,
    *container_start.LATE_TEXTS,
    *nodes.LATE_TEXTS,
    *cloud.LATE_TEXTS,
    *application.LATE_TEXTS,
)
DETECTORS: tuple[Callable[[Snapshot], Iterator[Sign]], ...] = tuple(
    subject.find_signs for subject in _SUBJECTS
)

UNKNOWN = Failure(
    number=0,
    name="unknown",
    what="a failure that matches no rule",
    kind=FailureClass.UNKNOWN,
    cause="unknown cause; these are the most relevant lines",
    why="no rule matches; send these lines with `kubectl describe` and the logs to the cluster's operators",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
)
# Nothing has ended yet: the job is left alone.
NOT_UNDERSTOOD = replace(
    UNKNOWN,
    what="a job does not run, and no rule matches",
    cause="the job does not run, for an unknown cause; these are the most relevant lines",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp",
    remedy=Remedy.WAIT,
    patience_s=None,
)


_TRIED: dict[Source | None, tuple[Text, ...]] = {
    None: TEXTS,
    **{source: tuple(text for text in TEXTS if source in text.sources) for source in Source},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    failure: Failure
    values: dict[str, str]
    by: Text
    where: int  # offset of the match in the text

    @property
    def is_doubtful(self) -> bool:
        """Outside a log nothing is known of progress."""
        return self.by.doubt is Doubt.ALWAYS


@lru_cache(maxsize=4096)  # a follower reads the same events and log lines at every poll
def classify(text: str, source: Source | None = None) -> Recognised | None:
    """`source` is where the text was found; without it, all words are tried."""
    for known in _TRIED[source]:
        match = known.words.search(text)
        if match is not None:
            values = {name: value.strip() for name, value in match.groupdict().items() if value}
            failure = known.failure if known.choose is None else known.choose(values)
            return Recognised(failure=failure, values=values, by=known, where=match.start())
    return None
