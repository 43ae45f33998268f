"""Do `paceline data shard` and `verify` say what they did, and what to type next, to people and programs?"""

import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
SHARD = ["data", "shard", "charlm", "--out", "text", "--samples-per-shard", "9000"]


def test_a_data_set_is_written_once_and_the_next_command_is_told(tmp_path: Path, capsys: Captured) -> None:
    assert run(SHARD, Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "samples   text 65,536; 65.5 kB",
        "shards    8, of which 0 were already there",
        "next: paceline train --task charlm --data text",
    ]
    assert "shards: 65.5 kB of 65.5 kB, 100%" in err
    assert run([*SHARD, "--json"], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.data.shard/1"
    assert answer["data"]["written"] == 0
    assert answer["data"]["samples"] == {"text": 65536}


def test_a_damaged_data_set_has_an_exit_code_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    run([*SHARD, "--quiet"], Session(folder=tmp_path))
    assert run(["data", "verify", "text", "--quiet"], Session(folder=tmp_path)) == ExitCode.OK
    assert "all are right" in capsys.readouterr().out
    (tmp_path / "text" / "text-000003.npy").write_bytes(b"")
    assert run(["data", "verify", "text", "--json"], Session(folder=tmp_path)) == ExitCode.GATE_FAILED
    (wrong,) = json.loads(capsys.readouterr().out)["data"]["wrong"]
    assert "text-000003.npy is cut short" in wrong


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["shard", "charlm", "--out", "s3://B/x"], ExitCode.BAD_CONFIG, "no place in an object store"),
        (["shard", "charlm", "--out", "s3://me:secret@bucket/x"], ExitCode.BAD_CONFIG, "a password"),
        (["shard", "charlm", "none.txt", "--out", "x"], ExitCode.BAD_CONFIG, "cannot read 'none.txt'"),
        (["shard", "cifar10", "a", "b", "--out", "x"], ExitCode.BAD_CONFIG, "read from one place, but 2"),
        (["shard", "rows.npz", "--out", "x"], ExitCode.BAD_CONFIG, "there is no rows.npz"),
        (["verify", "nowhere"], ExitCode.BAD_CONFIG, "there is no data set at"),
        (["shard", "charlm"], ExitCode.USAGE, "--out"),
    ],
)
def test_what_cannot_be_done_is_one_error(
    args: list[str], code: ExitCode, what: str, tmp_path: Path, capsys: Captured
) -> None:
    assert run(["data", *args], Session(folder=tmp_path)) == code
    err = capsys.readouterr().err
    assert what in err
    assert "fix: " in err
    assert "secret" not in err
