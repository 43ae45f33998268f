"""Rules of submission: capacity of a gang, new log lines, annotations, decisions of a follower."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.pods import newest_checkpoint
from paceline.k8s.diagnose.retry import Attempts, Fingerprint, RetryPolicy
from paceline.k8s.diagnose.snapshot import Log, Snapshot
from paceline.k8s.objects import is_part_of, strip_ansi, write_time
from paceline.k8s.submit.attempts import can_exclude, next_manifest, reason_to_force
from paceline.k8s.submit.capacity import check_capacity, format_table, quota_rows
from paceline.k8s.submit.follow_rules import (
    Action,
    Announce,
    End,
    FollowState,
    Recreate,
    Remove,
    ReportFinding,
    WatchOwner,
    next_actions,
)
from paceline.k8s.submit.job_state import (
    JobAnnotations,
    Phase,
    WatchLease,
    annotate,
    lease_patch,
    phase_of,
    read_annotations,
    read_lease,
    shown_phase,
)
from paceline.k8s.submit.log_lines import LogCursor, prefix_of
from paceline.k8s.submit.requirements import roles
from paceline.k8s.submit.restart import _reason_not_to

NOW_S = 1_800_000_000.0
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def job(replicas: int = 2, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    requested = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "pytorch",
        "image": "example.com/x:1",
        "resources": {"requests": requested, "limits": requested},
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "demo", "namespace": "train", "uid": "u1"},
        "spec": {
            "parallelism": replicas,
            "completions": replicas,
            "backoffLimit": 0,
            **spec,
            "template": {"spec": {"containers": [container], "volumes": [shm]}},
        },
    }


def node(name: str, gpus: int = 8, **labels: str) -> dict[str, Any]:
    has = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": str(gpus), "pods": "110"}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": has}}


# Does it fit?


def test_a_gang_that_fits_has_a_table_without_complaints() -> None:
    rows = check_capacity(roles([job()]), [node("a"), node("b")])
    assert rows
    assert all(row.is_enough for row in rows)


def test_32_gpus_do_not_fit_where_there_are_16(wording: Wording) -> None:
    rows = check_capacity(roles([job(replicas=4)]), [node("a"), node("b")])
    short = [row for row in rows if not row.is_enough]
    assert [(row.what, row.needs, row.has) for row in short] == [("nvidia.com/gpu", "32", "16")]
    wording("\n".join(format_table(rows)))


def test_one_pod_that_is_larger_than_any_node_is_named() -> None:
    rows = [row for row in check_capacity(roles([job(gpus=16)]), [node("a"), node("b")]) if not row.is_enough]
    assert [(row.what, row.where, row.needs, row.has) for row in rows] == [
        ("nvidia.com/gpu", "one node for pod", "16", "8")
    ]


def test_enough_in_all_may_still_be_too_scattered() -> None:
    rows = [
        row
        for row in check_capacity(roles([job(replicas=3, gpus=5)]), [node("a"), node("b")])
        if not row.is_enough
    ]
    assert [(row.what, row.needs, row.has) for row in rows] == [("pods", "3", "2")]


def test_where_nodes_come_when_needed_nothing_is_refused() -> None:
    grown = node("a")
    grown["metadata"]["labels"] = {"karpenter.sh/nodepool": "gpus"}
    assert check_capacity(roles([job(replicas=99)]), [grown]) == []


def test_without_any_node_nothing_fits() -> None:
    (row,) = check_capacity(roles([job()]), [])
    assert (row.what, row.has, row.is_enough) == ("a node", "0", False)


@pytest.mark.parametrize("state", [{"unschedulable": True}, {"taints": [NOT_READY]}])
def test_a_node_that_takes_no_pods_now_is_no_room(state: dict[str, Any], wording: Wording) -> None:
    closed = {**node("a"), "spec": state}
    (row, *_) = check_capacity(roles([job()]), [closed])
    assert not row.is_enough
    wording(row.what)
    assert all(row.is_enough for row in check_capacity(roles([job(replicas=1)]), [closed, node("b")]))
    rows = check_capacity(roles([job(replicas=99)]), [closed, node("b")])
    assert {row.where for row in rows if not row.is_enough} == {"all nodes"}


def test_a_node_that_is_tainted_against_the_pods_is_no_room() -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    tainted = {**node("a"), "spec": {"taints": [taint]}}
    requested = job(replicas=1)
    assert not all(row.is_enough for row in check_capacity(roles([requested]), [tainted]))
    requested["spec"]["template"]["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]
    assert all(row.is_enough for row in check_capacity(roles([requested]), [tainted]))


def test_a_missing_node_label_is_reported(wording: Wording) -> None:
    requested = job()
    requested["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "b"}
    (row, *_) = check_capacity(roles([requested]), [node("a", zone="a")])
    assert (row.has, row.is_enough) == ("0", False)
    wording(row.what)


def test_what_is_left_of_a_quota_counts() -> None:
    quota = {
        "metadata": {"name": "team"},
        "status": {"hard": {"requests.nvidia.com/gpu": "20"}, "used": {"requests.nvidia.com/gpu": "8"}},
    }
    (row,) = quota_rows(roles([job()]), [quota])
    assert (row.where, row.needs, row.has, row.is_enough) == ("quota team", "16", "12 of 20", False)


@pytest.mark.parametrize(
    ("kind", "spec", "counts"),
    [
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}},
            [1, 3],
        ),
        ("HyperPodPyTorchJob", {"replicaSpecs": [{"name": "pods", "replicas": 2, "spares": 1}]}, [3]),
        ("RayCluster", {"headGroupSpec": {}, "workerGroupSpecs": [{"replicas": 4}]}, [1, 4]),
        ("TrainJob", {"trainer": {"numNodes": 5}}, [5]),
        ("Job", {"parallelism": 8, "completions": 3}, [3]),
    ],
)
def test_every_kind_reports_how_many_pods_it_requests(
    kind: str, spec: dict[str, Any], counts: list[int]
) -> None:
    assert [role.count for role in roles([{"kind": kind, "spec": spec}])] == counts


def test_what_the_server_added_is_no_difference() -> None:
    assert is_part_of({"a": [{"b": "1024Mi"}]}, {"a": [{"b": "1Gi", "more": 1}], "c": 2})
    assert not is_part_of({"a": "x"}, {"a": "y"})
    assert not is_part_of({"a": [1, 2]}, {"a": [1]})


# Which lines are new?


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=40), st.integers(0, 2**32))
def test_no_line_is_lost_or_doubled_however_often_a_log_is_cut(
    steps: list[tuple[int, str]], seed: int
) -> None:
    """Equal lines at equal times are the hard case: only their number tells what is new."""
    at_s, log = 0.0, list[tuple[float, str]]()
    for step, text in steps:
        at_s += step * 0.7
        log.append((NOW_S + at_s, text))
    lines = [f"{write_time(at_s)} {text}" for at_s, text in log]
    rng, cursor, got = random.Random(seed), LogCursor(), list[str]()
    for cut in range(21):
        since = cursor.since
        cursor.opened()
        left = [line for line in lines if line.split(" ")[0] >= since]
        until = len(left) if cut == 20 else rng.randint(0, len(left))  # the last stream is whole
        new = [cursor.take(line) for line in left[:until]]
        got += [item for item in new if item is not None]
    assert got == [text for _, text in log]


def test_a_long_log_is_forgotten_as_it_goes() -> None:
    cursor = LogCursor()
    for second in range(5000):
        cursor.take(f"{write_time(NOW_S + second)} step {second}")
    assert len(cursor._seen) < 200
    assert cursor.since == write_time(NOW_S + 4997)


def test_a_message_of_the_kubelet_is_shown_once() -> None:
    cursor = LogCursor()
    line = "unable to retrieve container logs"
    assert cursor.take(line) == line
    cursor.opened()
    assert cursor.take(line) is None


@given(st.text(alphabet="ab \x1b[]0;1m\x07\\K", max_size=30), st.integers(0, 12))
def test_no_part_of_an_escape_sequence_is_shown(text: str, cut: int) -> None:
    coloured = "\x1b[36mstep\x1b[0m 7\x1b]0;title\x07 \x1b[1;31mdone\x1b[K"
    assert strip_ansi(coloured) == "step 7 done"
    assert strip_ansi(coloured[:-2]) == strip_ansi(coloured[:-1]) == "step 7 done"
    assert strip_ansi("[36mstep") == "step"
    assert "\x1b" not in strip_ansi(text[:cut] + coloured[cut:])


def test_a_change_that_was_not_allowed_names_what_allows_it() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": write_time(NOW_S)}
    body = pod(phase="Failed", containerStatuses=[{"name": "pytorch", "state": {"terminated": ended}}])
    failed = {**job(), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    actions, _ = next_actions(snapshot_of(body), failed, FollowState(), RetryPolicy())
    end = actions[-1]
    assert isinstance(end, End)
    assert "job submit --allow memory" in end.says


# What is carried by the job itself?


def test_a_mark_is_read_as_it_was_written_and_leaves_the_rest_alone() -> None:
    past = Attempts(number=3, infra_used=2, failures=(Fingerprint("node-lost", 1, 40),), excluded=("node-a",))
    mark = JobAnnotations(
        manifest=job(),
        sent_s=NOW_S,
        attempts=past,
        policy=RetryPolicy(infra=5, pending_s=60.0),
        beside=("v1 S a",),
    )
    made = annotate(job(), mark)
    assert read_annotations(made) == mark
    assert made["spec"] == job()["spec"]
    assert read_annotations(job()) is None


def test_a_watch_lease_is_valid_until_its_deadline() -> None:
    patch = lease_patch(WatchLease(watcher="w1", until_s=NOW_S + 90), "7")
    watch = read_lease(patch)
    assert patch["metadata"]["resourceVersion"] == "7"  # type: ignore[index, call-overload]
    assert watch.is_on(NOW_S)
    assert not watch.is_on(NOW_S + 91)


def test_the_next_attempt_leaves_bad_nodes_and_has_more_shared_memory() -> None:
    made = next_manifest(job(), ["node-a"], ["shared-memory"])
    pod = made["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["node-a"]
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "2048Mi"
    assert not can_exclude({"kind": "TrainJob", "spec": {"trainer": {}}})


@pytest.mark.parametrize(
    ("leaving", "ready", "lost_s", "is_forced"),
    [
        (True, "Unknown", 600.0, True),
        (True, "Unknown", 5.0, False),  # it may only blink
        (True, "False", 600.0, False),  # its kubelet reports, and can end the pod itself
        (True, "True", 600.0, False),
        (False, "Unknown", 600.0, False),
    ],
)
def test_a_pod_is_removed_by_force_only_when_its_node_is_lost(
    leaving: bool, ready: str, lost_s: float, is_forced: bool
) -> None:
    body = pod(phase="Running")
    if leaving:
        body["metadata"]["deletionTimestamp"] = write_time(NOW_S)
    values = {"type": "Ready", "status": ready, "lastTransitionTime": write_time(NOW_S - lost_s)}
    machine = {"kind": "Node", "metadata": {"name": "node-a"}, "status": {"conditions": [values]}}
    assert bool(reason_to_force(body, machine, NOW_S)) is is_forced
    assert bool(reason_to_force(body, None, NOW_S)) is leaving


@pytest.mark.parametrize("key", ["node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service"])
@pytest.mark.parametrize(("tainted_s", "is_forced"), [(600.0, True), (5.0, False)])
def test_a_taint_that_says_that_a_node_is_lost_counts_like_its_silence(
    key: str, tainted_s: float, is_forced: bool
) -> None:
    body = pod(phase="Running")
    body["metadata"]["deletionTimestamp"] = write_time(NOW_S)
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": write_time(NOW_S)}
    taint = {"key": key, "effect": "NoExecute", "timeAdded": write_time(NOW_S - tainted_s)}
    machine = {"kind": "Node", "metadata": {"name": "node-a"}, "status": {"conditions": [ready]}}
    assert bool(reason_to_force(body, {**machine, "spec": {"taints": [taint]}}, NOW_S)) is is_forced


def test_a_later_job_of_the_same_name_is_not_restarted_for_the_former() -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    former = {"kind": "Job", "metadata": {"name": "demo", "uid": "former"}, "status": failed}
    later = {**former, "metadata": {"name": "demo", "uid": "later"}}
    assert _reason_not_to(former, former) == ""
    assert _reason_not_to(later, former) != ""


def test_a_prefix_has_rank_and_pod() -> None:
    labels = {"training.kubeflow.org/replica-index": "0", "training.kubeflow.org/replica-type": "worker"}
    assert prefix_of({"metadata": {"name": "demo-worker-0", "labels": labels}}, "demo") == "[r1 worker-0]"
    assert prefix_of({"metadata": {"name": "demo-head-abcde"}}, "demo") == "[head-abcde]"


# What follows from a look?


def pod(name: str = "demo-0", **status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "creationTimestamp": write_time(NOW_S)},
        "spec": {"nodeName": "node-a", "containers": [{"name": "pytorch", "image": "example.com/x:1"}]},
        "status": status,
    }


def snapshot_of(*objects: dict[str, Any], at_s: float = NOW_S, logs: tuple[Log, ...] = ()) -> Snapshot:
    return Snapshot(at_s=at_s, objects=(job(), *objects), logs=logs)


def lost() -> dict[str, Any]:
    return pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")


def crashed(step: int) -> tuple[dict[str, Any], Log]:
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": write_time(NOW_S)}
    status = {"name": "pytorch", "state": {"terminated": ended}}
    text = f"saved checkpoint at step 40\nstep {step}\nTraceback (most recent call last):\nValueError: no"
    return pod(phase="Failed", containerStatuses=[status]), Log(pod="demo-0", text=text)


def look_twice(
    body: dict[str, Any], log: Log, its_job: dict[str, Any], state: FollowState, policy: RetryPolicy
) -> tuple[list[Action], FollowState]:
    """The second time when the last lines and events have arrived."""
    actions, state = next_actions(snapshot_of(body, logs=(log,)), its_job, state, policy)
    assert not any(isinstance(action, ReportFinding | End) for action in actions)
    return next_actions(snapshot_of(body, at_s=NOW_S + 5, logs=(log,)), its_job, state, policy)


def test_a_job_that_ends_well_ends_the_following() -> None:
    values = {**job(), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    actions, _ = next_actions(snapshot_of(), values, FollowState(), RetryPolicy())
    end = actions[-1]
    assert isinstance(end, End)
    assert end.code is ExitCode.OK
    assert phase_of(values, []) is Phase.SUCCEEDED


def test_a_wrong_image_is_reported_and_removed_at_the_second_sighting() -> None:
    waits = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "example.com/x:1": not found'}
    bad = pod(phase="Pending", containerStatuses=[{"name": "pytorch", "state": {"waiting": waits}}])
    state, result = FollowState(), list[object]()
    for second in (0, 5, 10, 15):
        actions, state = next_actions(snapshot_of(bad, at_s=NOW_S + second), job(), state, RetryPolicy())
        result += actions
        if any(isinstance(action, End) for action in actions):
            break
    assert second <= 20
    assert isinstance(result[-2], Remove)
    end = result[-1]
    assert isinstance(end, End)
    assert end.code is ExitCode.BAD_CONFIG
    (reported,) = [item for item in result if isinstance(item, ReportFinding)]
    assert "example.com/x:1" in reported.finding.cause


def test_a_failure_of_the_cluster_is_announced_and_tried_again_when_its_time_has_come() -> None:
    actions, state = next_actions(snapshot_of(lost()), job(), FollowState(), RetryPolicy())
    while not state.again:
        actions, state = next_actions(snapshot_of(lost(), at_s=NOW_S + 600), job(), state, RetryPolicy())
    (says,) = [
        action.text for action in actions if isinstance(action, Announce) and "attempt 2" in action.text
    ]
    assert " step 0;" in says, "no volume of it keeps any"
    early, state = next_actions(
        snapshot_of(lost(), at_s=state.again.not_before_s - 1), job(), state, RetryPolicy()
    )
    assert early == []
    assert state.again is not None
    (again,), state = next_actions(
        snapshot_of(lost(), at_s=state.again.not_before_s), job(), state, RetryPolicy()
    )
    assert isinstance(again, Recreate)
    assert again.attempts.number == 2
    assert state.again is None


def announced() -> FollowState:
    state = FollowState()
    while not state.again:
        _, state = next_actions(snapshot_of(lost(), at_s=NOW_S + 600), job(), state, RetryPolicy())
    return state


def test_a_watcher_that_lost_the_lease_does_not_create_the_announced_attempt() -> None:
    state = announced()
    assert state.again is not None
    late = snapshot_of(lost(), at_s=state.again.not_before_s)
    for charge in (WatchOwner.ANOTHERS, WatchOwner.UNOWNED):
        actions, after = next_actions(late, job(), state, RetryPolicy(), charge=charge)
        assert not any(isinstance(action, Recreate) for action in actions)
        assert after.again is None


def test_a_job_that_succeeds_while_its_next_attempt_is_announced_is_not_started_again() -> None:
    state = announced()
    assert state.again is not None
    values = {**job(), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    actions, _ = next_actions(snapshot_of(at_s=state.again.not_before_s), values, state, RetryPolicy())
    end = actions[-1]
    assert isinstance(end, End)
    assert end.code is ExitCode.OK


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("saved checkpoint at step 40", 40),
        ("checkpoint of step 40 written in 3 s", 40),
        ("checkpoint at step 40 could not be written: no space left", None),
        ("checkpoint step 40 not complete", None),
        ("failed to write: nothing saved, checkpoint of step 40", None),
        ("saved checkpoint at step 40\nwrote partial checkpoint at step 50", 40),
        ("saved checkpoint at step 40\nsaved checkpoint at step 50\ncheckpoint of step 50 is damaged", 40),
        ("saved checkpoint at step 40\nremoved old checkpoint of step 40", None),
    ],
)
def test_only_a_checkpoint_that_came_to_be_is_gone_on_from(text: str, step: int | None) -> None:
    assert newest_checkpoint(snapshot_of(logs=(Log(pod="demo-0", text=text),))) == step


def kept(values: dict[str, Any]) -> dict[str, Any]:
    """With a volume that outlives its pods."""
    pod = values["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "runs", "persistentVolumeClaim": {"claimName": "output"}})
    pod["containers"][0]["volumeMounts"] = [{"name": "runs", "mountPath": "/runs"}]
    return values


def test_a_checkpoint_that_went_with_its_pod_is_not_gone_on_from(wording: Wording) -> None:
    body, log = crashed(step=57)
    failed = {**job(), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    actions, _ = look_twice(body, log, failed, FollowState(), RetryPolicy(app=5))
    messages = [action.text for action in actions if isinstance(action, Announce)]
    assert any("--checkpoint-volume" in text for text in messages)
    wording("\n".join(messages))


def test_the_same_failure_of_the_program_twice_is_the_end_of_it(wording: Wording) -> None:
    body, log = crashed(step=57)
    failed = {**kept(job()), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    policy = RetryPolicy(app=5)
    actions, state = look_twice(body, log, failed, FollowState(), policy)
    assert state.again is not None
    assert any(isinstance(action, Announce) and " step 40" in action.text for action in actions)
    _, state = next_actions(
        snapshot_of(body, at_s=state.again.not_before_s, logs=(log,)), failed, state, policy
    )
    actions, _ = look_twice(body, log, failed, state, policy)
    end = actions[-1]
    assert isinstance(end, End)
    wording(end.says)
    assert not any(
        isinstance(action, Remove) for action in actions
    )  # it has ended by itself: its pods may be read


def test_what_belongs_to_another_watcher_is_only_shown() -> None:
    body, log = crashed(step=3)
    actions, state = next_actions(
        snapshot_of(body, logs=(log,)), job(), FollowState(), RetryPolicy(), charge=WatchOwner.ANOTHERS
    )
    assert all(isinstance(action, Announce | ReportFinding) for action in actions)
    late = snapshot_of(body, at_s=NOW_S + 60, logs=(log,))
    actions, _ = next_actions(late, job(), state, RetryPolicy(), charge=WatchOwner.UNOWNED)
    assert isinstance(actions[-1], End)


@pytest.mark.parametrize("policy", [RetryPolicy(), RetryPolicy(app=5)], ids=["default", "app-retries"])
def test_an_unknown_failure_is_not_removed_while_its_controller_continues(policy: RetryPolicy) -> None:
    status = {"name": "pytorch", "state": {"terminated": {"exitCode": 3, "finishedAt": write_time(NOW_S)}}}
    body = pod(phase="Running", containerStatuses=[status])
    state = FollowState()
    for second in range(0, 7200, 60):
        actions, state = next_actions(snapshot_of(body, at_s=NOW_S + second), job(), state, policy)
        assert not any(isinstance(action, Remove | Recreate | End) for action in actions)
        assert state.again is None


def test_a_consequence_is_not_acted_on_while_another_pod_is_starting() -> None:
    """A worker gave up its wait for a master whose image is still being pulled."""
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": write_time(NOW_S)}
    worker = pod(
        "demo-1", phase="Failed", containerStatuses=[{"name": "pytorch", "state": {"terminated": ended}}]
    )
    text = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients."
    log = Log(pod="demo-1", text=text)
    creating = {"name": "pytorch", "state": {"waiting": {"reason": "ContainerCreating"}}}
    starting = pod("demo-0", phase="Pending", containerStatuses=[creating])
    state = FollowState()
    for second in range(0, 3600, 30):
        seen = snapshot_of(starting, worker, at_s=NOW_S + second, logs=(log,))
        actions, state = next_actions(seen, job(), state, RetryPolicy())
        assert not any(isinstance(action, Remove | Recreate | End) for action in actions)
        assert state.again is None
    running = {"name": "pytorch", "ready": True, "state": {"running": {"startedAt": write_time(NOW_S)}}}
    ready = pod("demo-0", phase="Running", containerStatuses=[running])
    made: list[object] = []
    for second in range(3600, 7200, 30):  # nothing starts any more
        seen = snapshot_of(ready, worker, at_s=NOW_S + second, logs=(log,))
        actions, state = next_actions(seen, job(), state, RetryPolicy())
        made += [action for action in actions if isinstance(action, Recreate)]
    assert made


@pytest.mark.parametrize("container", ["init-pytorch", "wait-gcs-ready"])
def test_an_init_container_is_stuck_only_when_the_pods_it_waits_for_are_ready(container: str) -> None:
    def named(waited_for: dict[str, Any]) -> str:
        since = {"running": {"startedAt": write_time(NOW_S - 2000)}}
        worker = pod("demo-1", phase="Pending", initContainerStatuses=[{"name": container, "state": since}])
        finding = diagnose(snapshot_of(waited_for, worker))
        return "" if finding is None else finding.failure.name

    creating = {"name": "pytorch", "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert named(pod("demo-0", phase="Pending", containerStatuses=[creating])) == "init-waiting"
    running = {"name": "pytorch", "state": {"running": {"startedAt": write_time(NOW_S - 1500)}}}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": write_time(NOW_S - 1000)}
    unready = {**ready, "status": "False"}
    begun = {"phase": "Running", "containerStatuses": [running]}
    assert named(pod("demo-0", **begun, conditions=[unready])) == "init-waiting"
    assert named(pod("demo-0", **begun, conditions=[ready])) == "init-stuck"


@pytest.mark.parametrize("is_cordoned", [True, False])
def test_a_pod_whose_only_node_is_cordoned_is_waited_for(is_cordoned: bool) -> None:
    message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    since = {"lastTransitionTime": write_time(NOW_S)}
    waiting = pod(phase="Pending", conditions=[{**unplaced, **since}])
    waiting["spec"] = {**waiting["spec"], "nodeName": "", "nodeSelector": {"zone": "b"}}
    chosen = {**node("b", zone="b" if is_cordoned else "c"), "spec": {"unschedulable": is_cordoned}}
    state, made = FollowState(), list[object]()
    for second in range(0, 7200, 60):
        seen = snapshot_of(waiting, chosen, node("a", zone="a"), at_s=NOW_S + second)
        actions, state = next_actions(seen, job(), state, RetryPolicy())
        made += [action for action in actions if isinstance(action, Remove | Recreate | End)]
    assert bool(made) is not is_cordoned


def test_a_rayjob_that_lost_a_worker_is_left_to_kuberay_until_it_has_failed() -> None:
    body, log = crashed(step=57)
    ray = {"kind": "RayJob", "metadata": {"name": "demo"}, "spec": {}}
    at_work = {**ray, "status": {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}}
    state = FollowState()
    for second in range(0, 7200, 60):
        actions, state = next_actions(
            snapshot_of(body, at_s=NOW_S + second, logs=(log,)), at_work, state, RetryPolicy(app=5)
        )
        assert not any(isinstance(action, Remove | Recreate | End) for action in actions)
        assert state.again is None
    retrying = {"jobStatus": "FAILED", "jobDeploymentStatus": "Retrying"}
    assert phase_of({**ray, "spec": {"backoffLimit": 2}, "status": retrying}, []) is Phase.PENDING
    assert phase_of({**ray, "status": {**retrying, "jobDeploymentStatus": "Failed"}}, []) is Phase.FAILED


def test_an_attempt_is_not_made_when_the_job_has_recovered_meanwhile() -> None:
    state = announced()
    assert state.again is not None
    running = pod(phase="Running", containerStatuses=[{"name": "pytorch", "state": {"running": {}}}])
    actions, state = next_actions(
        snapshot_of(running, at_s=state.again.not_before_s), job(), state, RetryPolicy()
    )
    assert not any(isinstance(action, Recreate) for action in actions)
    assert state.again is None
    assert state.watching.attempts == Attempts()


def test_a_running_job_is_shown_as_pending_again_only_while_a_pod_waits_to_start() -> None:
    """Its pods are deleted some seconds before its controller reports the end."""
    leaving = pod(phase="Pending")
    leaving["metadata"]["deletionTimestamp"] = write_time(NOW_S)
    for pods in ([], [leaving]):
        assert shown_phase(Phase.RUNNING, Phase.PENDING, pods) is Phase.RUNNING
    assert shown_phase(Phase.RUNNING, Phase.PENDING, [pod(phase="Pending")]) is Phase.PENDING


def test_an_operator_that_restarts_pods_takes_precedence() -> None:
    body, log = crashed(step=3)
    actions, _ = next_actions(
        snapshot_of(body, logs=(log,)), job(backoffLimit=2), FollowState(), RetryPolicy()
    )
    assert not any(isinstance(action, End | Recreate | Remove) for action in actions)


def test_a_job_that_was_deleted_is_not_created_again() -> None:
    actions, _ = next_actions(Snapshot(at_s=NOW_S), None, FollowState(phase=Phase.RUNNING), RetryPolicy())
    end = actions[-1]
    assert isinstance(end, End)
    assert end.code is ExitCode.TRAINING_FAILED


def test_memory_grows_by_half_in_the_next_attempt() -> None:
    amounts = {"limits": {"memory": "4Gi", "cpu": "2"}, "requests": {"memory": "1Gi"}}
    manifest = {"spec": {"template": {"spec": {"containers": [{"name": "t", "resources": amounts}]}}}}
    made = next_manifest(manifest, (), ("memory",))
    grown = made["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert grown == {"limits": {"memory": "6144Mi", "cpu": "2"}, "requests": {"memory": "1536Mi"}}
