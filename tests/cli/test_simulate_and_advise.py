"""Do `paceline simulate` and `paceline advise` say what they know, and only that?"""

import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.cli.simulate import SPREADS
from paceline.core.errors import ExitCode
from paceline.simulate import profile
from paceline.training.session import Session

SLOW = ["--num-workers", "8", "--pace", "40ms", "--straggler", "worker=1,factor=3"]
Captured = pytest.CaptureFixture[str]


def test_simulate_shows_every_mode_that_it_knows(tmp_path: Path, capsys: Captured) -> None:
    assert run(["simulate", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "asgd" in out
    assert "dssp (bound 3 to 7)" in out
    assert "backup (all but 1)" in out
    assert "1,600 gradients" in err
    assert list(tmp_path.iterdir()) == []


def test_simulate_compares_numbers_of_workers_as_json(tmp_path: Path, capsys: Captured) -> None:
    assert run(["simulate", "--json", "--workers", "1,2", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.simulate/1"
    rows = answer["data"]["rows"]
    assert {row["num_workers"] for row in rows} == {1, 2}
    assert {"total_s", "samples_per_s", "waiting", "staleness", "bytes_out", "steps"} <= set(
        rows[0]["prediction"]
    )


def test_advise_says_what_to_take_why_and_what_it_does_not_know(tmp_path: Path, capsys: Captured) -> None:
    assert run(["advise", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("advised     asgd")
    assert "worker 1 is persistently 3.0x slower" in out
    assert "any bound keeps ssgd's long-run rate" in out
    assert "throughput is not accuracy" in out
    assert "paceline train --task xor --mode asgd" in out


def test_advise_says_so_when_nothing_differs(tmp_path: Path, capsys: Captured) -> None:
    assert run(["advise", "--pace", "50ms"], Session(folder=tmp_path)) == ExitCode.OK
    out = capsys.readouterr().out
    assert "no significant difference" in out
    assert "the simplest is advised" in out


def test_advise_as_json_ranks_with_reasons(tmp_path: Path, capsys: Captured) -> None:
    assert run(["advise", "--json", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["advised"] == "asgd"
    assert data["is_clear"] is True
    assert {"mode", "reason", "regret", "mean_s", "is_significant"} <= set(data["ranking"][0])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["simulate"], "pace is 0"),
        (["simulate", "--workers", "0,x", *SLOW], "workers is"),
        (["simulate", "--from", "runs/x", *SLOW], "was recorded"),
        (["advise", "runs/x", "--spread", "uniform"], "was recorded"),
        (["advise", "runs/none"], "cannot read"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_hint(
    args: list[str], what: str, tmp_path: Path, capsys: Captured
) -> None:
    assert run(args, Session(folder=tmp_path)) in (ExitCode.BAD_CONFIG, ExitCode.TRAINING_FAILED)
    err = capsys.readouterr().err
    assert what in err
    assert "fix:" in err
    assert "internal" not in err


def test_the_flag_offers_the_spreads_that_there_are() -> None:
    assert SPREADS == profile.SPREADS
