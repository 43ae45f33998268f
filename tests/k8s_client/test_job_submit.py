"""A job is created only where it can run, and is followed to its end, over real HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_objects import Log
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording
from tests.k8s_client.watched import follow

from paceline.core.clock import unix_now_s
from paceline.core.errors import ExitCode, NotReadyError
from paceline.k8s.client.api import ConflictError, RefusedError, UnauthorizedError
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.client.kubernetes_api import connect
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import JOB, NODE, POD, PYTORCH_JOB, QUOTA, SERVICE, Kind
from paceline.k8s.objects import write_time
from paceline.k8s.submit.job_state import Phase, read_annotations
from paceline.k8s.submit.jobs import explain_live, job_logs, job_status, list_jobs, stop_job
from paceline.k8s.submit.submission import NoRoomError, RightsError, Submitted, submit

Object = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        for name in ("node-a", "node-b"):
            has = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}
            running.put(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name},
                    "status": {"allocatable": has},
                }
            )
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Bound"}}
        running.put({**claim, "metadata": {"name": "output", "namespace": "train"}})
        yield running


def manifests(pods: int = 2, gpus: int = 8) -> list[Object]:
    requested = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "pytorch",
        "image": "example.com/x:1",
        "resources": {"requests": requested, "limits": requested},
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    }
    runs = {"name": "runs", "persistentVolumeClaim": {"claimName": "output"}}
    about = {"name": "demo", "labels": {"app.kubernetes.io/instance": "demo"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": dict(about),
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": [runs]}},
        },
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": dict(about), "spec": {"clusterIP": "None"}}
    return [service, job]


def now(after_s: float = 0.0) -> str:
    return write_time(unix_now_s() + after_s)


def put_pod(server: ApiServer, rank: int, state: Object, phase: str = "Running", **status: Any) -> None:
    """As the controller of Jobs makes them: they go with their job."""
    (job,) = server.of(JOB)
    about = {
        "name": f"demo-{rank}",
        "namespace": "train",
        "labels": {"job-name": "demo", "batch.kubernetes.io/job-completion-index": str(rank)},
        "ownerReferences": [{"uid": job["metadata"]["uid"]}],
        "uid": f"{job['metadata']['uid']}-{rank}",
        "creationTimestamp": now(),
    }
    inside = [{"name": "pytorch", "image": "example.com/x:1", "restartCount": 0, "state": state}]
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about,
            "spec": {"nodeName": "node-a", "containers": [{"name": "pytorch", "image": "example.com/x:1"}]},
            "status": {"phase": phase, "containerStatuses": inside, **status},
        }
    )


def running(server: ApiServer, *ranks: int) -> None:
    for rank in ranks:
        put_pod(server, rank, {"running": {"startedAt": now()}})


def succeed(server: ApiServer, *ranks: int) -> None:
    for rank in ranks:
        server.end_log("train", f"demo-{rank}", "pytorch")
        put_pod(server, rank, {"terminated": {"exitCode": 0, "finishedAt": now()}}, "Succeeded")
    complete = [{"type": "Complete", "status": "True"}]
    server.change(JOB, "demo", "train", status={"conditions": complete})


def send(cluster: ClusterConnection, policy: RetryPolicy | None = None, **size: int) -> Submitted:
    return submit(cluster, list(manifests(**size)), policy or RetryPolicy(first_delay_s=0.1))


# Before anything exists.


def refusing(verb: str, kind: Kind, refusal: Refusal, *, from_call: int = 1) -> Callable[..., Refusal | None]:
    calls = [0]

    def rule(text: str, its: Kind, _what: Object) -> Refusal | None:
        calls[0] += (text, its) == (verb, kind)
        return refusal if (text, its) == (verb, kind) and calls[0] >= from_call else None

    return rule


def test_a_job_that_can_never_fit_is_refused_before_anything_exists(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    with wording.raises(NoRoomError) as refused:
        send(cluster, pods=4)
    assert refused.value.exit_code is ExitCode.BAD_CONFIG
    assert server.writes == []


def test_where_an_autoscaler_adds_nodes_the_capacity_is_unknown(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    about = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
    wording(send(cluster, pods=4).notes[0])


def test_a_quota_that_is_too_small_is_seen_before(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    status = {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "0"}}
    server.put(
        {
            "apiVersion": "v1",
            "kind": QUOTA.name,
            "metadata": {"name": "q", "namespace": "train"},
            "status": status,
        }
    )
    with wording.raises(NoRoomError):
        send(cluster)
    assert server.writes == []


def test_a_missing_right_is_named_as_the_rule_that_gives_it(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.allowed = lambda verb, _group, resource: (verb, resource) != ("create", "jobs")
    with pytest.raises(RightsError) as refused:
        send(cluster)
    (problem,) = refused.value.problems
    wording(problem.what)
    assert '{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]}' in problem.hint
    assert '"subjects": [{"kind": "User", "name": "admin"' in problem.hint
    assert server.writes == []


def test_an_operator_that_is_not_installed_is_named(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.served.discard(PYTORCH_JOB)
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "demo"}, "spec": {}}
    with wording.raises(RightsError):
        submit(cluster, [job], RetryPolicy())
    assert server.writes == []


def test_what_the_server_would_not_take_is_found_by_a_dry_run(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.rules.append(refusing("create", JOB, (422, "Invalid", "spec.parallelism: must be even")))
    with wording.raises(RefusedError):
        send(cluster)
    assert server.writes == []


def test_an_unknown_user_must_log_in(cluster: ClusterConnection, server: ApiServer) -> None:
    server.is_closed_to = True
    with pytest.raises(UnauthorizedError):
        send(cluster)
    assert server.writes == []


def test_what_was_made_before_a_refusal_is_taken_back(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.rules.append(refusing("create", JOB, (403, "Forbidden", "exceeded quota: q"), from_call=2))
    with wording.raises(RefusedError):
        send(cluster)
    assert server.of(SERVICE) == server.of(JOB) == []


def test_a_name_that_is_taken_is_refused_with_the_command_that_frees_it(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    writes = len(server.writes)
    with pytest.raises(ConflictError) as refused:
        send(cluster)
    assert "stop demo -n train" in refused.value.hint
    assert len(server.writes) == writes


# Following.


def test_no_line_is_lost_or_doubled_in_20_cuts_and_the_watch_survives_410(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    server.log("train", "demo-0", "pytorch").cuts = list(range(5, 105, 5))
    follower = follow(cluster)
    running(server, 0, 1)
    for number in range(110):
        # Ten lines in a second, and of those two are equal.
        text = f"step {number}" if number % 10 else "epoch"
        server.say("train", "demo-0", "pytorch", f"2026-11-15T12:00:{number // 10:02d}Z", text)
        server.say("train", "demo-1", "pytorch", f"2026-11-15T12:00:{number // 10:02d}Z", text)
        if number == 50:
            server.forget_history()
    succeed(server, 0, 1)
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert server.log("train", "demo-0", "pytorch").cuts == []
    for prefix in ("[r0 0]", "[r1 1]"):
        got = [line.text for line in follower.screen.lines if line.prefix == prefix]
        assert got == [f"step {number}" if number % 10 else "epoch" for number in range(110)]


def test_a_container_that_restarts_at_once_prints_no_line_twice(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    follower = follow(cluster)
    running(server, 0, 1)
    server.say("train", "demo-0", "pytorch", "2026-11-15T12:00:00Z", "first")
    until(lambda: bool(follower.screen.lines), "the first line is shown")
    before = server.log("train", "demo-0", "pytorch")
    server.logs[("train", "demo-0", "pytorch")] = Log()
    state = {"running": {"startedAt": now()}}
    again = {"name": "pytorch", "image": "example.com/x:1", "restartCount": 1, "state": state}
    put_pod(server, 0, state, containerStatuses=[again])
    before.has_ended = True
    server.say("train", "demo-0", "pytorch", "2026-11-15T12:00:01Z", "second")
    until(lambda: len(follower.screen.lines) > 1, "the second line is shown")
    server.end_log("train", "demo-0", "pytorch")
    ended = {"terminated": {"exitCode": 0, "finishedAt": now()}}
    put_pod(server, 0, ended, "Succeeded", containerStatuses=[{**again, "state": ended}])
    succeed(server, 1)
    follower.end()
    assert [line.text for line in follower.screen.lines] == ["first", "second"]


def test_a_wrong_image_is_explained_and_the_job_removed(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    waits = {"reason": "ErrImagePull", "message": 'failed to resolve reference "example.com/x:1": not found'}
    put_pod(server, 0, {"waiting": waits}, "Pending")
    follower = follow(cluster)
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.BAD_CONFIG
    (reported,) = follower.screen.told
    assert reported.failure.name == "image-not-found"
    assert "example.com/x:1" in reported.cause
    assert reported.command
    assert server.of(JOB) == server.of(SERVICE) == server.of(POD) == []


def test_a_failure_of_the_cluster_starts_the_whole_gang_again(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    (first,) = server.of(JOB)
    for rank in (0, 1):
        evicted = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        put_pod(server, rank, {"terminated": {"exitCode": 137, "finishedAt": now()}}, "Failed", **evicted)
        server.say("train", f"demo-{rank}", "pytorch", "2026-11-15T12:00:00Z", "saved checkpoint at step 40")
        server.end_log("train", f"demo-{rank}", "pytorch")
    follower = follow(cluster)

    def is_second() -> bool:
        outcome = server.of(JOB)
        return bool(outcome) and outcome[0]["metadata"]["uid"] != first["metadata"]["uid"]

    until(is_second, "the second attempt is there")
    assert server.of(POD) == []  # the new ones have the names of the old: those went first
    running(server, 0, 1)
    (second,) = server.of(JOB)
    mark = read_annotations(second)
    assert mark is not None
    assert (mark.attempts.number, mark.attempts.failures[0].failure) == (2, "evicted")
    succeed(server, 0, 1)
    result = follower.end()
    assert (result.end is not None and result.end.code, result.attempt) == (ExitCode.OK, 2)
    assert any("attempt 2 " in message and " step 40" in message for message in follower.screen.said)


def test_from_another_machine_everything_is_seen_and_only_one_is_in_charge(
    cluster: ClusterConnection, server: ApiServer, tmp_path: Path, wording: Wording
) -> None:
    send(cluster)
    first = follow(cluster)
    running(server, 0, 1)
    server.say("train", "demo-0", "pytorch", "2026-11-15T12:00:00Z", "hello")
    until(lambda: bool(first.screen.lines), "the first one sees a line")
    elsewhere = ClusterConnection(connect(server.kubeconfig(tmp_path / "other")), "train")
    now_there = job_status(elsewhere, "demo")
    assert (now_there.phase, now_there.attempt, len(now_there.pods)) == (Phase.RUNNING, 1, 2)
    assert now_there.in_charge.startswith("watcher ")
    assert now_there.explained.finding is None
    assert [row["name"] for row in list_jobs(elsewhere, everywhere=True)] == ["demo"]
    second = follow(elsewhere)
    until(lambda: bool(second.screen.lines), "the second one sees the line that was said before")
    assert job_status(elsewhere, "demo").in_charge == now_there.in_charge
    succeed(server, 0, 1)
    assert [item.end().end is not None for item in (first, second)] == [True, True]
    assert [line.text for line in job_logs(elsewhere, "demo", 0, None)] == ["hello"]
    assert stop_job(elsewhere, "demo") == ["Job/demo", "Service/demo"]
    assert server.of(JOB) == server.of(SERVICE) == []
    with wording.raises(NotReadyError):
        explain_live(elsewhere, "demo")
    elsewhere.api.close()


def test_time_is_over_before_the_job_is(cluster: ClusterConnection, server: ApiServer) -> None:
    send(cluster)
    result = follow(cluster, for_s=0.01).end()
    assert result.end is None
    assert job_status(cluster, "demo").in_charge.startswith("none")  # the next watcher need not wait
    assert server.of(NODE)
