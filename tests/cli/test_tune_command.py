"""Does `paceline tune` say what it would try, and refuse what it cannot, before Ray is even imported?"""

import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
SPACE = ["--search", "lr=log:0.001..1", "--search", "mode=ssgd,localsgd", "--steps", "40"]


def test_a_dry_run_lists_the_trials_and_starts_nothing(tmp_path: Path, capsys: Captured) -> None:
    assert run(["tune", *SPACE, "--trials", "3", "--dry-run"], Session(folder=tmp_path)) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[0].split() == ["trial", "lr", "mode"]
    assert out.splitlines()[-1] == "3 trials, smallest valid_loss or test_loss; nothing was started"
    assert run(["tune", *SPACE, "--trials", "3", "-n", "--json"], Session(folder=tmp_path)) == 0
    listed = json.loads(capsys.readouterr().out)["data"]["trials"]
    assert [trial["number"] for trial in listed] == [1, 2, 3]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--search", "speed=1..2"], "there is no setting speed"),
        (["--search", "lr=0..1"], "lr is 0.0"),
        (["--search", "lr=0.1..1", "--lr", "0.5"], "lr is searched, and also said"),
        (["--search", "lr=0.1..1", "--metric", "loss:low"], "it must be NAME"),
        (["--search", "lr=0.1..1", "--mode", "gossip", "--scheduler", "asha"], "scheduler is asha, but"),
        (["--search", "lr=0.1..1", "--launcher", "ray"], "where Ray puts the trial"),
        (["--search", "lr=0.1..1", "--set", "stepps=4"], "there is no key stepps"),
        (["--resume", "out", "--trials", "3"], "--trials cannot be changed"),
        (["--resume", "out", "--lr", "3"], "--lr cannot be changed"),
        (["--search", "lr=0.1..1", "--address", "ray://127.0.0.1:10001"], "Ray's client runs Tune elsewhere"),
        (["--search", "lr=0.1..1", "--address", "nowhere"], "it must be local, auto, HOST:PORT"),
        ([], "nothing is searched"),
    ],
)
def test_what_cannot_be_searched_is_one_clear_error(
    tmp_path: Path, capsys: Captured, flags: list[str], words: str
) -> None:
    assert run(["tune", *flags], Session(folder=tmp_path)) == 3
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_there_is_no_search_to_go_on_with(tmp_path: Path, capsys: Captured) -> None:
    assert run(["tune", "--resume", "nowhere"], Session(folder=tmp_path)) == 5
    assert "holds no search to go on with" in capsys.readouterr().err
