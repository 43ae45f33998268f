"""The scripts of examples/python run as they are, are listed in examples/README.md, and are short."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT
from tests.fixtures.processes.warm_helpers import warm_helpers

FOLDER = ROOT / "examples" / "python"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
PRINTS = {
    "compare.py": "report: ",
    "own_strategy.py": "own_strategy:SignSgd",
    "own_task.py": "test_accuracy",
    "resume_after_kill.py": "resumed: 200 steps",
    "train.py": "parameters",
}
# As `paceline` of warm_helpers.py: helpers of the script are forked from a process that has torch.
WARM = """
import runpy, sys, types
import paceline.launchers.json_subprocess, paceline.launchers.local
for module in (paceline.launchers.json_subprocess, paceline.launchers.local):
    module.sys = types.SimpleNamespace(executable=sys.argv[2])
sys.path.insert(0, "")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_in_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "python"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("runs", "comparison", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", WARM, name, warm_helpers().python],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout


def test_every_script_is_listed_and_at_most_about_sixty_lines_long() -> None:
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(SCRIPTS) == set(PRINTS)
    for name in SCRIPTS:
        assert f"[{name}](python/{name})" in readme
        assert len((FOLDER / name).read_text(encoding="utf-8").splitlines()) <= 65
