"""`paceline benchmark keras` refuses what cannot work before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

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


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    code, err = refused(tmp_path, capsys, *TINY, "--num-workers", "3", "--batch-size", "16")
    assert code == ExitCode.BAD_CONFIG
    assert "--batch-size 18" in err
    wording(err)


def test_variables_stand_behind_the_flags(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_WORKERS", "5")
    monkeypatch.setenv("BATCH_SIZE", "16")
    _, err = refused(tmp_path, capsys, *TINY)
    assert "5 workers" in err
    _, err = refused(tmp_path, capsys, *TINY, "--num-workers", "3")
    assert "3 workers" in err
    monkeypatch.setenv("EPOCHS", "many")
    code, err = refused(tmp_path, capsys, *TINY)
    assert code == ExitCode.BAD_CONFIG
    assert "'many'" in err


def test_without_images_the_error_explains_how_to_get_them(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setenv("PACELINE_DATA_FOLDER", str(tmp_path / "nothing"))
    code, err = refused(tmp_path, capsys)
    assert code == ExitCode.BAD_CONFIG
    assert "data fetch cifar10" in err
    assert "--data synthetic" in err
    wording(err)


def test_an_unreachable_ray_is_reported_at_once(tmp_path: Path, capsys: Captured) -> None:
    code, err = refused(tmp_path, capsys, *TINY, "--address", "127.0.0.1:1")
    assert code == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in err


def test_help_states_what_is_the_same_on_both_sides(capsys: Captured, wording: Wording) -> None:
    assert run(["benchmark", "keras", "--help"], Session()) == ExitCode.OK
    text = " ".join(capsys.readouterr().out.split())  # however wide the terminal is
    wording(text.partition(" --data ")[0])


def test_the_command_itself_never_imports_tensorflow_nor_keras() -> None:
    probe = (
        "import sys; from paceline.cli.main import run; from paceline.training.session import Session\n"
        "run(sys.argv[1:], Session())\n"
        "sys.exit(' '.join({'tensorflow', 'tf_keras', 'keras', 'torch', 'ray'} & set(sys.modules)) or 0)"
    )
    refused = ("benchmark", "keras", *TINY, "--address", "ray://127.0.0.1:1")
    for args in (("benchmark", "keras", "--help"), refused):
        result = subprocess.run(
            [sys.executable, "-c", probe, *args], capture_output=True, text=True, check=False
        )
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
