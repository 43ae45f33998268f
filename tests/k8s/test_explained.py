"""What `paceline job explain` reports of recorded clusters, described pods, lone logs and jobs without pods.

Recordings are given to the diagnosis as `kubectl` shows them at each snapshot. `about.json` says whether
another attempt is right, and whether the job is to be removed.
"""

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.recordings import ROOT, Recording, recording, recordings
from tests.fixtures.wording import Wording
from tests.k8s.replay import follow, tape

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.classify import FAILURES, NOT_UNDERSTOOD, UNKNOWN, classify
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.explain import explain_recording, save_evidence
from paceline.k8s.diagnose.findings import FailureClass, Finding, command_of
from paceline.k8s.diagnose.kubectl_describe import parse_described
from paceline.k8s.diagnose.recording import read_record
from paceline.k8s.diagnose.snapshot import Snapshot
from paceline.k8s.objects import read_time, write_time
from paceline.training.session import Session

# The name that the diagnosis gives at the end of each recording.
CAUSES = {
    "crash-": {"user-exception"},
    "deleted-restarts-": {""},
    "deleted-rayjob": {"ray-node-lost"},
    "deleted-": {"pod-deleted"},
    "evicted-": {"pod-deleted", "preempted"},
    "missing-configmap": {"missing-reference"},
    "missing-secret": {"missing-reference"},
    "missing-pvc": {"volume-zone"},
    "never-fits": {"never-fits"},
    "no-paceline": {"bad-command"},
    "no-torchrun": {"bad-command"},
    "oom-kernel-": {"ray-process-died"},
    "oom-": {"oom-killed"},
    "pod-security-": {"pod-security"},
    "pvc-other-node": {"volume-zone"},
    "quota-": {"quota"},
    "wrong-registry-timeout": {"image-network"},
    "wrong-registry": {"image-not-found"},
    "wrong-tag": {"image-not-found"},
    "cordoned-": {""},
    "same-name-": {""},
    "slow-pull-": {""},
    "success-": {""},
    "node-unreachable-": {""},
}
RETRIED = {FailureClass.INFRA}


def snapshot_of(recorded: Recording, name: str) -> Snapshot:
    """A snapshot of the recording, with the log lines that were written until then."""
    at_s = (read_time(recorded.about["submitted_at"]) or 0.0) + recorded.about["snapshots"][name]
    listed = json.loads(gzip.decompress((recorded.folder / f"{name}.gz").read_bytes()))
    pods = {entry["metadata"]["name"] for entry in listed["items"] if entry["kind"] == "Pod"}
    index = recorded.folder / "logs" / "index.json"
    logs: list[dict[str, Any]] = []
    for item in json.loads(index.read_text()) if index.exists() else []:
        text = gzip.decompress((recorded.folder / "logs" / f"{item['file']}.gz").read_bytes()).decode()
        lines = [line for line in text.splitlines() if line[:19] <= write_time(at_s)[:19]]
        if item["pod"] in pods and lines:
            logs.append({**item, "text": lines, "previous": ".previous." in item["file"]})
    return read_record({**listed, "at": at_s, "logs": logs}, name)


def last_snapshot(recorded: Recording) -> str:
    times: dict[str, float] = recorded.about["snapshots"]
    return max(times, key=lambda name: times[name])


JOBS = [item.name for item in recordings() if item.about.get("snapshots") and item.kind != "none"]
JOBS.remove("trainjob-without-runtime")  # only answers of the API


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_failure_is_named_and_its_category_is_right(name: str) -> None:
    recorded = recording(name)
    finding = diagnose(snapshot_of(recorded, last_snapshot(recorded)))
    requested = next(names for prefix, names in CAUSES.items() if name.startswith(prefix))
    assert (finding.failure.name if finding else "") in requested
    if finding is not None and name not in ("wrong-registry-timeout-pytorchjob",):
        assert (finding.kind in RETRIED) is recorded.should_be_retried


