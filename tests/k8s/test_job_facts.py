"""Facts about a job in a cluster: pods, ranks, kept checkpoints, decisions, version of its Trainer."""

from typing import Any

import pytest
from tests.k8s.test_submission import NOW_S, job, snapshot_of

from paceline.k8s.diagnose.pods import rank_of
from paceline.k8s.diagnose.recording import narrow_to_job
from paceline.k8s.diagnose.retry import Attempts
from paceline.k8s.diagnose.snapshot import Snapshot
from paceline.k8s.submit.attempts import pending_config_map, read_pending
from paceline.k8s.submit.job_state import (
    JobAnnotations,
    WatchLease,
    annotate,
    keeps_checkpoints,
    manifests_keep_checkpoints,
    read_lease,
)
from paceline.k8s.submit.requirements import find_version_mismatch

PYTORCH_WORKER = {
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "0",
}


@pytest.mark.parametrize(
    ("volume", "mount", "keeps"),
    [
        ({"persistentVolumeClaim": {"claimName": "output"}}, {}, True),
        ({"persistentVolumeClaim": {"claimName": "data"}}, {"readOnly": True}, False),
        ({"nfs": {"server": "files", "path": "/"}}, {}, True),
        ({"emptyDir": {}}, {}, False),
    ],
)
def test_only_what_outlives_pods_keeps_checkpoints(
    volume: dict[str, Any], mount: dict[str, Any], keeps: bool
) -> None:
    first = job()
    pod = first["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "runs", **volume})
    pod["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs", **mount}]
    assert manifests_keep_checkpoints([first]) is keeps
    pod["containers"][0]["args"] = ["--checkpoint-store", "s3://bucket/runs"]
    assert manifests_keep_checkpoints([first])
    assert (
        keeps_checkpoints(annotate(first, JobAnnotations(manifest=first, keeps=False))) is False
    )  # as it was seen then


@pytest.mark.parametrize(
    ("manifest", "version", "fits"),
    [
        ({"kind": "TrainJob", "spec": {"runtimePatches": []}}, "2.1.0", False),
        ({"kind": "TrainJob", "spec": {"runtimePatches": []}}, "2.2.1", True),
        ({"kind": "TrainJob", "spec": {"runtimePatches": []}}, "2.4.0", True),
        ({"kind": "TrainJob", "spec": {}}, "", True),
    ],
)
def test_fields_of_another_trainer_are_named(manifest: dict[str, Any], version: str, fits: bool) -> None:
    problem = find_version_mismatch([manifest], version)
    assert (problem is None) is fits
    if problem is not None:
        assert version in problem.what
        assert "2.3" in problem.hint


def test_what_was_decided_is_read_as_it_was_written() -> None:
    attempts = Attempts(number=2, infra_used=1)
    manifest = annotate(job(), JobAnnotations(manifest=job(), attempts=attempts))
    made = pending_config_map(
        "demo", "train", manifest, ["demo-0"], "attempt 2", WatchLease(watcher="me", until_s=NOW_S)
    )
    pending_attempt = read_pending(made)
    assert pending_attempt is not None
    assert (pending_attempt.job, pending_attempt.attempt, pending_attempt.pods) == ("demo", 2, ("demo-0",))
    assert pending_attempt.manifest == manifest
    assert read_lease(made) == WatchLease(watcher="me", until_s=NOW_S)
    assert read_pending({**made, "data": {"manifest": "{"}}) is None


