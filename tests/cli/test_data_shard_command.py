"""`paceline data shard` and `verify` report what they did and the next command, as text and as JSON."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
SHARD = ["data", "shard", "charlm", "--out", "text", "--samples-per-shard", "9000"]


def test_a_data_set_is_written_once_and_the_next_command_is_printed(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(SHARD, Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.endswith("paceline train --task charlm --data text\n")
    assert "100%" in err
    wording(out)
    assert run([*SHARD, "--json"], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.data.shard/1"
    assert answer["data"]["written"] == 0
    assert answer["data"]["samples"] == {"text": 65536}


def test_a_damaged_data_set_has_its_own_exit_code(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    run([*SHARD, "--quiet"], Session(folder=tmp_path))
    assert run(["data", "verify", "text", "--quiet"], Session(folder=tmp_path)) == ExitCode.OK
    wording(capsys.readouterr().out)
    (tmp_path / "text" / "text-000003.npy").write_bytes(b"")
    assert run(["data", "verify", "text", "--json"], Session(folder=tmp_path)) == ExitCode.GATE_FAILED
    (wrong,) = json.loads(capsys.readouterr().out)["data"]["wrong"]
    assert "text-000003.npy" in wrong
    wording(wrong)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["shard", "charlm", "--out", "s3://B/x"], ExitCode.BAD_CONFIG),
        (["shard", "charlm", "--out", "s3://me:secret@bucket/x"], ExitCode.BAD_CONFIG),
        (["shard", "charlm", "none.txt", "--out", "x"], ExitCode.BAD_CONFIG),
        (["shard", "cifar10", "a", "b", "--out", "x"], ExitCode.BAD_CONFIG),
        (["shard", "rows.npz", "--out", "x"], ExitCode.BAD_CONFIG),
        (["verify", "nowhere"], ExitCode.BAD_CONFIG),
        (["shard", "charlm"], ExitCode.USAGE),
    ],
)
def test_what_cannot_be_done_is_one_error(
    args: list[str], code: ExitCode, tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(["data", *args], Session(folder=tmp_path)) == code
    err = capsys.readouterr().err
    assert "fix: " in err
    if code != ExitCode.USAGE:  # whose text is click's
        wording(err)
    assert "secret" not in err