@pytest.mark.parametrize("name", [name for name in JOBS if not recording(name).should_be_removed])
def test_nothing_that_recovers_is_called_wrong_at_any_moment(name: str) -> None:
    recorded = recording(name)
    for moment in recorded.about["snapshots"]:
        finding = diagnose(snapshot_of(recorded, moment))
        if finding is not None and finding.failure.name != "init-stuck":
            assert finding.kind in (FailureClass.INFRA, FailureClass.WAIT), moment


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "rayjob", "trainjob"])
def test_a_crash_is_reported_with_rank_and_exception(kind: str) -> None:
    recorded = recording(f"crash-{kind}")
    finding = diagnose(snapshot_of(recorded, last_snapshot(recorded)))
    assert finding is not None
    assert finding.rank == 1
    assert "ValueError: " in finding.cause
    assert "label 7" in finding.cause
    assert "ChildFailedError" not in "".join(finding.lines())


DESCRIBED = """\
Name:             train-worker-0
Namespace:        ml
Node:             ip-10-0-1-2.ec2.internal/10.0.1.2
Status:           Running
Containers:
  pytorch:
    Image:         example.com/x:1
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       Error
      Message:      Traceback (most recent call last):
  File "/app/train.py", line 31, in main
    loss = f(x)
ValueError: bad shape

      Exit Code:    1
    Ready:          False
    Restart Count:  4
Events:
  Type     Reason     Age                From     Message
  ----     ------     ----               ----     -------
  Warning  BackOff    2m (x9 over 9m)    kubelet  Back-off restarting failed container pytorch
"""


def test_a_described_pod_is_read_back_with_its_message_and_its_events() -> None:
    snapshot = parse_described(DESCRIBED)
    (pod,) = snapshot.pods
    assert pod["spec"] == {
        "nodeName": "ip-10-0-1-2.ec2.internal",
        "containers": [{"name": "pytorch", "image": "example.com/x:1", "resources": {}}],
    }
    assert snapshot.logs == ()
    (event,) = snapshot.events
    assert (event["reason"], event["count"]) == ("BackOff", 9)
    finding = diagnose(snapshot)
    assert finding is not None
    assert "ValueError: bad shape" in finding.cause
    assert "/app/train.py:31" in finding.cause
    assert finding.command.startswith("kubectl logs train-worker-0 -n ml")


@pytest.mark.parametrize(
    "events", ["Events:          <none>", "Events:\n  Normal  Pulled  1m  kubelet  Pulled"]
)
@pytest.mark.parametrize("shell", ["", "$ kubectl logs train-0\n"])
def test_a_log_behind_a_description_is_read_too(events: str, shell: str) -> None:
    described = (
        f"Name:  train-0\nNamespace:  ml\nStatus:  Failed\nContainers:\n  c:\n    Image:  x\n{events}\n"
    )
    log = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nKeyError: 7\n'
    finding = diagnose(parse_described(f"{described}{shell}{log}"))
    assert finding is not None
    assert "KeyError: 7 at /w/t.py:3" in finding.cause


def test_a_described_job_is_explained_by_its_events() -> None:
    text = (
        "Name:         train\nNamespace:    ml\nParallelism:  2\nPods Statuses:  0 Active (0 Ready)\n"
        "Events:\n  Type     Reason        Age   From            Message\n"
        '  Warning  FailedCreate  10s   job-controller  Error creating: pods "train-0-" is forbidden: '
        'error looking up service account ml/trainer: serviceaccount "trainer" not found\n'
    )
    finding = diagnose(parse_described(text))
    assert finding is not None
    assert (finding.failure.name, finding.kind) == ("missing-object", FailureClass.CONFIG)


def typed(words: list[str]) -> ExitCode:
    return ExitCode(run(words, Session()))


