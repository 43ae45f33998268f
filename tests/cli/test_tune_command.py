"""`paceline tune` shows its search, and refuses invalid ones, before Ray is imported."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
SPACE = ["--search", "lr=log:0.001..1", "--search", "mode=ssgd,localsgd", "--steps", "40"]


def test_a_dry_run_lists_the_trials_and_starts_nothing(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(["tune", *SPACE, "--trials", "3", "--dry-run"], Session(folder=tmp_path)) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[0].split() == ["trial", "lr", "mode"]
    assert out.splitlines()[-1].startswith("3 trials, ")
    wording(out.splitlines()[-1])
    assert run(["tune", *SPACE, "--trials", "3", "-n", "--json"], Session(folder=tmp_path)) == 0
    listed = json.loads(capsys.readouterr().out)["data"]["trials"]
    assert [trial["number"] for trial in listed] == [1, 2, 3]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "flags",
    [
        ["--search", "speed=1..2"],
        ["--search", "lr=0..1"],
        ["--search", "lr=0.1..1", "--lr", "0.5"],
        ["--search", "lr=0.1..1", "--metric", "loss:low"],
        ["--search", "lr=0.1..1", "--mode", "gossip", "--scheduler", "asha"],
        ["--search", "lr=0.1..1", "--launcher", "ray"],
        ["--search", "lr=0.1..1", "--set", "stepps=4"],
        ["--resume", "out", "--trials", "3"],
        ["--resume", "out", "--lr", "3"],
        ["--search", "lr=0.1..1", "--address", "ray://127.0.0.1:10001"],
        ["--search", "lr=0.1..1", "--address", "nowhere"],
        [],
    ],
)
def test_what_cannot_be_searched_is_one_clear_error(
    tmp_path: Path, capsys: Captured, flags: list[str], wording: Wording
) -> None:
    assert run(["tune", *flags], Session(folder=tmp_path)) == 3
    wording(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_there_is_no_search_to_resume(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    assert run(["tune", "--resume", "nowhere"], Session(folder=tmp_path)) == 5
    wording(capsys.readouterr().err)
