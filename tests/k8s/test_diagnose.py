"""Diagnosis tells a cause from its consequences, and reports an unknown failure as unknown."""

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.k8s.replay import CASSETTES, frames, read

from paceline.core.errors import ConfigError
from paceline.core.redaction import redact
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.recording import narrow_to_job, read_record
from paceline.k8s.diagnose.snapshot import Snapshot
from paceline.k8s.objects import read_time, write_time

T0_S = 1_794_736_800.0
ROOTS = {
    "cuda-oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "user-exception": 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in go\nKeyError: 7',
    "shared-memory": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
    "gpu-hardware": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
}
FOLLOWS = (
    "[E ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n'
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3, remote process exited",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
)


def pod(name: str, *, ended_s: float | None = None, code: int = 1, **status: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {"startedAt": write_time(T0_S)}}
    if ended_s is not None:
        end = {"exitCode": code, "reason": "Error", "startedAt": write_time(T0_S)}
        state = {"terminated": {**end, "finishedAt": write_time(ended_s)}}
    phase = "Running" if ended_s is None else "Failed"
    statuses = [{"name": "pytorch", "state": state}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train"},
        "spec": {"nodeName": f"node-of-{name}", "containers": [{"name": "pytorch", "image": "x:1"}]},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def gang(seed: int) -> tuple[Snapshot, str, str]:
    """Ranks of which one failed first, what it failed of, and its pod."""
    rng = random.Random(seed)
    size = rng.choice([2, 4, 8, 16, 64])
    root, kind = rng.randrange(size), rng.choice(sorted(ROOTS))
    objects, logs = [], []
    for rank in rng.sample(range(size), size):
        after_s = 100.0 if rank == root else 101.0 + rng.random() * 600
        stamp = f"{write_time(T0_S + after_s)[:-1]}.123456789Z "
        text = ROOTS[kind] if rank == root else rng.choice(FOLLOWS)
        lines = ["step 41 loss 2.1", *text.splitlines()]
        stamped = seed % 2 == 0
        objects.append(pod(f"demo-worker-{rank}", ended_s=T0_S + after_s))
        shown = [f"{stamp}{line}" if stamped else line for line in lines]
        logs.append({"pod": f"demo-worker-{rank}", "text": shown})
    at = write_time(T0_S + 1000)
    return read_record({"at": at, "objects": objects, "logs": logs}, "gang"), kind, f"demo-worker-{root}"


@pytest.mark.parametrize("seed", range(40))
def test_the_rank_that_failed_first_is_the_cause(seed: int) -> None:
    snapshot, kind, culprit = gang(seed)
    finding = diagnose(snapshot)
    assert finding is not None
    assert (finding.failure.name, finding.pod) == (kind, culprit)
    assert finding.step == 41


def test_of_two_exceptions_the_first_that_torchelastic_recorded_is_reported() -> None:
    summary = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-15_10:00:03",
        "  host      : demo-worker-1",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 71)",
    ]
    raised = ("Traceback (most recent call last):", '  File "/w/a.py", line 3', "KeyError: {n}")
    trace = "\n".join(f"[rank{{n}}]: {line}" for line in raised)
    logs = [
        {"pod": "demo-worker-0", "text": trace.format(n=2)},
        {"pod": "demo-worker-1", "text": [*trace.format(n=5).splitlines(), *summary]},
    ]
    objects = [pod("demo-worker-0", ended_s=T0_S + 9), pod("demo-worker-1", ended_s=T0_S + 9)]
    finding = diagnose(read_record({"objects": objects, "logs": logs}, "x"))
    assert finding is not None
    assert (finding.rank, finding.pod) == (5, "demo-worker-1")


def test_torch_s_rank_is_not_taken_for_the_number_of_a_node() -> None:
    """Rank 1 of eight on each node is on the first one; pod 1 is the second."""
    summary = (
        "Root Cause (first observed failure):\n time : 2026-11-15_10:00:03\n host : demo-0\n rank : 1 (x)"
    )
    objects = [pod("demo-0-abcde", ended_s=T0_S + 9), pod("demo-1-fghij", ended_s=T0_S + 8)]
    logs = [
        {"pod": "demo-0-abcde", "text": f"{ROOTS['user-exception']}\n{summary}"},
        {"pod": "demo-1-fghij", "text": ROOTS["user-exception"]},
    ]
    finding = diagnose(read_record({"objects": objects, "logs": logs}, "x"))
    assert finding is not None
    assert finding.pod == "demo-0-abcde"