def test_a_lone_log_and_stdin_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train-worker-3.log"
    log.write_text(
        "NCCL WARN Bootstrap : no socket interface found\nncclInternalError: Internal check failed.\n"
    )
    assert typed(["job", "explain", "--from", str(log)]) == ExitCode.OK
    assert "network-setup, config" in capsys.readouterr().out


def test_an_unrecognized_failure_has_a_failing_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    log = tmp_path / "odd.log"
    log.write_text("all is well\nand then it was over\n")
    assert typed(["job", "explain", "--from", str(log)]) == ExitCode.NOT_READY
    wording(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob", "RayJob", "JobSet", "Job"])
@pytest.mark.parametrize("event", [None, "FailedCreate"])
def test_a_job_without_pods_is_never_called_healthy(kind: str, event: str | None) -> None:
    job: dict[str, Any] = {"kind": kind, "metadata": {"name": "demo", "namespace": "ml"}}
    job["metadata"]["creationTimestamp"] = "2026-11-16T10:00:00Z"
    objects = [job]
    if event is not None:
        subject = {"kind": kind, "name": "demo", "namespace": "ml"}
        given = {"kind": "Event", "type": "Warning", "reason": event, "message": "words that no rule knows"}
        objects.append({**given, "involvedObject": subject, "lastTimestamp": "2026-11-16T10:00:05Z"})
    finding = diagnose(read_record({"at": "2026-11-16T10:05:00Z", "objects": objects}, "x"))
    assert finding is not None
    assert finding.failure.name == ("operator-absent" if event is None else "unknown")
    assert finding.failure.patience_s is None, "a job that has not failed is left alone"


def test_a_warning_on_a_job_without_pods_is_reported_at_once() -> None:
    job = {"kind": "Job", "metadata": {"name": "demo", "creationTimestamp": "2026-11-16T10:00:00Z"}}
    subject = {"kind": "Job", "name": "demo"}
    warning = {"kind": "Event", "type": "Warning", "reason": "Odd", "message": "words that no rule knows"}
    objects = [job, {**warning, "involvedObject": subject, "lastTimestamp": "2026-11-16T10:00:05Z"}]
    finding = diagnose(read_record({"at": "2026-11-16T10:00:10Z", "objects": objects}, "x"))
    assert finding is not None
    assert warning["message"] in " ".join(finding.evidence)


@pytest.mark.parametrize(
    ("waited_s", "refused", "phase", "is_named"),
    [
        (700, False, "Running", True),
        (500, False, "Running", False),  # a worker may still be starting
        (700, True, "Running", False),  # the refusal is the cause
        (700, False, "Pending", False),  # the pod itself shows why
    ],
)
def test_a_ray_without_a_fitting_node_type_is_named_when_nothing_else_explains_its_wait(
    waited_s: int, refused: bool, phase: str, is_named: bool
) -> None:
    at_s = 1_794_823_200.0
    provisioned = {
        "type": "RayClusterProvisioned",
        "status": "False",
        "reason": "RayClusterPodsProvisioning",
        "message": "the workers are not there",
        "lastTransitionTime": write_time(at_s - waited_s),
    }
    head = {"name": "ray", "ready": True, "state": {"running": {"startedAt": write_time(at_s - waited_s)}}}
    about = {"name": "demo-head", "labels": {"ray.io/cluster": "demo"}}
    objects: list[dict[str, Any]] = [
        {"kind": "RayCluster", "metadata": {"name": "demo"}, "status": {"conditions": [provisioned]}},
        {
            "kind": "Pod",
            "metadata": {**about, "creationTimestamp": write_time(at_s - waited_s)},
            "status": {"phase": phase, "containerStatuses": [head] if phase == "Running" else []},
        },
    ]
    if refused:
        given = {"kind": "Event", "type": "Warning", "reason": "FailedToCreateWorkerPod", "message": "odd"}
        objects.append({**given, "involvedObject": {"kind": "RayCluster", "name": "demo"}})
    finding = diagnose(read_record({"at": write_time(at_s), "objects": objects}, "x"))
    assert (finding is not None and finding.failure.name == "ray-infeasible") is is_named


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("where", ["status.message", "driver's log"])
def test_a_failed_rayjob_is_explained_by_its_message_or_by_its_drivers_log_alone(
    where: str, known: bool
) -> None:
    """Its submitter's pod succeeds, whatever happened."""
    text = "Traceback (most recent call last):\nKeyError: 'loss'" if known else "words that no rule knows"
    is_in_message = where == "status.message"
    status = {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed"}
    job = {"kind": "RayJob", "metadata": {"name": "demo", "namespace": "ml"}}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-16T10:04:00Z"}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "demo-x", "namespace": "ml", "labels": {"job-name": "demo"}},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "submitter", "state": ended}]},
    }
    record = {
        "at": "2026-11-16T10:05:00Z",
        "objects": [{**job, "status": {**status, "message": text if is_in_message else ""}}, pod],
        "logs": [] if is_in_message else [{"pod": "demo-x", "text": text}],
    }
    finding = diagnose(read_record(record, "x"))
    assert finding is not None
    assert finding.failure.name == ("user-exception" if known else "unknown")


PLACES = re.compile(
    r"<[a-z][^>]*>|\b(?:NAME|POD|NAMESPACE|FILE|MODEL|KEY|VALUE|CLUSTER|RUN|NODE|IMAGE)\b(?!:)|\{\w+\}"
)
KNOWN = {
    "pod": "train-0",
    "namespace": "ml",
    "node": "node-a",
    "container": "pytorch",
    "job": "train",
    "image": "example.com/x:1",
    "registry": "example.com",
    "kind": "job",
    "quota": "team",
    "where": "ml",
    "verb": "get",
    "plural": "pods",
    "resource": "pods",
    "group": "batch",
}


@pytest.mark.parametrize("known", [{}, {"namespace": "ml"}, KNOWN], ids=["nothing", "namespace", "all"])
def test_every_next_command_can_be_typed_as_it_is_printed(known: dict[str, str]) -> None:
    for failure in (*FAILURES, UNKNOWN, NOT_UNDERSTOOD):
        command = command_of(failure, known)
        assert not PLACES.search(command), command
        assert shlex.split(command)[0] in ("kubectl", "docker", "paceline"), command
        if command.startswith("paceline "):
            assert typed([*shlex.split(command)[1:], "--help"]) == ExitCode.OK


@pytest.mark.parametrize("name", JOBS)
def test_no_finding_of_a_recording_has_an_unfilled_place(name: str) -> None:
    recorded = recording(name)
    for moment in recorded.about["snapshots"]:
        finding: Finding | None = diagnose(snapshot_of(recorded, moment))
        if finding is not None:
            assert not PLACES.search(f"{finding.cause} {finding.why} {finding.command}")


def test_the_recordings_are_there() -> None:
    assert ROOT.is_dir()
    assert len(JOBS) > 40


def test_yaml_of_kubectl_is_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ml}\nspec: {}\nstatus:\n  phase: Failed\n"
        "  reason: Evicted\n  message: 'The node was low on resource: memory.'\n"
    )
    finding = explain_recording(file).finding
    assert finding is not None
    assert finding.failure.name == "evicted"


