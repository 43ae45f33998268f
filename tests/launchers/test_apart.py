"""Subprocess helpers answer, and leave no process behind."""

import os
from pathlib import Path

import pytest
from tests.fixtures.processes.command import ROOT
from tests.fixtures.waiting import is_running, until
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError, TrainingError
from paceline.launchers.isolated import IsolatedResult, run_isolated
from paceline.plan.codec import Json


def run_function(name: str, numbers: list[int], log: Path, notes: list[str] | None = None) -> IsolatedResult:
    orders: list[dict[str, Json]] = [{"number": number, "folder": str(log.parent)} for number in numbers]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    messages = notes if notes is not None else []
    return run_isolated(
        f"tests.fixtures.processes.isolated_functions:{name}", orders, log=log, note=messages.append, env=env
    )


def test_each_call_runs_in_its_own_process(tmp_path: Path) -> None:
    notes: list[str] = []
    isolated_result = run_function("double", [3, 4], tmp_path / "log.txt", notes)
    assert [value["double"] for value in isolated_result.values] == [6, 8]
    assert len({value["pid"] for value in isolated_result.values} | {os.getpid()}) == 3
    assert sorted(notes) == ["doubling 3", "doubling 4"]
    assert (tmp_path / "log-0.txt").read_text() == "this is for the log\n"
    assert isolated_result.total_s > 0


def test_an_error_there_is_the_same_error_here_and_ends_the_others(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(NotReadyError) as caught:
        run_function("first_refuses_others_wait", [0, 1], tmp_path / "log.txt")
    assert caught.value.hint == "take less"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_an_unexpected_end_is_reported_with_its_last_output_and_the_log_file(
    tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(TrainingError) as caught:
        run_function("fall", [0], tmp_path / "log.txt")
    assert str(tmp_path / "log.txt") in caught.value.hint


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted(text: str) -> None:
        pids.append(int(text))
        raise KeyboardInterrupt

    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with pytest.raises(KeyboardInterrupt):
        run_isolated(
            "tests.fixtures.processes.isolated_functions:wait",
            [{}],
            log=tmp_path / "log.txt",
            note=interrupted,
            env=env,
        )
    until(lambda: not is_running(pids[0]), "it has ended")
