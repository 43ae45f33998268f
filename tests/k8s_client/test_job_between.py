"""A job survives a watcher that dies between removing an attempt and creating the next."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import Gang, now, reference
from tests.fixtures.waiting import is_running, kill, kill_all, until, until_gone
from tests.fixtures.wording import Wording
from tests.k8s_client.watched import follow

from paceline.core.errors import ExitCode
from paceline.k8s.client.api import ConflictError
from paceline.k8s.client.connection import ClusterConnection, ClusterTarget
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import CONFIG_MAP, JOB, POD, Kind
from paceline.k8s.submit.attempts import pending_config_map
from paceline.k8s.submit.job_state import Phase, WatchLease, lease_patch, read_annotations
from paceline.k8s.submit.jobs import explain_live, job_logs, job_status, list_jobs, stop_job
from paceline.k8s.submit.submission import start_watcher, submit

Object = dict[str, Any]


def manifest() -> Object:
    container = {"name": "pytorch", "image": "example.com/x:1"}
    inside = {"restartPolicy": "Never", "containers": [container]}
    spec = {"completions": 2, "parallelism": 2, "backoffLimit": 0, "template": {"spec": inside}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "demo"}, "spec": spec}


def send(cluster: ClusterConnection) -> None:
    submit(cluster, [manifest()], RetryPolicy(first_delay_s=0.1))


def linger(server: ApiServer) -> None:
    """A pod that does not end when its job goes: the next attempt waits until it has gone."""
    (job,) = server.of(JOB)
    about = {
        "name": "demo-9",
        "namespace": "train",
        "labels": {"job-name": "demo"},
        "ownerReferences": [reference(job)],
        "creationTimestamp": now(),
    }
    server.lingering.add("demo-9")
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": "Running"}})


def is_between(server: ApiServer) -> bool:
    return bool(server.of(CONFIG_MAP)) and not server.of(JOB)


def let_it_lapse(server: ApiServer) -> None:
    """The dead watcher's right runs out."""
    (result,) = server.of(CONFIG_MAP)
    past: Any = lease_patch(WatchLease(watcher="dead", until_s=1.0))["metadata"]
    about = {**result["metadata"], "annotations": past["annotations"]}
    server.change(CONFIG_MAP, "demo-next-attempt", "train", metadata=about)


def test_the_next_watcher_makes_the_attempt_that_a_killed_watcher_had_decided_on(
    cluster: ClusterConnection,
    server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    send(cluster)
    gang = Gang(server, JOB)
    gang.evict()
    linger(server)
    watcher = start_watcher(ClusterTarget(kubeconfig=tmp_path / "kubeconfig"), "train", "demo")
    try:
        until(lambda: is_between(server) or not is_running(watcher.pid), "the first attempt is removed")
        assert is_between(server), watcher.log.read_text()
        kill(watcher.pid)
        until_gone([watcher.pid])
    finally:
        kill_all([watcher.pid])
    # Seen from anywhere: it is not lost, and its name is not free.
    seen = job_status(cluster, "demo")
    assert (seen.phase, seen.attempt, seen.kind) == (Phase.BETWEEN, 2, "Job")
    assert seen.in_charge.startswith("watcher ")
    assert list(job_logs(cluster, "demo", None, None)) == []
    assert [row["phase"] for row in list_jobs(cluster, everywhere=True)] == [Phase.BETWEEN.value]
    with wording.raises(ConflictError):
        send(cluster)
    let_it_lapse(server)
    assert "none" in job_status(cluster, "demo").in_charge
    assert "attach demo" in explain_live(cluster, "demo").verdict.says
    follower = follow(cluster)
    until(lambda: any("starting it" in message for message in follower.screen.said), "the next takes over")
    server.remove(POD, "demo-9", "train")
    until(lambda: bool(server.of(JOB)), "the second attempt is there")
    mark = read_annotations(server.of(JOB)[0])
    assert mark is not None
    assert (mark.attempts.number, mark.attempts.infra_used) == (2, 1)
    second = Gang(server, JOB)
    second.run()
    second.succeed()
    result = follower.end()
    assert (result.end is not None and result.end.code, result.attempt) == (ExitCode.OK, 2)
    assert server.of(CONFIG_MAP) == []


def test_a_job_that_is_stopped_between_two_attempts_does_not_come_back(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    send(cluster)
    Gang(server, JOB).evict()
    linger(server)
    follower = follow(cluster)
    until(lambda: is_between(server), "the first attempt is removed")
    assert stop_job(cluster, "demo") == ["Job/demo"]
    server.remove(POD, "demo-9", "train")
    result = follower.end()
    assert result.end is not None
    wording([text for text in follower.screen.said if text.startswith("attempt 2 ")][-1])
    assert server.of(JOB) == server.of(CONFIG_MAP) == []


def test_a_decision_that_its_maker_died_before_forgetting_is_not_made_twice(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster)
    (job,) = server.of(JOB)
    server.put(
        pending_config_map("demo", "train", job, [], "attempt 1", WatchLease(watcher="dead", until_s=1.0))
    )
    gang = Gang(server, JOB)
    gang.run()
    gang.succeed()
    assert follow(cluster).end().attempt == 1
    assert server.of(CONFIG_MAP) == []
    assert server.of(JOB)[0]["metadata"]["uid"] == job["metadata"]["uid"]


def test_where_no_decision_can_be_written_that_is_reported_and_the_attempt_is_made(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    def no_config_maps(verb: str, kind: Kind, _what: Object) -> tuple[int, str, str] | None:
        refused = kind == CONFIG_MAP and verb == "create"
        return (403, "Forbidden", "configmaps is forbidden") if refused else None

    server.rules.append(no_config_maps)
    send(cluster)
    Gang(server, JOB).evict()
    follower = follow(cluster)
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    second = Gang(server, JOB)
    second.run()
    second.succeed()
    assert follower.end().attempt == 2
    assert any("ConfigMap" in message for message in follower.screen.said)
