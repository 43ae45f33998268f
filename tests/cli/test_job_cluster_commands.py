"""`paceline job submit|status|logs|list|stop|explain NAME|validate --server`, as a user types them."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.waiting import is_running, kill_all, until, until_gone
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.clock import unix_now_s
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import JOB, SERVICE
from paceline.k8s.objects import write_time
from paceline.k8s.submit.job_state import read_lease
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
Call = Callable[..., int]
RENDER = ["job", "render", "--target", "job", "--task", "xor", "--mode", "ddp", "--nodes", "1"]
RENDER += ["--image", "example.com/x:1", "--name", "demo"]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as serving:
        serving.put_node()
        yield serving


@pytest.fixture
def call(server: ApiServer, tmp_path: Path, capsys: Captured) -> Call:
    """`paceline job …` against the server, in a folder with a rendered job."""
    assert run(RENDER, Session(folder=tmp_path)) == ExitCode.OK
    (tmp_path / "demo.yaml").write_text(capsys.readouterr().out)
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")

    def job(*words: str, runs: Sequence[str] = ()) -> int:
        placed = ["--kubeconfig", str(kubeconfig), "--namespace", "train"]
        last = ["--", *runs] if runs else []
        return run(["job", *words, *placed, *last], Session(folder=tmp_path))

    return job


def put_pod(server: ApiServer, state: dict[str, Any], phase: str) -> None:
    about: dict[str, Any] = {
        "name": "demo-0-abcde",
        "namespace": "train",
        "uid": "pod-1",
        "creationTimestamp": _now(),
    }
    about["ownerReferences"] = [{"uid": job["metadata"]["uid"]} for job in server.of(JOB)]
    inside = [{"name": "pytorch", "image": "example.com/x:1", "restartCount": 0, "state": state}]
    about["labels"] = {"job-name": "demo", "batch.kubernetes.io/job-completion-index": "0"}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about,
            "spec": {"containers": [{"name": "pytorch", "image": "example.com/x:1"}]},
            "status": {"phase": phase, "containerStatuses": inside},
        }
    )


def _now() -> str:
    return write_time(unix_now_s())


def finish(server: ApiServer) -> None:
    """As soon as the job is there, it writes two lines and ends well."""
    until(lambda: bool(server.of(JOB)), "the job is there")
    server.say("train", "demo-0-abcde", "pytorch", "2026-11-15T12:00:00Z", "step 1")
    server.say("train", "demo-0-abcde", "pytorch", "2026-11-15T12:00:01Z", "step 2")
    server.end_log("train", "demo-0-abcde", "pytorch")
    put_pod(server, {"terminated": {"exitCode": 0, "finishedAt": _now()}}, "Succeeded")
    complete = [{"type": "Complete", "status": "True"}]
    server.change(JOB, "demo", "train", status={"conditions": complete})


def test_a_job_is_sent_followed_and_seen_afterwards(
    server: ApiServer, call: Call, capsys: Captured, wording: Wording
) -> None:
    player = threading.Thread(target=finish, args=(server,))
    player.start()
    code = call("submit", "demo.yaml", "--for", "0")
    player.join()
    out, err = capsys.readouterr()
    assert (code, out) == (ExitCode.OK, "[r0 0-abcde] step 1\n[r0 0-abcde] step 2\n")
    assert "Job/demo" in err
    assert "succeeded" in err
    assert call("status", "demo", "--json") == ExitCode.OK
    now = json.loads(capsys.readouterr().out)["data"]
    assert (now["phase"], now["attempt"], now["pods"][0]["rank"]) == ("succeeded", 1, 0)
    assert call("list") == ExitCode.OK
    assert capsys.readouterr().out == "demo  train  Job  succeeded  attempt 1\n"
    assert call("logs", "demo", "--tail", "1") == ExitCode.OK
    assert capsys.readouterr().out == "[r0 0-abcde] step 2\n"
    assert call("explain", "demo") == ExitCode.OK
    wording(capsys.readouterr().out)
    assert call("stop", "demo") == ExitCode.OK
    assert capsys.readouterr().out == "removed  Job/demo\nremoved  Service/demo\n"
    assert server.of(JOB) == server.of(SERVICE) == []
    assert call("status", "demo") == ExitCode.NOT_READY


def test_a_script_of_any_image_is_sent_with_a_patch_and_followed(
    server: ApiServer, call: Call, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "more.yaml").write_text("{kind: Pod, spec: {terminationGracePeriodSeconds: 300}}")
    words = ["submit", "--target", "job", "--image", "example.com/fsdp:1", "--name", "demo"]
    words += ["--patch", "more.yaml", "--for", "0"]
    script = ["/fsdp/train.py", "--model_type=llama_v3", "--max_steps=100"]
    assert call(*words, "--explain-command", runs=script) == ExitCode.OK
    assert "--master_addr=demo-0.demo" in capsys.readouterr().out
    assert server.writes == [], "an explanation submits nothing"
    player = threading.Thread(target=finish, args=(server,))
    player.start()
    code = call(*words, runs=script)
    player.join()
    out, err = capsys.readouterr()
    assert (code, out) == (ExitCode.OK, "[r0 0-abcde] step 1\n[r0 0-abcde] step 2\n")
    assert "succeeded" in err
    (job,) = server.of(JOB)
    pod = job["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 300
    assert pod["containers"][0]["command"] == ["/opt/conda/bin/torchrun"]
    assert pod["containers"][0]["args"][-3:] == script


def test_explain_names_the_cause_in_the_cluster(server: ApiServer, call: Call, capsys: Captured) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "demo", "namespace": "train"},
        "spec": {},
    }
    server.put(job)
    waits = {"reason": "ErrImagePull", "message": 'failed to resolve reference "example.com/x:1": not found'}
    put_pod(server, {"waiting": waits}, "Pending")
    assert call("explain", "demo") == ExitCode.OK
    assert "(image-not-found, config)" in capsys.readouterr().out
    assert server.writes == []


def test_a_dry_run_on_the_server_is_requested(server: ApiServer, call: Call, capsys: Captured) -> None:
    assert call("validate", "demo.yaml", "--server") == ExitCode.OK
    capsys.readouterr()
    server.rules.append(
        lambda verb, kind, _what: (422, "Invalid", "spec: no") if (verb, kind) == ("create", JOB) else None
    )
    assert call("validate", "demo.yaml", "--server") == ExitCode.BAD_CONFIG
    assert "spec: no" in capsys.readouterr().err
    assert server.writes == []


def test_a_detached_watcher_continues_after_the_shell_has_returned(
    server: ApiServer, call: Call, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert call("submit", "demo.yaml", "--detach", "--json") == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]
    pid, log = answer["watcher"], Path(answer["log"])
    try:
        until(lambda: bool(read_lease(server.of(JOB)[0]).watcher) or not is_running(pid), "it is in charge")
        assert read_lease(server.of(JOB)[0]).watcher, log.read_text()
    finally:
        kill_all([pid])


def test_after_a_timeout_the_shell_returns_a_watcher_continues_and_the_lines_are_kept(
    server: ApiServer, call: Call, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert call("submit", "demo.yaml", "--for", "0.1", "--output", "lines.txt", "--json") == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]
    assert answer["ended"] is False
    pid, log = answer["watcher"], Path(answer["log"])
    try:
        finish(server)
        until_gone([pid])
    finally:
        kill_all([pid])
    assert "[r0 0-abcde] step 2" in log.read_text()
    assert "succeeded" in log.read_text()
    assert call("attach", "demo", "--output", "lines.txt") == ExitCode.OK
    assert (tmp_path / "lines.txt").read_text() == "[r0 0-abcde] step 1\n[r0 0-abcde] step 2\n"
    assert call("logs", "demo", "--output", "no/such/folder") != ExitCode.OK
    assert "no/such/folder" in capsys.readouterr().err


def test_a_job_is_sent_by_the_flags_of_render(
    server: ApiServer, call: Call, capsys: Captured, wording: Wording
) -> None:
    player = threading.Thread(target=finish, args=(server,))
    player.start()
    flags = [
        "--target",
        "job",
        "--task",
        "xor",
        "--mode",
        "ddp",
        "--nodes",
        "1",
        "--image",
        "example.com/x:1",
    ]
    code = call("submit", *flags, "--name", "demo", "--for", "0")
    player.join()
    assert code == ExitCode.OK
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    wording("\n".join(notes))
    (by_flags,) = server.of(JOB)
    assert call("stop", "demo") == ExitCode.OK
    player = threading.Thread(target=finish, args=(server,))
    player.start()
    assert call("submit", "demo.yaml", "--for", "0") == ExitCode.OK
    player.join()
    assert server.of(JOB)[0]["spec"] == by_flags["spec"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--target", "job", "--name", "demo"],
        ["demo.yaml", "--mode", "ssgd", "--nodes", "2"],
        ["demo.yaml", "--target", "job"],
        ["--target", "job", "--image", "a b", "--name", "demo"],
    ],
)
def test_a_missing_or_repeated_job_name_is_refused(
    server: ApiServer, call: Call, capsys: Captured, words: list[str], wording: Wording
) -> None:
    assert call("submit", *words) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
    assert server.asked == []


def test_a_train_job_for_another_trainer_is_named_before_it_is_sent(
    server: ApiServer, call: Call, capsys: Captured, tmp_path: Path, wording: Wording
) -> None:
    about = {"name": "kubeflow-trainer-public", "namespace": "kubeflow-system"}
    data = {"kubeflow_trainer_version": "v2.1.0"}
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data})
    train = [*RENDER[:3], "trainjob", *RENDER[4:]]
    assert run(train, Session(folder=tmp_path)) == ExitCode.OK
    (tmp_path / "train.yaml").write_text(capsys.readouterr().out)
    assert call("submit", "train.yaml") == ExitCode.NOT_READY
    wording(capsys.readouterr().err)
    assert call("validate", "train.yaml", "--server") == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
    assert server.writes == []