@pytest.mark.parametrize("name", ["crash-pytorchjob", "wrong-tag-pytorchjob", "deleted-pytorchjob"])
def test_what_was_seen_of_an_attempt_is_kept_before_it_is_removed(name: str, tmp_path: Path) -> None:
    """The stored recording is explained like the job was when it was there."""
    recorded = tape(recording(name))
    played = follow(recorded, evidence=tmp_path)
    reported = played.told[-1].failure.name
    is_changed = played.removed_t is not None or played.sent_again_t is not None
    stored = list(tmp_path.glob(f"{recorded.namespace}/{recorded.job_name}/attempt-1.json"))
    assert len(stored) == is_changed
    if is_changed:
        finding = explain_recording(stored[0]).finding
        assert finding is not None
        assert finding.failure.name == reported
        assert stored[0].stat().st_mode & 0o077 == 0


def test_kept_evidence_holds_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "q7" * 12
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {
            "containers": [{"name": "c", "env": [{"name": "HF_TOKEN", "value": token}], "args": [token]}]
        },
    }
    logs = [{"pod": "a", "text": f"token={token}"}]
    path = save_evidence(read_record({"objects": [pod], "logs": logs}, "x"), tmp_path, 1)
    assert token not in path.read_text()
    assert "HF_TOKEN" in path.read_text()


