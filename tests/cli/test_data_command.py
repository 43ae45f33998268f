"""`paceline data fetch` reports what it did and the next command, as text and as JSON."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from tests.fixtures.servers.file_server import file_server
from tests.fixtures.tasks.cifar_folder import archive_of, cifar_files
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.progress_display import ByteLines
from paceline.training.session import Session

PACKED = archive_of(cifar_files())
SHA256 = hashlib.sha256(PACKED).hexdigest()
Captured = pytest.CaptureFixture[str]


def test_a_fetch_prints_its_progress_and_the_next_command(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    with file_server(PACKED) as served:
        args = ["data", "fetch", "cifar10", "--to", "here", "--url", served.url, "--sha256", SHA256]
        assert run(args, Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    folder = tmp_path / "here" / "cifar-10-batches-py"
    assert out.endswith(f" train --task cifar10 --data {folder}\n")
    wording(out)
    assert "100%" in err


def test_the_default_folder_is_the_one_that_the_task_reads(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path / "data"))
    with file_server(PACKED) as served:
        args = ["data", "fetch", "cifar10", "--url", served.url, "--sha256", SHA256, "--json"]
        assert run(args, Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "paceline.data.fetch/1"
    assert answer["data"]["folder"] == str(tmp_path / "data" / "cifar-10-batches-py")
    assert answer["data"]["training_images"] == 40
    assert err == ""


def test_a_fetch_that_fails_is_one_error_with_a_hint_and_its_own_exit_code(
    tmp_path: Path, capsys: Captured
) -> None:
    args = ["data", "fetch", "cifar10", "--to", str(tmp_path), "--url", "http://127.0.0.1:1/none"]
    assert run(args, Session(folder=tmp_path)) == ExitCode.UNREACHABLE
    error, _, hint, _ = capsys.readouterr().err.splitlines()
    assert error.startswith("error[E801]: http://127.0.0.1:1/none ")
    assert "data fetch cifar10" in hint


def test_lines_come_for_each_tenth_and_not_for_each_piece() -> None:
    stream = io.StringIO()
    lines = ByteLines(stream, "cifar10")
    for result in range(0, 1001, 5):
        lines(result, 1000)
    assert len(stream.getvalue().splitlines()) == 10


def test_packed_tokens_are_counted_for_people_and_programs(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "documents.jsonl").write_text('{"text": "one"}\n{"text": "two!"}\n')
    args = ["data", "tokens", "documents.jsonl", "--out", "packed"]
    assert run(args, Session(folder=tmp_path)) == ExitCode.OK
    first, following = capsys.readouterr().out.splitlines()
    assert first.startswith("11 tokens ")
    assert "paceline train --task llama --data packed" in following
    wording(f"{first}\n{following}")
    assert run([*args, "--json"], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]
    assert (answer["tokens"], answer["documents"], answer["was_there"]) == (11, 2, True)
    assert run([*args, "--column", "none"], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
