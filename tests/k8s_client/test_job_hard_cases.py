"""Jobs under a silent server, rights that are missing half-way, and concurrent changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_objects import Log
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.kubernetes.operators import Gang
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording
from tests.k8s_client.test_job_submit import manifests, now, put_pod, refusing, running
from tests.k8s_client.watched import PACE, Screen, follow

from paceline.cli.main import run
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.k8s.client.api import ForbiddenError, UnreachableError
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import CONFIG_MAP, JOB, JOB_KINDS, POD, SERVICE, Kind
from paceline.k8s.submit.attempts import pending_config_map
from paceline.k8s.submit.follow import Follower
from paceline.k8s.submit.job_state import Phase, WatchLease, lease_patch, read_lease
from paceline.k8s.submit.jobs import job_status, list_jobs, stop_job
from paceline.k8s.submit.submission import submit
from paceline.training.session import Session

Object = dict[str, Any]
SILENT = (503, "ServiceUnavailable", "the server is in trouble")
FORBIDDEN = (403, "Forbidden", "you may not")


def made(cluster: ClusterConnection) -> None:
    claim: Any = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {}}
    cluster.api.create({**claim, "metadata": {"name": "output", "namespace": "train"}})
    submit(cluster, list(manifests()), RetryPolicy(first_delay_s=0.1), fits=False)


def sometimes(verb: str, kind: Kind, refusal: Refusal, times: int) -> Callable[..., Refusal | None]:
    """The first so many times."""
    left = [times]

    def rule(text: str, its: Kind, _what: Object) -> Refusal | None:
        if (text, its) != (verb, kind) or not left[0]:
            return None
        left[0] -= 1
        return refusal

    return rule


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_is_none_touches_nothing(
    cluster: ClusterConnection, server: ApiServer, name: str, wording: Wording
) -> None:
    made(cluster)
    with wording.raises(ConfigError):
        stop_job(cluster, name)
    assert server.of(JOB)
    assert POD.path("a/b", "c?d") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd"


# Sending.


def test_what_was_made_though_its_answer_was_lost_is_taken_back_too(
    cluster: ClusterConnection, server: ApiServer, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    create = cluster.api.create

    def lost(manifest: Object, *, dry_run: bool = False) -> Object:
        answer = create(manifest, dry_run=dry_run)
        if not dry_run and manifest["kind"] == "Job":
            raise UnreachableError("cut", "again")
        return answer

    monkeypatch.setattr(cluster.api, "create", lost)
    with wording.raises(UnreachableError):
        made(cluster)
    assert server.of(SERVICE) == server.of(JOB) == []


def test_what_cannot_be_taken_back_is_named(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    server.rules.append(refusing("create", JOB, (403, "Forbidden", "exceeded quota: q"), from_call=2))
    server.rules.append(refusing("delete", SERVICE, FORBIDDEN))
    with wording.raises(PacelineError) as caught:
        made(cluster)
    assert caught.value.hint == "kubectl delete -n train --ignore-not-found service/demo"


# Stopping.


def test_what_may_not_be_removed_is_named_and_the_rest_is_gone(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    made(cluster)
    server.rules.append(refusing("delete", SERVICE, FORBIDDEN))
    with wording.raises(ForbiddenError):
        stop_job(cluster, "demo")
    assert server.of(JOB) == []


def test_a_job_that_is_stopped_after_the_last_poll_of_its_watcher_does_not_come_back(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    made(cluster)
    stopped: list[list[str]] = []

    def stop(verb: str, kind: Kind, _what: Object) -> None:
        """In the last moment: the watcher is writing down what it has decided."""
        if (verb, kind) == ("create", CONFIG_MAP) and not stopped:
            stopped.append(["now"])
            server.remove(JOB, "demo", "train")

    server.rules.append(stop)
    Gang(server, JOB).evict()
    follower = follow(cluster)
    result = follower.end()
    assert stopped
    assert result.end is not None
    wording([text for text in follower.screen.said if text.startswith("attempt 2 ")][-1])
    assert server.of(JOB) == server.of(CONFIG_MAP) == []


def test_a_pod_that_has_taken_the_name_of_a_lost_one_is_not_removed(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    gang = Gang(server, JOB)
    gang.run()
    gang.lose_node()
    names: list[str] = []  # of the pod that was replaced, and once more for each later look at it

    def replace(verb: str, kind: Kind, what: Object) -> None:
        """In the last moment: the lost pod goes, and another one gets its name."""
        if kind != POD or verb not in ("get", "delete"):
            return
        name = what["metadata"]["name"]
        if verb == "delete" and not names:
            names.append(name)
            server.remove(POD, name, "train")
            about = {"name": name, "namespace": "train", "uid": "another"}
            server.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {}})
        elif verb == "get" and name in names:
            names.append(name)

    server.rules.append(replace)
    follower = follow(cluster)
    until(lambda: len(names) > 1, "the watcher looks again")
    assert "another" in [manifest["metadata"]["uid"] for manifest in server.of(POD)]
    server.remove(POD, names[0], "train")
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    second = Gang(server, JOB)
    second.run()
    second.succeed()
    assert follower.end().attempt == 2


def test_without_the_right_to_remove_pods_the_next_attempt_waits_for_the_lost_node(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    gang = Gang(server, JOB)
    gang.run()
    gang.lose_node()
    names = {pod.name for pod in gang.pods}
    refused: list[str] = []

    def refuse(verb: str, kind: Kind, what: Object) -> Refusal | None:
        if (verb, kind) != ("delete", POD):
            return None
        refused.append(what["metadata"]["name"])
        return FORBIDDEN

    server.rules.append(refuse)
    follower = follow(cluster)
    until(lambda: names <= set(refused) and len(refused) > 2 * len(names), "each pod was tried again")
    for name in names:  # the node is back, and its kubelet has ended them
        server.remove(POD, name, "train")
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    second = Gang(server, JOB)
    second.run()
    second.succeed()
    assert follower.end().attempt == 2
    told = [text for text in follower.screen.said if FORBIDDEN[2] in text]
    assert len(told) == len(names)  # once for each pod, however often it was tried


@pytest.mark.parametrize("moment", [("create", CONFIG_MAP), ("delete", JOB)], ids=["decided", "removing"])
def test_a_job_that_succeeds_after_it_was_judged_is_not_started_again(
    cluster: ClusterConnection, server: ApiServer, moment: tuple[str, Kind], wording: Wording
) -> None:
    """In the last moment, also between the last look and the request that would remove it."""
    made(cluster)
    server.rules.append(succeeding(server, *moment))
    (job,) = server.of(JOB)
    gang = Gang(server, JOB)
    for pod in gang.pods:
        why = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        gang.show(pod, {"terminated": {"exitCode": 137, "finishedAt": now(0)}}, "Failed", **why)
        server.end_log("train", pod.name, pod.container)
    follower = follow(cluster)
    result = follower.end()
    assert result.attempt == 1
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    wording([text for text in follower.screen.said if text.startswith("attempt 2 ")][-1])
    assert [manifest["metadata"]["uid"] for manifest in server.of(JOB)] == [job["metadata"]["uid"]]
    assert server.of(CONFIG_MAP) == []


def test_a_job_that_its_operator_restarts_after_it_was_judged_is_left_to_it(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    (job,) = server.of(JOB)
    gang = Gang(server, JOB)
    for pod in gang.pods:
        why = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        gang.show(pod, {"terminated": {"exitCode": 137, "finishedAt": now(0)}}, "Failed", **why)
        server.end_log("train", pod.name, pod.container)

    def ended(kind: str) -> Object:
        return {"conditions": [{"type": kind, "status": "True"}] if kind else []}

    def restarted(verb: str, kind: Kind, _what: Object) -> None:
        """Between the decision and the last look before the job would be removed."""
        if (verb, kind) == ("create", CONFIG_MAP):
            server.change(JOB, "demo", "train", status=ended(""))
        elif (verb, kind) == ("delete", CONFIG_MAP):
            server.change(JOB, "demo", "train", status=ended("Complete"))

    server.change(JOB, "demo", "train", status=ended("Failed"))
    server.rules.append(restarted)
    result = follow(cluster).end()
    assert result.attempt == 1
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert [manifest["metadata"]["uid"] for manifest in server.of(JOB)] == [job["metadata"]["uid"]]


def test_a_job_that_succeeds_after_it_was_judged_is_not_removed(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    server.rules.append(succeeding(server, "delete", JOB))
    Gang(server, JOB).wrong_image()
    result = follow(cluster).end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert len(server.of(JOB)) == 1


def succeeding(server: ApiServer, verb: str, kind: Kind) -> Callable[..., None]:
    """The job succeeds just before the first such request is carried out."""
    results: list[str] = []

    def rule(text: str, its: Kind, _what: Object) -> None:
        if (text, its) == (verb, kind) and not results:
            results.append("now")
            complete = {"conditions": [{"type": "Complete", "status": "True"}]}
            server.change(JOB, "demo", "train", status=complete)

    return rule


@pytest.mark.parametrize("happens", [Gang.wrong_image, Gang.evict], ids=["removed", "restarted"])
def test_what_was_judged_of_a_job_is_not_done_to_a_later_one_of_its_name(
    cluster: ClusterConnection, server: ApiServer, happens: Callable[[Gang], None]
) -> None:
    made(cluster)
    looks: list[str] = []  # at the later job

    def replace(verb: str, kind: Kind, _what: Object) -> None:
        """Just before the request that would remove the job."""
        if (verb, kind) == ("delete", JOB) and not looks:
            (job,) = server.of(JOB)
            server.remove(JOB, "demo", "train")
            server.put({**job, "metadata": {**job["metadata"], "uid": "later"}, "status": {"active": 1}})
            looks.append("replaced")
        elif (verb, kind) == ("get", JOB) and looks:
            looks.append("looked")

    server.rules.append(replace)
    happens(Gang(server, JOB))
    follower = follow(cluster)
    until(lambda: len(looks) > 2, "the watcher has looked at the later job")
    assert [manifest["metadata"]["uid"] for manifest in server.of(JOB)] == ["later"]
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    server.change(JOB, "demo", "train", status=complete)
    follower.end()
    assert [manifest["metadata"]["uid"] for manifest in server.of(JOB)] == ["later"]


def test_what_a_watcher_decides_while_its_job_is_stopped_is_not_wanted(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    (job,) = server.of(JOB)

    def decide(verb: str, kind: Kind, _what: Object) -> None:
        if (verb, kind) == ("delete", JOB):
            server.put(
                pending_config_map(
                    "demo", "train", job, [], "attempt 2", WatchLease(watcher="w", until_s=4e9)
                )
            )

    server.rules.append(decide)
    assert stop_job(cluster, "demo") == ["Job/demo", "Service/demo"]
    assert server.of(CONFIG_MAP) == server.of(JOB) == []


def test_a_user_who_may_not_list_jobs_is_not_shown_an_empty_list(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    made(cluster)
    for kind in JOB_KINDS:
        server.rules += [refusing(verb, kind, FORBIDDEN) for verb in ("get", "list")]
    for ask in (lambda: job_status(cluster, "demo"), lambda: list_jobs(cluster, everywhere=True)):
        with wording.raises(ForbiddenError):
            ask()


# Following.


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_a_server_that_is_silent_while_an_attempt_is_made_is_called_again(
    cluster: ClusterConnection, server: ApiServer, verb: str
) -> None:
    made(cluster)
    server.rules.append(sometimes(verb, CONFIG_MAP, SILENT, 3))
    Gang(server, JOB).evict()
    follower = follow(cluster)
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    second = Gang(server, JOB)
    second.run()
    second.succeed()
    assert follower.end().attempt == 2


def test_a_server_that_is_silent_while_a_job_is_removed_is_called_again(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    server.rules.append(sometimes("delete", JOB, SILENT, 2))
    waits = {"reason": "ErrImagePull", "message": 'failed to resolve reference "example.com/x:1": not found'}
    put_pod(server, 0, {"waiting": waits}, "Pending")
    result = follow(cluster).end()
    assert result.end is not None
    assert result.end.code is ExitCode.BAD_CONFIG
    assert server.of(JOB) == []


def test_a_watcher_that_lost_the_lease_does_not_take_it_from_its_holder(
    cluster: ClusterConnection, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(cluster)
    follower = Follower(cluster=cluster, name="demo", shown=Screen().shown(), pace=PACE)

    def sleep(_follower: Follower, _until_s: float | None) -> None:
        """The machine sleeps while ours runs out; it wakes to Ctrl-C, and another is at it."""
        (job,) = server.of(JOB)
        assert read_lease(job).watcher == follower.watcher
        theirs: Any = lease_patch(WatchLease(watcher="other", until_s=4e9))["metadata"]
        notes = {**job["metadata"]["annotations"], **theirs["annotations"]}
        server.change(JOB, "demo", "train", metadata={**job["metadata"], "annotations": notes})
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "_wait", sleep)
    with pytest.raises(KeyboardInterrupt):
        follower.follow(None)
    assert read_lease(server.of(JOB)[0]).watcher == "other"


def test_a_job_that_was_deleted_is_reported_by_name(cluster: ClusterConnection, server: ApiServer) -> None:
    made(cluster)
    follower = follow(cluster)
    running(server, 0)
    until(
        lambda: any(message.endswith(Phase.RUNNING.value) for message in follower.screen.said),
        "it is followed",
    )
    stop_job(cluster, "demo")
    follower.end()
    (reported,) = follower.screen.told
    assert reported.cause.startswith("Job/demo ")
    assert "-n train" in reported.command


def test_ctrl_c_prints_how_to_come_back(
    cluster: ClusterConnection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wording: Wording,
) -> None:
    """And not to run the same command: the job's name is taken now."""
    made(cluster)

    def press(_follower: Follower, _for_s: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "follow", press)
    place = ["--kubeconfig", str(tmp_path / "kubeconfig"), "-n", "train"]
    assert run(["job", "attach", "demo", *place], Session()) == ExitCode.INTERRUPTED
    stderr = capsys.readouterr().err
    assert "attach demo -n train" in stderr
    wording(stderr)