# Weak evidence names a cause, and decides nothing.

STEPS = "".join(f"step {number} loss 0.{number}\n" for number in range(1, 6))
GENERAL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled system error"
)
RAISED = 'Traceback (most recent call last):\n  File "/app/train.py", line 5, in <module>\n'


def action(tmp_path: Path, text: str) -> tuple[str, str]:
    path = tmp_path / "train-worker-0.log"
    path.write_text(text)
    explained = explain_recording(path)
    return "" if explained.finding is None else explained.finding.failure.name, explained.verdict.action


@pytest.mark.parametrize(
    ("text", "cause", "requested"),
    [
        (GENERAL, "nccl-error", "wait"),  # the set-up, or a link
        (STEPS + GENERAL, "nccl-error", "resubmit"),  # the set-up was good
        ("NCCL WARN Bootstrap : no socket interface found", "network-setup", "stop"),
        (STEPS + "NCCL WARN Bootstrap : no socket interface found", "network-setup", "wait"),
        (f"{RAISED}ConnectionError: no answer from the feature store", "user-exception", "wait"),
        (f"{RAISED}ValueError: expected 3 channels", "user-exception", "stop"),
        ("failed (exitcode: -9) local_rank: 0 (pid: 12) of binary: python", "oom-killed", "wait"),
        ("Segmentation fault (core dumped)", "user-exception", "wait"),
    ],
)
def test_text_that_matches_several_failures_neither_retries_nor_removes(
    tmp_path: Path, text: str, cause: str, requested: str
) -> None:
    assert action(tmp_path, text) == (cause, requested)


def test_what_is_followed_by_progress_was_survived(tmp_path: Path) -> None:
    warning = (
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [demo-0]:23456 (errno: 111)\n"
    )
    assert action(tmp_path, warning) == ("rendezvous", "resubmit")
    assert action(tmp_path, warning + STEPS) == ("unknown", "wait")
    assert action(tmp_path, warning + STEPS + f"{RAISED}KeyError: 'x'") == ("user-exception", "stop")


def test_retries_that_were_exceeded_are_explained_by_their_reason(tmp_path: Path) -> None:
    message = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): "
    message += "Max retries exceeded with url: /gpt2 (Caused by {})"
    no_route, slow = "[Errno 101] Network is unreachable", "ConnectTimeoutError('timed out')"
    assert action(tmp_path, RAISED + message.format(no_route)) == ("hub-offline", "stop")
    assert action(tmp_path, RAISED + message.format(slow))[1] == "resubmit"


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("RuntimeEnvSetupError: Failed to set up runtime environment.", "ray-environment", "stop"),
        ("ObjectStoreFullError: Failed to put object in object store", "ray-object-store", "stop"),
        ("Could not find a version that satisfies x==9 (from versions: none)", "packages", "stop"),
        ("Liveness probe failed: HTTP probe failed with statuscode: 500", "liveness-probe", "stop"),
        ("JAX distributed service detected fatal errors", "peer-lost", "resubmit"),
        ("Permission denied (publickey,password).", "ssh-login", "stop"),
        ("RuntimeError: No TPU devices found", "tpu-missing", "stop"),
        ("The TPU is already in use by process with pid 12", "tpu-busy", "resubmit"),
        ('object is being deleted: pods "demo-0" already exists', "name-taken", "wait"),
        ("Error(s) in loading state_dict for Net", "checkpoint-unusable", "stop"),
    ],
)
def test_a_message_of_one_program_has_its_cause_and_its_remedy(text: str, cause: str, remedy: str) -> None:
    recognised = classify(text)
    assert recognised is not None
    assert (recognised.failure.name, recognised.failure.remedy.value) == (cause, remedy)