def test_an_unknown_failure_is_reported_with_the_best_evidence(wording: Wording) -> None:
    objects = [pod("demo-worker-0", ended_s=T0_S + 9, code=137)]
    logs = [{"pod": "demo-worker-0", "text": "all is well\nreading the third shard"}]
    finding = diagnose(read_record({"objects": objects, "logs": logs}, "x"))
    assert finding is not None
    assert finding.failure.name == "unknown"
    wording("\n".join(finding.evidence[:2]))


def test_a_running_run_is_left_alone_whatever_its_log_contains() -> None:
    logs = [{"pod": "demo-worker-0", "text": "\n".join([*FOLLOWS, *ROOTS.values(), "step 5 loss 2"])}]
    assert diagnose(read_record({"objects": [pod("demo-worker-0")], "logs": logs}, "x")) is None


def test_a_handled_exception_is_not_why_it_ended() -> None:
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "/w/hub.py", line 1, in get',
            "ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
            *["fetched at the second try"] * 9,
            "Traceback (most recent call last):",
            '  File "/w/train.py", line 44, in step',
            "IndexError: index 9 is out of range",
        ]
    )
    finding = diagnose(read_record({"logs": [{"pod": "demo-worker-0", "text": text}]}, "x"))
    assert finding is not None
    assert finding.failure.name == "user-exception"
    assert "IndexError: " in finding.cause
    assert "/w/train.py:44" in finding.cause


def test_a_launcher_s_own_traceback_does_not_hide_the_program_s() -> None:
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "/w/train.py", line 44, in step',
            "IndexError: index 9 is out of range",
            "E1115 10:00:01 elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 74)",
            "Traceback (most recent call last):",
            '  File "/usr/local/bin/torchrun", line 8, in <module>',
            "    sys.exit(main())",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "=" * 60,
            "train.py FAILED",
        ]
    )
    finding = diagnose(read_record({"logs": [{"pod": "demo-worker-0", "text": text}]}, "x"))
    assert finding is not None
    assert "IndexError: " in finding.cause
    assert "/w/train.py:44" in finding.cause


@pytest.mark.parametrize(
    ("uid", "at_s", "over"), [("mine", T0_S + 5, False), ("another's", T0_S + 5, True), ("", T0_S - 50, True)]
)
def test_events_of_an_attempt_before_are_over(uid: str, at_s: float, over: bool) -> None:
    first_pod = pod("demo-worker-0")
    first_pod["metadata"] |= {"creationTimestamp": write_time(T0_S), "uid": "mine"}
    first_pod["status"] = {"phase": "Pending"}
    subject = {"kind": "Pod", "name": "demo-worker-0", "uid": uid}
    event = {"kind": "Event", "type": "Warning", "reason": "FailedAttachVolume", "involvedObject": subject}
    event |= {"message": 'Multi-Attach error for volume "v"', "lastTimestamp": write_time(at_s)}
    finding = diagnose(read_record({"at": T0_S + 20, "objects": [first_pod, event]}, "x"))
    assert (finding is None) is over


@pytest.mark.parametrize(("at_s", "over"), [(T0_S - 50, True), (T0_S + 5, False)])
def test_events_of_pods_that_are_gone_are_over_when_others_began_later(at_s: float, over: bool) -> None:
    """Pods of an Indexed Job have names that never come back."""
    first_pod = pod("demo-0-abcde")
    first_pod["metadata"]["creationTimestamp"] = write_time(T0_S)
    event = _event("demo-0-vwxyz", "Preempted", "Preempted by pod 7 on node n", at_s=at_s)
    finding = diagnose(read_record({"at": T0_S + 20, "objects": [first_pod, event]}, "x"))
    assert (finding is None) is over


