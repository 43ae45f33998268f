"""examples/cnn: one worker computes what the plain script computes."""

import os
import subprocess
import sys
from pathlib import Path

from docs.pages import ROOT
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher

FOLDER = ROOT / "examples" / "cnn"
SMALL = ("--epochs", "2", "--images", "256", "--in-order")


def test_the_plain_script_and_one_worker_end_with_the_same_model(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plain = _digest(_python("plain.py", tmp_path))
    assert _digest(_python("train.py", tmp_path)) == plain
    done = warm_paceline(
        launcher, "run", "--mode", "single", str(FOLDER / "train.py"), *SMALL, folder=tmp_path
    )
    assert done.code == 0, done.err
    assert _digest(done.err) == plain


def _python(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), *SMALL],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _digest(output: str) -> str:
    (line,) = (line for line in output.splitlines() if "sha256" in line)
    return line.rpartition(" ")[2]