@pytest.mark.parametrize(
    ("requested", "wanted"), [("requests.nvidia.com/gpu=8", "wait"), ("requests.nvidia.com/gpu=16", "stop")]
)
def test_a_quota_that_others_use_is_waited_for(tmp_path: Path, requested: str, wanted: str) -> None:
    full = "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    message = f'Error creating: pods "a" is forbidden: exceeded quota: team, requested: {requested}, {full}'
    table = "Events:\n  Type     Reason        Age  From            Message\n  ----     ------        ----\n"
    assert action(tmp_path, f"{table}  Warning  FailedCreate  3s   job-controller  {message}\n") == (
        "quota",
        wanted,
    )


def test_a_missing_right_is_granted_by_a_role_and_its_binding() -> None:
    message = (
        'pods is forbidden: User "system:serviceaccount:ml:me" cannot list resource "pods" in API group ""'
    )
    answer = {"verb": "list", "code": 403, "message": f'{message} in the namespace "ml"'}
    finding = diagnose(read_record({"items": [], "answers": [answer]}, "x"))
    assert finding is not None
    role, binding = finding.command.split(" && ")
    assert shlex.split(role)[:3] == ["kubectl", "create", "role"]
    assert shlex.split(binding)[:3] == ["kubectl", "create", "rolebinding"]
    assert "--serviceaccount=ml:me" in shlex.split(binding)


def test_an_event_that_a_later_one_shows_to_be_overcome_decides_nothing(tmp_path: Path) -> None:
    failed = (
        '  Warning  FailedAttachVolume  71s  attachdetach-controller  Multi-Attach error for volume "v"\n'
    )
    attached = (
        "  Normal  SuccessfulAttachVolume  55s  attachdetach-controller  AttachVolume.Attach succeeded\n"
    )
    before = attached.replace("55s", "95s")
    assert action(tmp_path, failed) == ("mount", "stop")
    assert action(tmp_path, before + failed) == ("mount", "stop")
    assert action(tmp_path, failed + attached)[1] == "wait"


def test_a_master_whose_name_is_not_known_yet_is_met_again(tmp_path: Path) -> None:
    raised = f"{RAISED}ValueError: host not found: Name or service not known"
    assert action(tmp_path, raised) == ("rendezvous", "resubmit")
    warning = (
        "[W socket.cpp:558] [c10d] The IPv6 network addresses of (a-0, 1) cannot be retrieved (gai error: -2)"
    )
    assert action(tmp_path, warning) == ("rendezvous", "wait")


@pytest.mark.parametrize(
    ("text", "cause", "requested"),
    [
        # A status of HTTP means the same whichever service answers.
        (
            f"{RAISED}x.Failed: (Caused by ResponseError('too many 502 error responses'))",
            "download",
            "resubmit",
        ),
        (f"{RAISED}google.api_core.exceptions.ServiceUnavailable: try later", "download", "resubmit"),
        (f"{RAISED}requests.HTTPError: 401 Client Error: for url: https://t.example/api", "iam", "stop"),
        (f"{RAISED}google.api_core.exceptions.Forbidden: 403 POST https://s.example/o", "iam", "stop"),
        (
            f"{RAISED}requests.HTTPError: 404 Client Error: for url: https://t.example/a",
            "user-exception",
            "stop",
        ),
        # So does an error number, whichever language prints it.
        ("Error: write /out/model.bin (os error 13)", "volume-permission", "stop"),
        ("tar: write failed: errno=28", "volume-full", "stop"),
        ("Error: EROFS: cannot open '/data/cache'", "volume-permission", "stop"),
        ("store error: read of block 7 failed (os error 5)", "volume-io", "resubmit"),
    ],
)
def test_codes_decide_where_no_text_matches(tmp_path: Path, text: str, cause: str, requested: str) -> None:
    assert action(tmp_path, text) == (cause, requested)