def _event(of: str, reason: str, message: str, *, at_s: float = T0_S) -> dict[str, Any]:
    event = {"kind": "Event", "type": "Warning", "reason": reason, "message": message}
    subject = {"kind": "Pod", "name": of, "namespace": "train"}
    return {**event, "involvedObject": subject, "lastTimestamp": write_time(at_s)}


def _pending(text: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
    first_pod = pod("demo-worker-0")
    requests = {"nvidia.com/gpu": "8"}
    first_pod["spec"] = {"containers": [{"name": "pytorch", "resources": {"requests": requests}}]}
    first_pod["status"] = {"phase": "Pending", "conditions": [condition]}
    return first_pod


@pytest.mark.parametrize("reason", ["Nominated", "TriggeredScaleUp"])
def test_a_group_of_no_nodes_that_grows_is_waited_for(reason: str) -> None:
    message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    failed, growing = (
        _event("demo-worker-0", "FailedScheduling", message),
        _event("demo-worker-0", reason, ""),
    )
    before = diagnose(read_record({"at": T0_S, "objects": [_pending(message), failed]}, "x"))
    assert before is not None
    assert (before.failure.name, before.failure.patience_s) == ("placement", 60.0)
    growing |= {"type": "Normal", "message": "Pod should schedule on: nodeclaim/gpu-x"}
    after = diagnose(read_record({"at": T0_S, "objects": [_pending(message), failed, growing]}, "x"))
    assert after is not None
    assert after.failure.name == "autoscaling"


@pytest.mark.parametrize(
    ("key", "name"), [("node.kubernetes.io/unschedulable", "cluster-busy"), ("team", "")]
)
def test_a_node_that_is_cordoned_is_one_that_could_hold_the_pod(key: str, name: str) -> None:
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    nodes: list[dict[str, Any]] = [
        {
            "kind": "Node",
            "metadata": {"name": f"n-{gpus}"},
            "status": {"allocatable": {"nvidia.com/gpu": gpus}},
        }
        for gpus in ("1", "8")
    ]
    nodes[1]["spec"] = {"taints": [{"key": key, "effect": "NoSchedule"}]}
    finding = diagnose(read_record({"at": T0_S, "objects": [_pending(message), *nodes]}, "x"))
    assert finding is not None
    assert finding.failure.name == (name or "never-fits")


def test_a_user_without_a_login_must_log_in() -> None:
    message = 'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group ""'
    answer = {"verb": "list", "path": "/api/v1/pods", "code": 403, "message": message}
    finding = diagnose(read_record({"answers": [answer], "client": "36.0.0"}, "x"))
    assert finding is not None
    assert finding.failure.name == "unauthorized"
    assert "36.0.0" in finding.cause


def test_a_container_that_runs_again_has_got_over_it() -> None:
    first_pod = pod("demo-worker-0")
    before = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": write_time(T0_S - 9)}
    first_pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": before}
    assert diagnose(read_record({"objects": [first_pod]}, "x")) is None


def test_a_node_that_complains_is_no_reason_to_stop_a_job_that_runs() -> None:
    broken = [{"type": "Ready", "status": "True"}, {"type": "AcceleratedHardwareReady", "status": "False"}]
    full = {"type": "DiskPressure", "status": "True"}
    node = {
        "kind": "Node",
        "metadata": {"name": "node-of-demo-worker-0"},
        "status": {"conditions": [*broken, full]},
    }
    assert diagnose(read_record({"objects": [pod("demo-worker-0"), node]}, "x")) is None
    finding = diagnose(read_record({"objects": [pod("demo-worker-0", ended_s=T0_S + 3), node]}, "x"))
    assert finding is not None
    assert finding.kind.value == "infra"


def test_an_exception_that_ray_carries_is_the_program_s() -> None:
    text = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "/home/ray/job/bench.py", line 12, in <module>',
            "    ray.get(refs)",
            "ray.exceptions.RayTaskError(KeyError): ray::work() (pid=7, ip=10.0.0.1)",
        ]
    )
    finding = diagnose(read_record({"logs": [{"pod": "demo-abcde", "text": text}]}, "x"))
    assert finding is not None
    assert finding.kind.value == "app"
    assert "RayTaskError(KeyError)" in finding.cause


