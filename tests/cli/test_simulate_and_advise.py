"""`paceline simulate` and `paceline advise` report predictions, and nothing beyond their data."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.cli.simulate import SPREADS
from paceline.core.errors import ExitCode
from paceline.simulate import profile
from paceline.training.session import Session

SLOW = ["--num-workers", "8", "--pace", "40ms", "--straggler", "worker=1,factor=3"]
Captured = pytest.CaptureFixture[str]


def test_simulate_shows_every_mode_that_it_can_predict(tmp_path: Path, capsys: Captured) -> None:
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


def test_advise_gives_a_choice_its_reason_and_what_is_unknown(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(["advise", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.split()[1] == "asgd"
    assert "N / t_max" in out  # who must meet the slowest
    assert "N-1 = 7" in out  # how stale gradients are
    assert "paceline train --task xor --mode asgd" in out
    (workers,) = (line for line in out.splitlines() if line.startswith("workers "))
    assert "3.0x" in workers
    wording(workers)


def test_advise_reports_that_nothing_differs(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    assert run(["advise", "--pace", "50ms"], Session(folder=tmp_path)) == ExitCode.OK
    wording(capsys.readouterr().out.splitlines()[0])
    assert run(["advise", "--pace", "50ms", "--json"], Session(folder=tmp_path)) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["is_clear"] is False


def test_advise_as_json_ranks_with_reasons(tmp_path: Path, capsys: Captured) -> None:
    assert run(["advise", "--json", *SLOW], Session(folder=tmp_path)) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["advised"] == "asgd"
    assert data["is_clear"] is True
    assert {"mode", "reason", "regret", "mean_s", "is_significant"} <= set(data["ranking"][0])


@pytest.mark.parametrize(
    "args",
    [
        ["simulate"],
        ["simulate", "--workers", "0,x", *SLOW],
        ["simulate", "--from", "runs/x", *SLOW],
        ["advise", "runs/x", "--spread", "uniform"],
        ["advise", "runs/none"],
    ],
)
def test_what_cannot_be_done_is_refused_with_a_hint(
    args: list[str], tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(args, Session(folder=tmp_path)) in (ExitCode.BAD_CONFIG, ExitCode.TRAINING_FAILED)
    err = capsys.readouterr().err
    assert "fix:" in err
    wording(err)
    assert "internal" not in err


def test_the_flag_offers_the_spreads_that_there_are() -> None:
    assert SPREADS == profile.SPREADS