def test_pods_of_a_job_with_a_longer_name_are_not_its_own() -> None:
    def ray(job: str, cluster: str) -> dict[str, Any]:
        about = {"name": f"{cluster}-head-abcde", "labels": {"ray.io/cluster": cluster}}
        return {"kind": "Pod", "metadata": {**about, "annotations": {"job": job}}}

    both = [ray("demo", "demo-x2k4z"), ray("demo-2", "demo-2-x2k4z"), ray("demo-small", "demo-small")]
    rayjob = {"kind": "RayJob", "metadata": {"name": "demo"}, "status": {"rayClusterName": "demo-x2k4z"}}
    pods = narrow_to_job(Snapshot(at_s=NOW_S, objects=(rayjob, *both)), "demo").pods
    assert [pod["metadata"]["annotations"]["job"] for pod in pods] == ["demo"]  # type: ignore[index]
    assert len(narrow_to_job(snapshot_of(*both), "demo-2").pods) == 1
    assert len(narrow_to_job(snapshot_of(*both), "demo-small").pods) == 1
    owner = [{"kind": "HyperPodPyTorchJob", "name": "demo-pods"}]
    other = {"kind": "Pod", "metadata": {"name": "demo-pods-pods-0", "ownerReferences": owner}}
    assert narrow_to_job(snapshot_of(other), "demo").pods == []
    assert len(narrow_to_job(snapshot_of(other), "demo-pods").pods) == 1


@pytest.mark.parametrize(
    ("name", "labels", "env", "rank"),
    [
        ("run-2-abcde", {"job-name": "run-2"}, "", None),
        ("demo-x2k4z-workers-worker-24567", {"ray.io/cluster": "demo-x2k4z"}, "", None),
        ("demo-pods-3", {}, "", 3),
        ("demo-worker-0", PYTORCH_WORKER, "", 1),
        ("demo-worker-0", PYTORCH_WORKER, "PET_RDZV_BACKEND", 0),
    ],
)
def test_a_rank_is_never_a_number_of_chance(
    name: str, labels: dict[str, str], env: str, rank: int | None
) -> None:
    spec = {"containers": [{"env": [{"name": env}] if env else []}]}
    assert rank_of({"metadata": {"name": name, "labels": labels}, "spec": spec}) == rank


def _made(
    kind: str, name: str, uid: str, created: str, owner: dict[str, str] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": uid, "creationTimestamp": f"2026-11-16T10:00:{created}Z"}
    if kind == "Pod":
        metadata["labels"] = {"job-name": "demo", "batch.kubernetes.io/job-name": "demo"}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"kind": kind, "metadata": metadata}


def test_uids_decide_which_pods_and_events_are_of_a_job_that_had_a_namesake() -> None:
    """A job of this name was deleted; its pods are terminating, and carry the same names and labels."""

    def happened(kind: str, name: str, uid: str) -> dict[str, Any]:
        subject = {"kind": kind, "name": name, "uid": uid}
        return {"kind": "Event", "metadata": {"name": f"e-{uid}"}, "involvedObject": subject}

    mine = {"kind": "Job", "name": "demo", "uid": "new"}
    former = {"kind": "Job", "name": "demo", "uid": "former"}
    unseen = {"kind": "ReplicaSet", "name": "demo-between", "uid": "unseen"}
    root = _made("Job", "demo", "new", "30")
    between = _made("ReplicaSet", "demo-set", "set", "30", mine)
    of_set = {"kind": "ReplicaSet", "name": "demo-set", "uid": "set"}
    pods = [
        _made("Pod", "demo-0", "own", "31", mine),
        _made("Pod", "demo-1", "left", "10", former),
        _made("Pod", "demo-2", "late", "40", former),  # its operator made it after the new job
        _made("Pod", "demo-3", "behind", "35", unseen),  # an owner between is not in the snapshot
        _made("Pod", "demo-4", "before", "20", unseen),
        _made("Pod", "demo-5", "through", "32", of_set),
    ]
    told = [happened("Pod", pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods]
    told += [happened("Job", "demo", "new"), happened("Job", "demo", "former")]
    seen = narrow_to_job(Snapshot(at_s=NOW_S, objects=(root, between, *pods, *told)), "demo")
    assert [pod["metadata"]["uid"] for pod in seen.pods] == ["own", "behind", "through"]  # type: ignore[index]
    assert [event["metadata"]["name"] for event in seen.events] == ["e-own", "e-behind", "e-through", "e-new"]  # type: ignore[index]