def test_a_wrong_tag_names_the_tags_that_are_known() -> None:
    (path,) = [path for path in CASSETTES if path.stem == "16-image-not-found"]
    snapshot = frames(read(path))[-1]
    node = {"kind": "Node", "metadata": {"name": "b"}, "status": {"images": [{"names": ["example.com/x:1"]}]}}
    finding = diagnose(replace(snapshot, objects=(*snapshot.objects, node)))
    assert finding is not None
    assert "example.com/x:1" in finding.cause


def test_one_job_of_a_namespace_can_be_picked() -> None:
    objects = [pod("demo-worker-0"), pod("other-worker-0", ended_s=T0_S + 9)]
    whole = read_record({"kind": "List", "items": objects}, "x")
    assert diagnose(whole) is not None
    assert diagnose(narrow_to_job(whole, "demo")) is None
    assert diagnose(narrow_to_job(whole, "other")) is not None
    labelled = pod("demo-2-worker-0", ended_s=T0_S + 9)
    labelled["metadata"]["labels"] = {"training.kubeflow.org/job-name": "demo-2"}
    whole = read_record({"kind": "List", "items": [pod("demo-worker-0"), labelled]}, "x")
    assert diagnose(narrow_to_job(whole, "demo")) is None, "the name of one job begins like that of the other"
    there = _event("demo-2-worker-0", "Preempted", "Preempted by pod 7 on node n")
    gone = _event("demo-2-worker-1", "Preempted", "Preempted by pod 7 on node n")
    mine = _event("demo-worker-1", "Preempted", "Preempted by pod 7 on node n")
    log = {"pod": "demo-2-worker-1", "text": ROOTS["user-exception"]}
    items = [pod("demo-worker-0"), labelled, there, gone]
    whole = read_record({"objects": items, "logs": [log]}, "x")
    assert diagnose(narrow_to_job(whole, "demo")) is None
    assert len(narrow_to_job(whole, "demo-2").events) == 2
    assert len(narrow_to_job(read_record({"objects": [*items, mine]}, "x"), "demo").events) == 1


@pytest.mark.parametrize("value", [[], None, 7, {}, {"items": []}, {"objects": [1, None]}])
def test_a_file_that_is_no_recording_is_refused_with_the_command_that_makes_one(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_record(value, "x.json")
    assert "pods,events" in caught.value.hint


@pytest.mark.parametrize("odd", [None, "", [], {}, 0, [None], {"": None}])
def test_damaged_objects_are_read_and_never_a_crash(odd: Any) -> None:
    for path in CASSETTES:
        for snapshot in frames(read(path)):
            for number, item in enumerate(snapshot.objects):
                for field in ("metadata", "spec", "status"):
                    changed = {**item, field: odd}
                    objects = (*snapshot.objects[:number], changed, *snapshot.objects[number + 1 :])
                    diagnose(replace(snapshot, objects=objects))


def test_no_secret_of_a_log_is_quoted() -> None:
    secrets = {
        "hf_" + "q7" * 12: "hf_" + "q7" * 12,
        "hunter2hunter2": "HF_TOKEN=hunter2hunter2",
        "s3cr3tvalue": 'password: "s3cr3tvalue"',
        "dbpass": "postgres://me:dbpass@host/db",
    }
    for secret, message in secrets.items():
        text = (
            f'Traceback (most recent call last):\n  File "/w/t.py", line 1\nValueError: cannot use {message}'
        )
        finding = diagnose(read_record({"logs": [{"pod": "p", "text": text}]}, "x"))
        assert finding is not None
        assert secret not in str(finding.to_json()) + "".join(finding.lines())
    harmless = 'secret "hf-token" not found; fetch oauth token: unexpected status'
    assert redact(harmless) == harmless


def test_times_are_read_as_kubernetes_writes_them() -> None:
    assert read_time("2026-11-15T10:00:00Z") == T0_S
    assert read_time("2026-11-15T10:00:00.123456789Z") == pytest.approx(T0_S + 0.123456)
    assert read_time("2026-11-15T11:00:00+01:00") == T0_S
    assert read_time("2026-02-31T11:00:00Z") is None
    assert write_time(T0_S) == "2026-11-15T10:00:00Z"
