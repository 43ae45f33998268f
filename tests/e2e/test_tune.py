"""A Ray Tune search stops bad trials, survives its own end, and leaves a file that trains the best."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.processes.command import ROOT, CommandResult, paceline
from tests.fixtures.runs.searches import Here, laid_out
from tests.fixtures.waiting import descendants, is_running, kill, until, until_gone

from paceline.tune.experiment import Record, Status, TuneFolder
from paceline.tune.runner import apply_report, order_of
from paceline.tune.trial import TrialMaker

pytestmark = pytest.mark.timeout(300)
# With this seed the good rate comes first. A run of 600 slow steps lasts a minute.
STEPS, SHORT = 600, 200
SPACE = ("--search", "lr=0.5,0.00001,0.00002", "--trials", "3", "--seed", "0")
RUN = (
    "--task",
    "tests.fixtures.tasks.patient_task:PatientTask",
    "--steps",
    str(STEPS),
    "--evaluate-every",
    "20",
)


@contextmanager
def tuning(*args: str) -> Iterator[subprocess.Popen[str]]:
    """Start a search beside the test; nothing of it is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "tune", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen: dict[int, str] = {}
    try:
        yield process
    finally:
        if process.poll() is None:
            seen = descendants(process.pid)
        for pid in [process.pid, *seen]:
            if is_running(pid):
                kill(pid)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def end(process: subprocess.Popen[str]) -> CommandResult:
    out, err = process.communicate(timeout=120)
    return CommandResult(process.returncode, out, err)


def record(out: Path, number: int) -> Any:  # Any: JSON
    path = out / "trials" / f"{number:03d}.json"
    return json.loads(path.read_text()) if path.exists() else {"status": "waiting", "evaluations": []}


def until_evaluated(process: subprocess.Popen[str], out: Path) -> None:
    def seen() -> bool:
        assert process.poll() is None, f"it ended early: {process.communicate()}"
        return len(record(out, 1)["evaluations"]) > 0

    until(seen, "the first trial was evaluated", within_s=120)


def happened(out: Path, number: int) -> str:
    return (out / "trials" / f"{number:03d}" / "events.jsonl").read_text()


def assert_finished(result: CommandResult, out: Path, steps: int = STEPS) -> None:
    """The first trial came to its end, the others were stopped at their first rung, in good order."""
    assert result.code == 0, result.err
    document = result.data()
    assert document["best"] == {"number": 1, "settings": {"lr": "0.5"}}
    assert [record(out, number)["status"] for number in (1, 2, 3)] == ["finished", "stopped", "stopped"]
    first = record(out, 1)
    assert [evaluation["step"] for evaluation in first["evaluations"]] == list(range(20, steps + 1, 20))
    for number in (2, 3):
        assert '"kind":"run_finished"' in happened(out, number), "an early stop is a stop in good order"
        assert record(out, number)["step"] < steps
    assert (out / "trials.csv").read_text().count("\n") == 4
    planned = paceline("train", "--dry-run", "--config", str(out / "best.yaml"), "--json")
    assert planned.code == 0, planned.out
    ours, theirs = planned.data()["plan"], json.loads((out / "trials/001/plan.json").read_text())
    del theirs["hash"]
    assert {**ours, "run": ""} == {**theirs, "run": ""}


@pytest.mark.soak  # a dozen runs
def test_a_search_resumes_an_interrupted_trial_and_bad_ones_are_stopped_early(tmp_path: Path) -> None:
    """What Ray would have started is started here, and leaves what an interrupted search leaves."""
    out, hurry = tmp_path / "search", tmp_path / "hurry"
    folder, options = TuneFolder(out), f"hurry={hurry}"
    given = {"task": RUN[1], "steps": str(SHORT), "evaluate_every": "20", "task_options": options}
    result, _ = laid_out(Here(**given), "lr=0.5,0.00001,0.00002")
    folder.begin(result)
    interrupted = Record(number=1, status=Status.RUNNING)
    with chdir(ROOT), closing(TrialMaker()) as maker:  # workers import the task from here
        maker.begin(order_of(result.trials[0], result, folder))
        while not interrupted.evaluations:
            report = maker.next()
            assert "done" not in report, report
            interrupted = apply_report(interrupted, report)
        maker.end()
    folder.write(interrupted)
    assert '"kind":"run_finished"' in happened(out, 1), "it stopped in good order"
    assert not (out / "trials" / "002").exists()
    hurry.touch()
    assert_finished(paceline("tune", "--resume", str(out), "--json", within_s=200), out, SHORT)
    assert '"kind":"run_resumed"' in happened(out, 1), "it went on from its checkpoint"


@pytest.mark.soak
def test_ctrl_c_stops_the_trials_in_order_and_a_ray_of_our_own_ends_with_the_search(tmp_path: Path) -> None:
    out, hurry = tmp_path / "search", tmp_path / "hurry"
    with tuning(*SPACE, *RUN, "--task-option", f"hurry={hurry}", "--out", str(out)) as process:
        until_evaluated(process, out)
        seen = list(descendants(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        result = end(process)
        assert result.code == 130, result.err
        assert f"paceline tune --resume {out}" in result.out
        until_gone(seen, within_s=60)
    assert record(out, 1)["status"] == "interrupted"
    assert '"kind":"run_finished"' in happened(out, 1), "it stopped in good order"
    hurry.touch()
    assert_finished(paceline("tune", "--resume", str(out), "--json", within_s=200), out)
    assert '"kind":"run_resumed"' in happened(out, 1), "it went on from its checkpoint"


@pytest.mark.soak
def test_a_search_that_was_killed_resumes_and_leaves_no_process_behind(tmp_path: Path) -> None:
    out, hurry = tmp_path / "search", tmp_path / "hurry"
    with tuning(*SPACE, *RUN, "--task-option", f"hurry={hurry}", "--out", str(out)) as process:
        until_evaluated(process, out)
        seen = descendants(process.pid)
        kill(process.pid)
        ours = [pid for pid, command in seen.items() if "zygote" in command or "TrialActor" in command]
        assert len(ours) == 4, "the trial's process, the one that starts workers, and two workers"
        until_gone(ours, within_s=60)
        until_gone(seen, within_s=150)  # two of Ray's look for their head for a minute
    assert record(out, 1)["status"] == "running", "no other status was recorded"
    hurry.touch()
    assert_finished(paceline("tune", "--resume", str(out), "--json", within_s=200), out)
    assert '"kind":"run_resumed"' not in happened(out, 1), "without a checkpoint it is done again"
    again = paceline("tune", "--resume", str(out), "--json")
    assert again.code == 0, "everything is over: nothing is started"
