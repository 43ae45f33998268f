"""`paceline image check` reports problems, and changes files only with --write."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.images.lint.external_tools import find_program
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
DOCKERFILE = """\
# Ours.
FROM python:3.11-slim
ENV HF_TOKEN=hf_planted_by_a_test
WORKDIR /app
COPY requirements /tmp/requirements
RUN pip install --no-cache-dir -r /tmp/requirements/train.txt
USER 1000
"""
TRAIN = "-r base.txt\r\ntorchvision==0.20.1\r\n"
BASE = "torch==2.6.0\n"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    (folder / "requirements").mkdir(parents=True)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "requirements" / "train.txt").write_bytes(TRAIN.encode())
    (folder / "requirements" / "base.txt").write_text(BASE)
    return folder


def check(*arguments: str, folder: Path) -> int:
    return run(["image", "check", *arguments], Session(folder=folder))


def answer(capsys: Captured) -> Any:  # Any: JSON
    return json.loads(capsys.readouterr().out)["data"]


def texts(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_problems_end_with_code_8_and_nothing_is_written(context: Path, capsys: Captured) -> None:
    before = texts(context)
    assert check(folder=context) == ExitCode.GATE_FAILED
    shown = capsys.readouterr().out
    assert "problem  torch-trio  requirements/train.txt:2" in shown
    assert "+torchvision==0.21.0" in shown
    assert "2 problems" in shown
    assert texts(context) == before


def test_no_output_shows_a_secret_of_the_dockerfile(context: Path, capsys: Captured) -> None:
    check(folder=context)
    check("--json", folder=context)
    check("--write", "--patch", "fixes.patch", folder=context)
    captured = capsys.readouterr()
    assert "HF_TOKEN" in captured.out
    assert "hf_planted_by_a_test" not in captured.out + captured.err


def test_written_fixes_keep_line_ends_and_the_rest_and_a_second_run_changes_nothing(
    context: Path, capsys: Captured
) -> None:
    (context / "Dockerfile").write_text(DOCKERFILE.replace("ENV HF_TOKEN=hf_planted_by_a_test\n", ""))
    before = texts(context)
    assert check("--write", folder=context) == ExitCode.OK
    after = texts(context)
    changed = {Path(name).name for name in after if after[name] != before[name]}
    assert changed == {"train.txt"}
    assert (context / "requirements" / "train.txt").read_bytes() == TRAIN.replace("0.20.1", "0.21.0").encode()
    capsys.readouterr()
    assert check("--write", "--json", folder=context) == ExitCode.OK
    assert answer(capsys)["mended"] == 0
    assert texts(context) == after


def test_the_patch_is_one_that_git_applies(context: Path) -> None:
    assert check("--patch", "../fixes.patch", folder=context) == ExitCode.GATE_FAILED
    subprocess.run(["git", "apply", "--no-index", "../fixes.patch"], cwd=context, check=True)
    assert b"torchvision==0.21.0\r\n" in (context / "requirements" / "train.txt").read_bytes()


def test_json_has_every_finding_with_its_place_evidence_and_diff(context: Path, capsys: Captured) -> None:
    check("--json", folder=context)
    data = answer(capsys)
    assert data["fine"] is False
    trio = next(finding for finding in data["findings"] if finding["id"] == "torch-trio")
    assert (trio["file"], trio["line"], trio["pattern"], trio["level"]) == (
        "requirements/train.txt",
        2,
        2,
        "problem",
    )
    assert trio["automatic"]
    assert "0.21.0" in trio["evidence"]
    assert trio["diff"].startswith("--- a/requirements/train.txt\n+++ b/requirements/train.txt\n")


def test_a_gpu_and_a_driver_are_judged_by_name(context: Path, capsys: Captured) -> None:
    check("--gpu", "RTX 5090", "--driver", "470", "--json", folder=context)
    results = {finding["id"] for finding in answer(capsys)["findings"]}
    assert {"gpu-too-new", "driver-too-old"} <= results


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--gpu", "voodoo"], ExitCode.BAD_CONFIG, "voodoo"),
        (["--target", "cpu", "--driver", "535"], ExitCode.BAD_CONFIG, "--target"),
        (["--dockerfile", "Containerfile"], ExitCode.BAD_CONFIG, "Containerfile"),
        (["--requirements", "none.txt"], ExitCode.BAD_CONFIG, "none.txt"),
        (["elsewhere"], ExitCode.BAD_CONFIG, "elsewhere"),
        (["--only-new"], ExitCode.USAGE, "--only-new"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    context: Path, capsys: Captured, arguments: list[str], code: ExitCode, word: str, wording: Wording
) -> None:
    assert check(*arguments, folder=context) == code
    err = capsys.readouterr().err
    assert word in err
    if code != ExitCode.USAGE:  # whose text is click's
        wording(err)


@pytest.mark.parametrize("text", ["", "# only a remark\n", "RUN echo\n", "FROM a\n\0RUN b\n"])
def test_a_dockerfile_that_no_build_reads_is_refused(
    context: Path, capsys: Captured, text: str, wording: Wording
) -> None:
    (context / "Dockerfile").write_text(text)
    assert check(folder=context) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)


def test_another_dockerfile_and_more_requirements_can_be_named(context: Path, capsys: Captured) -> None:
    (context / "gpu.Dockerfile").write_text(
        "FROM python:3.12-slim\nCOPY deep /srv\nRUN pip install -r /srv/more.in\n"
    )
    (context / "deep").mkdir()
    (context / "deep" / "more.in").write_text("opencv-python\n")
    code = check("--dockerfile", "gpu.Dockerfile", "--requirements", "deep/more.in", "--json", folder=context)
    assert code == ExitCode.GATE_FAILED
    assert [finding["file"] for finding in answer(capsys)["findings"] if finding["level"] == "problem"] == [
        "deep/more.in"
    ]


def test_hadolint_gives_advice_and_its_failure_stops_nothing(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A stand-in of a few lines: what it says is shown; when it breaks, that is said. The verdict stays."""
    stand_in = tmp_path / "bin" / "hadolint"
    stand_in.parent.mkdir()
    monkeypatch.setenv("PATH", f"{stand_in.parent}:/usr/bin:/bin")
    row = '[{"code": "DL3042", "level": "warning", "line": 6, "message": "Avoid cache", "column": 1}]'
    for script, word in (
        (f"#!/bin/sh\ncat >/dev/null\necho '{row}'\n", "DL3042"),
        ("#!/bin/sh\nexit 3\n", ""),
    ):
        stand_in.write_text(script)
        stand_in.chmod(0o755)
        assert check(folder=context) == ExitCode.GATE_FAILED
        captured = capsys.readouterr()
        assert word in captured.out
        assert ("hadolint" in captured.err) == (word == "")


