"""The cause of all that was seen: the heaviest sign, and among equals the earliest.

Read are, in this order: the job's own state, its queue, pods, containers, events, and the logs. A rank that
died first is the cause; ranks that complain about it afterwards are not.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.kube.diagnosis.cluster_words import read_cluster
from paceline.kube.diagnosis.failure import FailureClass, Sign, Weight
from paceline.kube.diagnosis.finding import Finding, command_of, evidence_of, filled
from paceline.kube.diagnosis.logs import read_log
from paceline.kube.diagnosis.pods import Ended, ended, phase, pod_named, rank_of, running_since
from paceline.kube.diagnosis.snapshot import Log, Object, Snapshot, labels_of, name_of
from paceline.kube.diagnosis.table import LOOKS
from paceline.kube.diagnosis.table.application import LISTED_EXIT_CODE
from paceline.kube.diagnosis.table.gpus import EFA_UNUSED
from paceline.kube.diagnosis.table.queueing import with_own_pods
from paceline.kube.diagnosis.torchelastic import Root, first_failure
from paceline.kube.diagnosis.unknown import unknown
from paceline.kube.diagnosis.values import last_step, values_of
from paceline.kube.reading import mapping


def diagnose(snapshot: Snapshot) -> Finding | None:
    """None when nothing is wrong, as far as can be seen."""
    signs = [with_own_pods(sign, snapshot) for sign in _signs(snapshot)]
    if not signs:
        return unknown(snapshot)
    root = first_failure(snapshot.logs)
    signs.sort(key=lambda sign: _order(sign, root))
    best = _listed(signs[0], signs)
    if best.heaviness is Weight.NOTE:
        # A warning in a log of a program that runs is no reason to complain about it.
        worse = unknown(snapshot)
        if worse is not None:
            return worse
        if best.failure.weight is not Weight.NOTE:
            return None
    return _finding(best, signs, snapshot)


def _signs(snapshot: Snapshot) -> Iterator[Sign]:
    for look in LOOKS:
        yield from look(snapshot)
    yield from read_cluster(snapshot)
    ends = ended(snapshot)
    ray_failed = any(mapping(job, "status").get("jobStatus") == "FAILED" for job in snapshot.of("RayJob"))
    for log in snapshot.logs:
        pod = pod_named(snapshot, log.pod)
        sign = read_log(log, pod)
        if sign is not None:
            yield _dated(sign, log, pod, ends, ray_failed=ray_failed)


def _dated(sign: Sign, log: Log, pod: Object, ends: list[Ended], *, ray_failed: bool) -> Sign:
    """A log line without a time is as old as the end of its container; that of a living one is a note."""
    end = next((one for one in ends if one.pod is pod), None)
    at_s = sign.at_s if sign.at_s is not None else (None if end is None else end.at_s)
    # The submitter of a RayJob succeeds whatever becomes of the job; its log is the driver's.
    driver = ray_failed and phase(pod) == "Succeeded"
    runs_again = running_since(pod) is not None
    over = end is not None or (log.previous and not runs_again) or not pod or phase(pod) == "Failed" or driver
    if "ray.io/cluster" in labels_of(pod) and not ray_failed:
        over = False  # Ray and KubeRay replace what ends, and the job goes on
    weight = sign.weight if over or sign.failure is EFA_UNUSED else Weight.NOTE
    return replace(sign, at_s=at_s, weight=weight, rank=sign.rank if sign.rank is not None else rank_of(pod))


def _order(sign: Sign, root: Root | None) -> tuple[int, int, float]:
    """torchelastic knows itself which of its ranks failed first; otherwise times tell."""
    is_root = root is not None and root.is_of(name_of(sign.pod), sign.rank)
    return -sign.heaviness, 0 if is_root else 1, float("inf") if sign.at_s is None else sign.at_s


def _listed(best: Sign, signs: list[Sign]) -> Sign:
    """An exit code that the user listed says more than the exception that led to it."""
    if best.failure.kind is not FailureClass.APP:
        return best
    listed = (one for one in signs if one.failure is LISTED_EXIT_CODE and one.pod is best.pod)
    return next(listed, best)


def _finding(best: Sign, signs: list[Sign], snapshot: Snapshot) -> Finding:
    values = values_of(best, snapshot)
    failure = best.failure
    same = [sign for sign in signs if sign.failure is failure and sign.pod is best.pod]
    more = [line for sign in same for line in sign.evidence]
    also = dict.fromkeys(
        sign.failure.name
        for sign in signs
        if sign.failure.number != failure.number and sign.heaviness is not Weight.NOTE
    )
    end = next((one for one in ended(snapshot) if one.pod is best.pod), None)
    after = values.get("after_s", "")
    return Finding(
        failure=failure,
        cause=filled(failure.cause, values),
        evidence=evidence_of((*best.evidence, *more)),
        why=filled(failure.why, values),
        command=command_of(failure, values),
        at_s=best.at_s,
        pod=name_of(best.pod),
        node=values.get("node", ""),
        rank=int(values["rank"]) if values.get("rank", "").isdigit() else None,
        step=last_step(snapshot, best.pod),
        exit_code=None if end is None else end.exit_code,
        seen=max(sign.seen for sign in same),
        after_s=float(after) if re.fullmatch(r"[\d.]+", after) else None,
        also=tuple(also),
        # One rank may report plainly what the others report in general words.
        is_doubtful=best.is_doubtful and all(sign.is_doubtful for sign in signs if sign.failure is failure),
    )