WATCHDOG = (
    "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, NumelIn=1)\n"
)


@pytest.mark.parametrize(
    ("text", "cause", "requested"),
    [
        (WATCHDOG.format(1, 70, "ALLREDUCE"), "nccl-timeout", "wait"),
        ("step 70\n" + WATCHDOG.format(1, 70, "ALLREDUCE"), "nccl-timeout", "resubmit"),
        # Ranks in different operations: the program itself, most likely.
        (
            "step 70\n" + WATCHDOG.format(0, 70, "ALLREDUCE") + WATCHDOG.format(1, 70, "ALLGATHER"),
            "nccl-timeout",
            "wait",
        ),
        (
            "step 70\n" + WATCHDOG.format(0, 9120, "ALLREDUCE") + WATCHDOG.format(1, 4088, "ALLREDUCE"),
            "nccl-timeout",
            "wait",
        ),
        ("NCCL WARN Connect to 10.3.1.12<21724> failed : Connection refused", "nccl-error", "wait"),
        ("NCCL WARN NET/OFI Request completed with error. RC: 21", "nccl-error", "wait"),
        ("gcs_utils: Failed to connect to GCS. Please check gcs_server.out", "ray-node-lost", "wait"),
        ("ray.exceptions.RaySystemError: System error: name 'a' exists already", "ray-node-lost", "wait"),
        (
            "(raylet) A worker died or was killed while executing a task. Worker exit detail: The worker is "
            "crashed unexpectedly due to SIGSEGV",
            "ray-process-died",
            "wait",
        ),
        (f"{RAISED}RuntimeError: CUDA error: unspecified launch failure", "user-exception", "wait"),
        ("RuntimeError: [enforce fail] PytorchStreamWriter failed writing file", "volume-full", "wait"),
        ("a.ServiceError: no answer: [Errno 110] Connection timed out", "user-exception", "wait"),
        ("reason: SubmissionFailed, BackoffLimitExceeded", "submit-failed", "wait"),
        # What a CUDA library calls hardware is hardware, and an invalid argument is the program's.
        (
            f"{RAISED}x.Failed: CUDA error: Invalid access over nvlink or a hardware error",
            "gpu-hardware",
            "resubmit",
        ),
        (f"{RAISED}RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE", "user-exception", "stop"),
    ],
)
def test_reports_of_consequences_decide_only_after_progress(
    tmp_path: Path, text: str, cause: str, requested: str
) -> None:
    assert action(tmp_path, text) == (cause, requested)


NOT_MATCHED = "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
GROWN = "pod triggered scale-up: [{gpu 0->1 (max: 3)}]"


