"""`paceline compare`: its flags, and a clean end when it is interrupted."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.launchers.local import LocalLauncher
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
QUICK = ["--launcher", "virtual", "--steps", "4", "--batch-size", "4", "--modes", "ssgd,asgd"]


def test_it_answers_with_a_table_a_verdict_and_where_the_report_is(
    launcher: LocalLauncher, tmp_path: Path, capsys: Captured
) -> None:
    session = Session(folder=tmp_path, start_launcher=lambda: nullcontext(launcher))
    code = run(["compare", *QUICK, "--repeats", "1", "--out", "out"], session)
    out, err = capsys.readouterr()
    assert code == 0
    assert [line.split()[0].strip("*") for line in out.splitlines()[2:5]] == ["single", "ssgd", "asgd"]
    assert f"report: {tmp_path / 'out' / 'report.html'}" in out
    assert "1/3" in err
    assert "3/3" in err
    code = run(["compare", *QUICK, "--repeats", "1", "--out", "out", "--json"], session)
    out, err = capsys.readouterr()
    assert err == ""
    answer = json.loads(out)["data"]["comparison"]
    assert answer == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert run(["report", "out", "--json"], Session(folder=tmp_path)) == 0
    assert json.loads(capsys.readouterr().out)["data"]["report"] == str(tmp_path / "out" / "report.html")


@pytest.mark.parametrize(
    "flags",
    [
        ["--num-workers", "two"],
        ["--num-workers", "2,2"],
        ["--modes", "ssgd,aasgd"],
        ["--steps", "0"],
        ["--straggler", "worker=7,factor=3"],
        ["--checkpoint-store", "s3://a/b"],
    ],
)
def test_what_cannot_be_compared_is_one_clear_error(
    tmp_path: Path, capsys: Captured, flags: list[str], wording: Wording
) -> None:
    assert run(["compare", *flags, "--out", "out"], Session(folder=tmp_path)) == 3
    wording(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_mode_of_a_file_is_compared_with_the_baseline(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.yaml").write_text("mode: ssgd\nnum_workers: 3\nsteps: 4\nlauncher: virtual\n")
    command = ["compare", "--config", str(tmp_path / "mine.yaml"), "--repeats", "1", "--json"]
    assert run(command, Session(folder=tmp_path)) == 0
    assert list(json.loads(capsys.readouterr().out)["data"]["comparison"]["cells"]) == ["single", "ssgd-3"]


def test_a_report_of_what_is_no_run_is_one_clear_error(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(["report", "nowhere"], Session(folder=tmp_path)) == 5
    stderr = capsys.readouterr().err
    assert "plan.json" in stderr
    wording(stderr)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_it_cleanly_and_the_same_command_resumes(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "paceline", "compare", "--modes", "ssgd", "--repeats", "2"]
    command += ["--steps", "20", "--pace", "20ms", "--batch-size", "4", "--out", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip().startswith("2/4"):
                break  # the first run is finished
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    assert not (tmp_path / "out" / "comparison.json").exists()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "1/4" not in again.stderr
    assert "4/4" in again.stderr
    assert (tmp_path / "out" / "report.html").exists()
