"""`paceline job explain` reports the cause from what kubectl recorded, and refuses unusable input."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "failures"


def explain(folder: Path, *words: str) -> ExitCode:
    return ExitCode(run(["job", "explain", *words], Session(folder=folder)))


def test_a_wrong_tag_is_explained_from_a_recording(capsys: Captured, wording: Wording) -> None:
    assert explain(EXAMPLES, "demo", "--from", "wrong-tag.json") == ExitCode.OK
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].endswith(" (image-not-found, config)")
    assert lines[-2].endswith(" manifest inspect example.com/x:2")
    assert len(lines) <= 8
    wording(out)


def test_the_same_as_json(capsys: Captured) -> None:
    assert explain(EXAMPLES, "--from", "node-lost.json", "--json") == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.job.explain/1"
    result, decision = answer["data"]["finding"], answer["data"]["decision"]
    assert (result["failure"], result["class"], result["node"]) == ("node-lost", "infra", "node-b")
    assert (decision["action"], decision["excluded_nodes"]) == ("resubmit", ["node-b"])


def test_logs_next_to_the_recording_add_evidence(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    end = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-15T10:00:09Z"}
    status = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": end}}]}
    pod = {"kind": "Pod", "metadata": {"name": "demo-worker-0"}, "spec": {}, "status": status}
    (tmp_path / "demo.json").write_text(json.dumps({"kind": "List", "items": [pod]}))
    assert explain(tmp_path, "--from", "demo.json") == ExitCode.NOT_READY
    wording(capsys.readouterr().out)
    (tmp_path / "demo-worker-0.log").write_text("saved checkpoint at step 40\nCUDA out of memory. Tried")
    assert explain(tmp_path, "--from", "demo.json", "--log", "demo-worker-0.log") == ExitCode.OK
    assert "(cuda-oom, config)" in capsys.readouterr().out


def test_a_job_that_runs_is_not_complained_about(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    pod = {"kind": "Pod", "metadata": {"name": "demo-worker-0"}, "status": {"phase": "Running"}}
    (tmp_path / "demo.json").write_text(json.dumps({"kind": "List", "items": [pod]}))
    assert explain(tmp_path, "--from", "demo.json") == ExitCode.OK
    out = capsys.readouterr().out
    assert "(1 pod, 0 events, 0 logs)" in out
    wording(out)


def test_a_job_that_was_not_recorded_is_not_called_healthy(capsys: Captured, wording: Wording) -> None:
    assert explain(EXAMPLES, "dmeo", "--from", "node-lost.json") == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert "'dmeo'" in err
    assert " demo" in err.partition("fix: ")[2]
    wording(err)


def test_neither_name_nor_recording_is_refused_with_the_command_that_records(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert explain(tmp_path) == ExitCode.BAD_CONFIG
    err = capsys.readouterr().err
    assert "pods,events,jobs,pvc,resourcequotas,nodes -n NAMESPACE -o json > FILE.json" in err
    wording(err)


@pytest.mark.parametrize("text", ["{", "[1]", "{}"])
def test_a_file_that_is_no_recording_is_one_clear_error(
    text: str, tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert explain(tmp_path, "--from", "x.json") == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)


@pytest.mark.parametrize("lines", [1, 2])
def test_a_log_of_json_lines_is_read_as_a_log(lines: int, tmp_path: Path, capsys: Captured) -> None:
    line = '{"level":"error","msg":"failed","error":"RuntimeError: CUDA error: no kernel image is available"}'
    (tmp_path / "x.log").write_text(f"{line}\n" * lines)
    assert explain(tmp_path, "--from", "x.log", "--json") != ExitCode.BAD_CONFIG
    assert "cuda-architecture" in capsys.readouterr().out


def test_a_refusal_by_the_api_is_read_as_a_log(tmp_path: Path, capsys: Captured) -> None:
    message = 'pods is forbidden: User "a" cannot create resource "pods" in API group "" in the namespace "b"'
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": message, "code": 403}
    (tmp_path / "x.json").write_text(json.dumps(status))
    assert explain(tmp_path, "--from", "x.json", "--json") != ExitCode.BAD_CONFIG
    assert '"forbidden"' in capsys.readouterr().out


def test_a_recording_that_was_cut_is_one_clear_error(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "x.json").write_text('{"apiVersion": "v1", "items": [\n{"kind": "Pod",')
    assert explain(tmp_path, "--from", "x.json") == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)


def test_a_missing_file_is_reported_by_name(tmp_path: Path, capsys: Captured) -> None:
    assert explain(tmp_path, "--from", "none.json") == ExitCode.TRAINING_FAILED
    assert "none.json" in capsys.readouterr().err


def test_the_guide_shows_the_example_as_it_is() -> None:
    guide = EXAMPLES.parent.parent / "docs" / "guides" / "jobs.md"
    assert (EXAMPLES / "wrong-tag.json").read_text() in guide.read_text()