@pytest.mark.parametrize(
    ("text", "cause", "requested"),
    [
        # The scheduler repeats itself while the node that was ordered starts.
        (
            f"  Warning  FailedScheduling  9s (x4 over 3m)  default-scheduler   {NOT_MATCHED}\n"
            f"  Normal   TriggeredScaleUp  2m               cluster-autoscaler  {GROWN}\n",
            "autoscaling",
            "wait",
        ),
        (
            f"  Normal   TriggeredScaleUp   9m  cluster-autoscaler  {GROWN}\n"
            f"  Warning  FailedScheduling   8m  default-scheduler   {NOT_MATCHED}\n"
            "  Normal   NotTriggerScaleUp  5s  cluster-autoscaler  pod didn't trigger scale-up: 1 node(s) "
            "didn't match Pod's node affinity/selector\n",
            "placement",
            "stop",
        ),
        # Tables without ages, with messages that were broken into lines.
        (
            "Warning  FailedScheduling  default-scheduler  0/4 nodes are available: 1 Insufficient cpu,\n"
            "3 node(s) didn't match Pod's node affinity/selector.\n"
            f"Normal   TriggeredScaleUp  cluster-autoscaler  {GROWN}\n",
            "autoscaling",
            "wait",
        ),
        (
            'Internal error occurred: failed calling webhook "a.kb.io": \n'
            'Post "https://a-webhook.a.svc:443/mutate?timeout=10s": \nservice "a-webhook" not found\n',
            "webhook-wrong",
            "stop",
        ),
        # A claim without a volume is one that is being provisioned, at first.
        (
            "  Warning  FailedScheduling  5s  default-scheduler  0/3 nodes are available: pod has unbound "
            "immediate PersistentVolumeClaims.\n",
            "volume-zone",
            "wait",
        ),
        # What the kubelet tries again is waited for, as long as it is as young as the text says.
        ("  Warning  Failed  20s  kubelet  Failed to pull image: i/o timeout\n", "image-network", "wait"),
        (
            "  Warning  Failed  20s (x9 over 40m)  kubelet  Failed to pull image: i/o timeout\n",
            "image-network",
            "resubmit",
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, "
            "2 node(s) didn't find available persistent volumes to bind.",
            "nodes-out",
            "wait",
        ),
        (
            "failed to create containerd task: OCI runtime create failed: runc create failed: unable to "
            "create new parent process: lstat /proc/0/ns/ipc: no such file or directory",
            "pod-sandbox",
            "wait",
        ),
    ],
)
def test_what_is_in_progress_is_waited_for(tmp_path: Path, text: str, cause: str, requested: str) -> None:
    assert action(tmp_path, text) == (cause, requested)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        # Fragments of a status, without the object around them.
        ('  "reason": "PreemptionByKubeScheduler",\n  "type": "DisruptionTarget"', "preempted"),
        ("    reason: DeletionByTaintManager\n    type: DisruptionTarget", "preempted"),
        ("NAME   STATUS     AGE   VERSION\nn-1    NotReady   41d   v1.7.0", "node-lost"),
        # The same fact in words of other programs.
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 3.0 cgroup.", "oom-killed"),
        ("rpc error: code = Unknown desc = no supported platform found in manifest list", "wrong-platform"),
        ("FAILED_PRECONDITION: open(/dev/vfio/0): Device or resource busy", "tpu-busy"),
        ("/job/run.sh: 15: cd: can't cd to /mnt/code", "bad-command"),
        (
            "what(): Transport endpoint is not connected\nwhat(): CUDA error: uncorrectable NVLink error",
            "gpu-hardware",
        ),
    ],
)
def test_one_fact_is_recognised_in_several_forms(tmp_path: Path, text: str, cause: str) -> None:
    assert action(tmp_path, text)[0] == cause


CHILD = (
    'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in main\nerrors.ChildFailedError: \n'
)


@pytest.mark.parametrize(
    ("text", "cause", "requested"),
    [
        # An exception without its traceback is still the cause of the launcher's complaint.
        (f"urllib.error.HTTPError: HTTP Error 503: Service Unavailable\n{CHILD}", "download", "resubmit"),
        # A refusal that was survived is not.
        (f"WARNING tracker: status code 403\n{RAISED}KeyError: 'lr'\n", "user-exception", "stop"),
        (
            "Reason: UnexpectedAdmissionError\nMessage: Allocate failed: nvml: GPU is lost",
            "gpu-hardware",
            "resubmit",
        ),
    ],
)
def test_the_more_specific_of_two_signs_is_the_cause(
    tmp_path: Path, text: str, cause: str, requested: str
) -> None:
    assert action(tmp_path, text) == (cause, requested)


def test_a_program_s_log_is_not_joined_to_a_message_of_the_cluster(tmp_path: Path) -> None:
    refused = 'Error from server (NotFound): pods "a" not found\n'
    assert action(tmp_path, f"{refused}{RAISED}KeyError: 'lr'\n") == ("user-exception", "stop")
