"""Subprocess helpers answer, and leave no process behind."""

import os
from pathlib import Path

import pytest
from tests.fixtures.command import ROOT
from tests.fixtures.waiting import is_running, until

from paceline.core.errors import NotReadyError, TrainingError
from paceline.launchers.isolated import IsolatedResult, run_isolated
from paceline.plan.codec import Json


def apart(name: str, numbers: list[int], log: Path, notes: list[str] | None = None) -> IsolatedResult:
    orders: list[dict[str, Json]] = [{"number": number, "folder": str(log.parent)} for number in numbers]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    said = notes if notes is not None else []
    return run_isolated(f"tests.fixtures.apart:{name}", orders, log=log, note=said.append, env=env)


def test_each_order_is_carried_out_by_a_process_of_its_own(tmp_path: Path) -> None:
    notes: list[str] = []
    done = apart("double", [3, 4], tmp_path / "log.txt", notes)
    assert [value["double"] for value in done.values] == [6, 8]
    assert len({value["pid"] for value in done.values} | {os.getpid()}) == 3
    assert sorted(notes) == ["doubling 3", "doubling 4"]
    assert (tmp_path / "log-0.txt").read_text() == "this is for the log\n"
    assert done.total_s > 0


def test_an_error_there_is_the_same_error_here_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="0 is too much") as told:
        apart("first_refuses_others_wait", [0, 1], tmp_path / "log.txt")
    assert told.value.hint == "take less"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_what_nobody_expected_is_told_with_its_last_words_and_where_the_rest_is(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="exit code 1: ValueError: nobody expected this") as told:
        apart("fall", [0], tmp_path / "log.txt")
    assert str(tmp_path / "log.txt") in told.value.hint


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted(text: str) -> None:
        pids.append(int(text))
        raise KeyboardInterrupt

    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with pytest.raises(KeyboardInterrupt):
        run_isolated("tests.fixtures.apart:wait", [{}], log=tmp_path / "log.txt", note=interrupted, env=env)
    until(lambda: not is_running(pids[0]), "it has ended")
