"""Does `paceline benchmark keras` refuse what cannot work before anything starts?"""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
TINY = ("--data", "synthetic", "--subset", "80", "--test-subset", "20", "--width", "4")


def refused(folder: Path, capsys: Captured, *args: str) -> tuple[int, str]:
    code = run(["benchmark", "keras", "--out", "out", *args], Session(folder=folder))
    assert not (folder / "out").exists(), "nothing was started"
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path, capsys: Captured) -> None:
    code, err = refused(tmp_path, capsys, *TINY, "--num-workers", "3", "--batch-size", "16")
    assert code == ExitCode.BAD_CONFIG
    assert "batch-size is 16, which 3 workers cannot share equally" in err
    assert "--batch-size 18" in err


def test_variables_stand_behind_the_flags(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_WORKERS", "5")
    monkeypatch.setenv("BATCH_SIZE", "16")
    _, err = refused(tmp_path, capsys, *TINY)
    assert "batch-size is 16, which 5 workers cannot share equally" in err
    _, err = refused(tmp_path, capsys, *TINY, "--num-workers", "3")
    assert "which 3 workers" in err
    monkeypatch.setenv("EPOCHS", "many")
    code, err = refused(tmp_path, capsys, *TINY)
    assert code == ExitCode.BAD_CONFIG
    assert "epochs is 'many'" in err


def test_without_images_it_is_said_how_to_get_them(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path / "nothing"))
    code, err = refused(tmp_path, capsys)
    assert code == ExitCode.BAD_CONFIG
    assert "cifar10 has no data" in err
    assert "paceline data fetch cifar10" in err
    assert "--data synthetic" in err


def test_a_ray_that_is_not_there_is_told_at_once(tmp_path: Path, capsys: Captured) -> None:
    code, err = refused(tmp_path, capsys, *TINY, "--address", "127.0.0.1:1")
    assert code == ExitCode.UNREACHABLE
    assert "no Ray at 127.0.0.1:1" in err


def test_help_says_what_is_the_same_on_both_sides(capsys: Captured) -> None:
    assert run(["benchmark", "keras", "--help"], Session()) == ExitCode.OK
    said = " ".join(capsys.readouterr().out.split())
    assert "same model, weights, images and global batch" in said
    assert "of all workers together" in said


def test_the_command_itself_never_imports_tensorflow_nor_keras() -> None:
    probe = (
        "import sys; from paceline.cli.main import run; from paceline.training.session import Session\n"
        "run(sys.argv[1:], Session())\n"
        "sys.exit(' '.join({'tensorflow', 'tf_keras', 'keras', 'torch', 'ray'} & set(sys.modules)) or 0)"
    )
    refused = ("benchmark", "keras", *TINY, "--address", "ray://127.0.0.1:1")
    for args in (("benchmark", "keras", "--help"), refused):
        done = subprocess.run(
            [sys.executable, "-c", probe, *args], capture_output=True, text=True, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
