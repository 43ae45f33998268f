"""`paceline replay` proves a run, and detects a forged one."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.processes.command import paceline


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    args = ["--mode", "asgd", "--steps", "60", "--straggler", "worker=1,factor=2", "--pace", "1ms"]
    assert paceline("train", *args, "--run-dir", str(folder)).code == 0
    return folder


def copied(run_dir: Path, folder: Path, **result: object) -> Path:
    for name in ("plan.json", "events.jsonl", "result.json"):
        (folder / name).write_text((run_dir / name).read_text())
    forged = {**json.loads((run_dir / "result.json").read_text()), **result}
    (folder / "result.json").write_text(json.dumps(forged))
    return folder


def test_a_true_record_is_proven(run_dir: Path) -> None:
    result = paceline("replay", str(run_dir), "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["schema"] == "paceline.replay/1"
    verdict = result.data()
    assert verdict["is_equal"] is True
    assert (verdict["updates"], verdict["gradients"], verdict["parted"]) == (120, 120, None)
    state_sha256 = json.loads((run_dir / "result.json").read_text())["state_sha256"]
    assert verdict["state_sha256"] == state_sha256["server-0"]


def test_a_forged_result_is_found_out(run_dir: Path, tmp_path: Path) -> None:
    forged = copied(run_dir, tmp_path, state_sha256={"server-0": "f" * 64})
    result = paceline("replay", str(forged))
    assert result.code == 8
    assert "f" * 16 in result.out


def _forge_loss(columns: dict[str, Any]) -> int:  # Any: JSON
    """Returns the first step whose loss is changed. A column of equal values is written as one value."""
    steps = columns["step"] if isinstance(columns["step"], list) else [columns["step"]]
    if isinstance(columns["loss"], list):
        columns["loss"][-1] += 1e-9
        return int(steps[-1])
    columns["loss"] += 1e-9
    return int(steps[0])


def test_a_forged_loss_is_found_where_it_is(run_dir: Path, tmp_path: Path) -> None:
    forged = copied(run_dir, tmp_path)
    lines = (forged / "events.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        event = json.loads(line)
        if event.get("kind") == "steps" and event["who"] == "worker-1":
            step = _forge_loss(event["columns"])
            lines[number] = json.dumps(event)
            break
    (forged / "events.jsonl").write_text("\n".join(lines) + "\n")
    result = paceline("replay", str(forged), "--json")
    assert result.code == 8
    assert result.data()["parted"].startswith(f"worker-1, step {step},")


def test_a_line_of_the_log_that_cannot_be_read_is_named(run_dir: Path, tmp_path: Path) -> None:
    damaged = copied(run_dir, tmp_path)
    lines = (damaged / "events.jsonl").read_text().splitlines()
    lines[2] = lines[2][:-5]
    (damaged / "events.jsonl").write_text("\n".join(lines) + "\n")
    result = paceline("replay", str(damaged))
    assert f"{damaged / 'events.jsonl'}: line 3 " in result.err
    assert "Traceback" not in result.err


def test_a_run_that_did_not_finish_reports_how_to_finish_it(run_dir: Path, tmp_path: Path) -> None:
    (copied(run_dir, tmp_path) / "result.json").unlink()
    result = paceline("replay", str(tmp_path))
    assert result.code not in (0, 8)
    assert f"paceline train --resume {tmp_path}" in result.err