def test_lines_are_shown_as_they_come_though_the_last_are_cut_off(
    cluster: ClusterConnection, server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made(cluster)
    running(server, 0, 1)
    for rank in (0, 1):
        server.say("train", f"demo-{rank}", "pytorch", "2026-11-15T12:00:00Z", "hello")
    server.log("train", "demo-1", "pytorch").cuts = [1]
    place = ["--kubeconfig", str(tmp_path / "kubeconfig"), "-n", "train"]
    assert run(["job", "logs", "demo", *place], Session()) == ExitCode.UNREACHABLE
    assert capsys.readouterr().out == "[r0 0] hello\n"


def restarted(server: ApiServer, count: int, state: Object) -> None:
    values = {"name": "pytorch", "image": "example.com/x:1", "restartCount": count, "state": state}
    put_pod(server, 0, state, containerStatuses=[values])


def life(server: ApiServer, *lines: str) -> Log:
    log = Log([(f"2026-11-15T12:00:{int(line):02d}Z", line) for line in lines], has_ended=True)
    server.logs[("train", "demo-0", "pytorch")] = log
    return log


def ended(server: ApiServer, count: int) -> None:
    over = {"terminated": {"exitCode": 0, "finishedAt": now()}}
    restarted(server, count, over)
    put_pod(server, 1, over, "Succeeded")
    server.end_log("train", "demo-1", "pytorch")
    server.change(JOB, "demo", "train", status={"conditions": [{"type": "Complete", "status": "True"}]})


def test_the_lines_of_a_container_that_restarted_before_the_poll_are_kept(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    server.previous[("train", "demo-0", "pytorch")] = life(server, "1", "2")
    life(server, "3", "4")
    ended(server, 1)
    follower = follow(cluster)
    follower.end()
    assert sorted(line.text for line in follower.screen.lines) == ["1", "2", "3", "4"]


def test_a_stream_that_is_cut_as_its_container_is_started_again_loses_and_doubles_nothing(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    first = life(server, "1", "2", "3")
    first.has_ended = False
    first.cuts = [2]  # within the second line
    is_next = [False]

    def start_again(verb: str, kind: Kind, _what: Object) -> None:
        """Before the stream is opened again."""
        if (verb, kind) == ("get", POD) and not is_next[0]:
            is_next[0] = True
            server.previous[("train", "demo-0", "pytorch")] = first
            first.has_ended = True
            life(server, "4", "5")
            restarted(server, 1, {"running": {"startedAt": now()}})

    server.rules.append(start_again)
    running(server, 0, 1)
    follower = follow(cluster)
    until(lambda: len(follower.screen.lines) >= 5, "all lines are there")
    ended(server, 1)
    follower.end()
    assert sorted(line.text for line in follower.screen.lines) == ["1", "2", "3", "4", "5"]


def test_a_pod_that_takes_the_name_of_another_has_a_log_of_its_own(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    made(cluster)
    first = life(server, "1", "2")
    first.has_ended = False
    first.cuts = [2]  # within the second line
    later: list[Object] = []

    def replace(verb: str, kind: Kind, _what: Object) -> None:
        """Before the stream of the first pod is opened again."""
        if (verb, kind) == ("get", POD) and not later:
            (before,) = [manifest for manifest in server.of(POD) if manifest["metadata"]["name"] == "demo-0"]
            later.append({**before, "metadata": {**before["metadata"], "uid": "later"}})
            server.remove(POD, "demo-0", "train")
            life(server, "3", "4").has_ended = False
            server.put(later[0])

    server.rules.append(replace)
    running(server, 0, 1)
    follower = follow(cluster)
    until(lambda: "4" in [line.text for line in follower.screen.lines], "the later pod's lines are there")
    server.end_log("train", "demo-0", "pytorch")
    server.end_log("train", "demo-1", "pytorch")
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    server.change(JOB, "demo", "train", status=complete)
    follower.end()
    shown = [line.text for line in follower.screen.lines]
    assert (shown.count("3"), shown.count("4")) == (1, 1)