def test_without_uv_resolving_is_refused_with_the_command_to_install_it(
    context: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if find_program("uv") is not None:
        monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert check("--resolve", folder=context) == ExitCode.NOT_READY
    assert " install uv" in capsys.readouterr().err


def test_the_matrix_is_shown_with_its_date(capsys: Captured) -> None:
    assert run(["image", "matrix", "--json"], Session()) == ExitCode.OK
    data = answer(capsys)
    assert data["dated"] >= "2026-11-15"
    assert {"torch": "2.6.0", "cuda": "12.4.127"}.items() <= next(
        row for row in data["torch"] if row["torch"] == "2.6.0"
    ).items()
    assert run(["image", "matrix", "--only-new"], Session()) == ExitCode.BAD_CONFIG


def test_a_folder_named_dockerfile_is_refused_with_a_message(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "Dockerfile").mkdir()
    assert check(folder=tmp_path) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)


def test_odd_names_and_files_beside_it_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        f"FROM python:3.11-slim\nCOPY . .\nRUN pip install -r {'x' * 400}.txt\nUSER 1\n"
    )
    (tmp_path / "requirements-old.txt").write_bytes("six".encode("utf-16"))
    assert check("--patch", "new/folder/fix.patch", folder=tmp_path) == ExitCode.OK
    assert (tmp_path / "new" / "folder" / "fix.patch").read_text() == ""


def test_a_file_that_is_installed_must_be_readable(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nRUN pip install -r requirements.txt\n")
    (tmp_path / "requirements.txt").write_bytes("six # caf\xe9".encode("latin-1"))
    assert check(folder=tmp_path) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
