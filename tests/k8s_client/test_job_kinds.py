"""A job of every kind is submitted, followed, explained, restarted and removed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import IMAGE, PLAYED, Gang
from tests.fixtures.waiting import until
from tests.k8s.rendered import settings
from tests.k8s_client.watched import FastClock, follow

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ExitCode
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import (
    CONFIG_MAP,
    HYPERPOD_JOB,
    JOB,
    JOB_KINDS,
    POD,
    PYTORCH_JOB,
    RAY_JOB,
    TRAIN_JOB,
    Kind,
)
from paceline.k8s.spec.job import JobOptions, Size, Target, TorchrunOptions
from paceline.k8s.submit.job_state import Phase, read_annotations
from paceline.k8s.submit.jobs import explain_live, job_logs, job_status, list_jobs, stop_job
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.submit.submission import Submitted, submit

TARGETS = {
    JOB: Target.JOB,
    PYTORCH_JOB: Target.PYTORCHJOB,
    TRAIN_JOB: Target.TRAINJOB,
    RAY_JOB: Target.RAYJOB,
    HYPERPOD_JOB: Target.HYPERPOD,
}
every_kind = pytest.mark.parametrize("kind", PLAYED, ids=[kind.name for kind in PLAYED])


def job_request(kind: Kind) -> tuple[TrainConfig, JobOptions, Target]:
    """What `job submit --target …` is told."""
    target = TARGETS[kind]
    size = Size(cpus=1, memory="2Gi")
    options = JobOptions(image=IMAGE, worker=size, torch=TorchrunOptions(nodes=2))
    if target is Target.RAYJOB:
        options = JobOptions(image=IMAGE, worker=size)
    return settings(name="demo", mode="ssgd"), options, target


def send(cluster: ClusterConnection, kind: Kind) -> Submitted:
    rendered_job = render_job(*job_request(kind))
    return submit(cluster, [*json.loads(json.dumps(rendered_job.objects))], RetryPolicy(first_delay_s=0.1))


def left(server: ApiServer) -> list[str]:
    """Of the job: nothing shall be, once it is removed."""
    return [
        manifest["metadata"]["name"] for kind in (*JOB_KINDS, POD, CONFIG_MAP) for manifest in server.of(kind)
    ]


@every_kind
def test_it_is_followed_to_its_end_and_removed(
    cluster: ClusterConnection, server: ApiServer, kind: Kind
) -> None:
    assert send(cluster, kind).kind == kind.name
    assert job_status(cluster, "demo").phase is Phase.PENDING
    gang = Gang(server, kind)
    follower = follow(cluster)
    gang.run()
    gang.say("step 1")
    until(lambda: len(follower.screen.lines) >= len(gang.pods), "a line of every pod is shown")
    now = job_status(cluster, "demo")
    assert (now.kind, now.phase, now.explained.finding) == (kind.name, Phase.RUNNING, None)
    assert sorted(pod.name for pod in now.pods) == sorted(pod.name for pod in gang.pods)
    assert [row["kind"] for row in list_jobs(cluster, everywhere=False)] == [kind.name]
    gang.say("step 2", 1)
    gang.succeed()
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    for pod in gang.pods:
        shown = [line.text for line in follower.screen.lines if line.prefix == pod.prefix]
        assert shown == ["step 1", "step 2"]
    assert len(list(job_logs(cluster, "demo", None, None))) == 2 * len(gang.pods)
    assert stop_job(cluster, "demo")[0] == f"{kind.name}/demo"
    assert left(server) == []


def test_a_pod_of_another_owner_does_not_count_in_the_list_by_its_label(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    """A JobSet of another user that is called like our TrainJob labels its pods like ours."""
    send(cluster, TRAIN_JOB)
    job = {"name": "demo-other-0", "namespace": "train", "uid": "another"}
    server.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": job})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["name"], "uid": "another"}
    running = {"name": "node", "ready": True, "state": {"running": {"startedAt": "2099-01-01T00:00:10Z"}}}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "demo-other-0-0-abcde",
                "namespace": "train",
                "creationTimestamp": "2099-01-01T00:00:00Z",
                "labels": {"jobset.sigs.k8s.io/jobset-name": "demo"},
                "ownerReferences": [owner],
            },
            "status": {"phase": "Running", "containerStatuses": [running]},
        }
    )
    assert job_status(cluster, "demo").phase is Phase.PENDING
    assert [row["phase"] for row in list_jobs(cluster, everywhere=False)] == [Phase.PENDING.value]


@every_kind
def test_a_wrong_image_is_explained_and_the_job_removed(
    cluster: ClusterConnection, server: ApiServer, kind: Kind
) -> None:
    send(cluster, kind)
    gang = Gang(server, kind)
    gang.wrong_image()
    finding = explain_live(cluster, "demo").finding
    assert finding is not None
    assert finding.failure.name == "image-not-found"
    assert IMAGE in finding.cause
    follower = follow(cluster, clock=FastClock())
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.BAD_CONFIG
    assert [report.cause for report in follower.screen.told] == [finding.cause]
    assert left(server) == []


@every_kind
def test_a_lost_node_does_not_keep_the_next_attempt_from_starting(
    cluster: ClusterConnection, server: ApiServer, kind: Kind
) -> None:
    """Pods of a lost node stay Terminating, and their names are taken until they are removed by force."""
    send(cluster, kind)
    gang = Gang(server, kind)
    gang.run()
    gang.lose_node()
    follower = follow(cluster)
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    forced = [
        text
        for text in follower.screen.said
        if " node-a" in text and any(pod.name in text for pod in gang.pods)
    ]
    assert len(forced) == len(gang.pods)
    second = Gang(server, kind)
    second.run()
    second.succeed()
    assert follower.end().attempt == 2


@every_kind
def test_a_failure_of_the_cluster_starts_the_whole_gang_again(
    cluster: ClusterConnection, server: ApiServer, kind: Kind
) -> None:
    send(cluster, kind)
    (first,) = [manifest for manifest in server.of(kind) if "ownerReferences" not in manifest["metadata"]]
    gang = Gang(server, kind)
    gang.run()
    gang.evict()
    follower = follow(cluster)
    until(is_another(server, kind, first), "the second attempt is there")
    second = Gang(server, kind)
    second.run()
    second.say("step 1", 5)
    second.succeed()
    result = follower.end()
    assert (result.end is not None and result.end.code, result.attempt) == (ExitCode.OK, 2)
    assert any("attempt 2 " in message and " step 0" in message for message in follower.screen.said)
    mark = read_annotations(server.of(kind)[0])
    assert mark is not None
    assert mark.attempts.failures[0].failure == "evicted"
    assert server.of(CONFIG_MAP) == []


def is_another(server: ApiServer, kind: Kind, first: dict[str, Any]) -> Callable[[], bool]:
    def is_there() -> bool:
        result = server.of(kind)
        return bool(result) and result[0]["metadata"]["uid"] != first["metadata"]["uid"]

    return is_there


@every_kind
def test_a_bug_of_the_program_is_reported_from_the_rank_that_has_it(
    cluster: ClusterConnection, server: ApiServer, kind: Kind
) -> None:
    send(cluster, kind)
    gang = Gang(server, kind)
    gang.run()
    trace = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nKeyError: "loss"'
    gang.crash(-1, trace)
    follower = follow(cluster, clock=FastClock())
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.TRAINING_FAILED
    (reported,) = follower.screen.told
    assert "KeyError" in " ".join(reported.lines())
    assert server.of(kind)  # it ended by itself: its pods may be read
