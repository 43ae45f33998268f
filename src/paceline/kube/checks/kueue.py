"""Does a queue decide when jobs start, and does it know the kind that is to run? Kueue."""

from collections.abc import Iterator

import yaml

from paceline.kube.checks.finding import Finding, Level, named
from paceline.kube.checks.need import Need, Target
from paceline.kube.checks.snapshot import Object, Snapshot, name_of
from paceline.kube.checks.workloads import deployments, fine, has_label, operator_at_work
from paceline.kube.reading import mapping, mappings

AREA = "Kueue"
_QUEUES = "localqueues.kueue.x-k8s.io"
CONFIG = "kueue-manager-config"
CONFIG_FILE = "controller_manager_config.yaml"
_FRAMEWORKS = {
    Target.JOB: "batch/job",
    Target.PYTORCHJOB: "kubeflow.org/pytorchjob",
    Target.TRAINJOB: "trainer.kubeflow.org/trainjob",
    Target.RAYJOB: "ray.io/rayjob",
    Target.RAYCLUSTER: "ray.io/raycluster",
}


def check(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if _QUEUES not in seen.served:
        return  # nobody has to have queues
    found = deployments(seen, _is_it)
    troubles = operator_at_work(seen, need, AREA, found, name="Kueue", matters=need.target is not None)
    yield from troubles
    queues = seen.of(_QUEUES)
    if not seen.knows(_QUEUES) and all(rule.resource != _QUEUES for rule in seen.refused):
        yield Finding(
            area=AREA,
            level=Level.WARNING,
            what=f"queues in namespace {seen.namespace} could not be read",
            evidence=f"{_QUEUES}: the server failed to answer",
            why="Kueue's own webhook converts them, and does not answer; jobs that name a queue fail too",
            command="kubectl -n kueue-system get pods,endpoints",
        )
    if seen.knows(_QUEUES) and not queues:
        yield Finding(
            area=AREA,
            level=Level.NOTE,
            what=f"no queue in namespace {seen.namespace}",
            evidence="no LocalQueue",
            why="jobs there run unqueued, or wait for ever where Kueue manages jobs without a queue's name",
            command="kubectl get localqueues -A",
        )
    stopped = [one for one in queues if not _is_active(one)]
    for one in stopped:
        yield _inactive(seen, need, one)
    if queues and not stopped and not troubles:
        yield fine(AREA, f"queues in {seen.namespace}: {named([name_of(one) for one in queues])}")
    yield from _integration(seen, need)


def _inactive(seen: Snapshot, need: Need, one: Object) -> Finding:
    condition = _active(one)
    return Finding(
        area=AREA,
        level=need.broken(matters=need.target is not None),
        what=f"queue {name_of(one)} takes no jobs",
        evidence=f"condition Active={condition.get('status')}: {condition.get('message', '')}",
        why="jobs that name it stay suspended",
        command=f"kubectl -n {seen.namespace} describe localqueue {name_of(one)}",
    )


def _integration(seen: Snapshot, need: Need) -> Iterator[Finding]:
    frameworks = _frameworks(seen)
    target = need.target or Target.PYTORCHJOB
    wanted = _FRAMEWORKS.get(target)
    is_there = target.resource in seen.served or target is Target.JOB
    if frameworks is None or wanted is None or wanted in frameworks or not is_there:
        return
    asked = need.target is not None
    yield Finding(
        area=AREA,
        level=Level.WARNING if asked else Level.NOTE,
        what=f"Kueue does not look after {target.value}s",
        evidence=f"ConfigMap {CONFIG}: integrations.frameworks has no {wanted}",
        why="such a job runs at once, beside the queue"
        + (" (Kueue 0.19 has it switched off)" if target is Target.PYTORCHJOB else ""),
        command=f"kubectl -n kueue-system edit configmap {CONFIG}",
    )


def _frameworks(seen: Snapshot) -> list[str] | None:
    """None: not known."""
    for one in seen.of("configmaps"):
        if name_of(one) != CONFIG:
            continue
        try:
            said = yaml.safe_load(str(mapping(one, "data").get(CONFIG_FILE, "")))
        except yaml.YAMLError:
            return None
        found = mapping(said, "integrations").get("frameworks")
        return [str(name) for name in found] if isinstance(found, list) else None
    return None


def _active(one: Object) -> Object:
    found = [c for c in mappings(one, "status", "conditions") if c.get("type") == "Active"]
    return found[0] if found else {}


def _is_active(one: Object) -> bool:
    return _active(one).get("status", "True") == "True"  # a queue that was made just now says nothing


def _is_it(one: Object) -> bool:
    return name_of(one).endswith("kueue-controller-manager") or has_label(
        one, "app.kubernetes.io/name", "kueue"
    )
