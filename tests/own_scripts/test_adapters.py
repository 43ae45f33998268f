"""paceline.hf, paceline.lightning and paceline.accelerate against the packages, and with several workers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import ROOT
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher

FIXTURES = ROOT / "tests" / "fixtures" / "adapters"
PACKAGES = {"hf": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


def need(adapter: str) -> None:
    package = PACKAGES[adapter]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; install it with:  pip install 'paceline[{adapter}]'")


@pytest.mark.parametrize(
    ("adapter", "argument"), [("hf", ""), ("lightning", ""), ("lightning", "manual"), ("accelerate", "")]
)
def test_one_worker_does_what_the_package_does(adapter: str, argument: str, tmp_path: Path) -> None:
    """Callbacks, steps, rates, norms and bits are equal, with accumulation and clipping."""
    need(adapter)
    done = subprocess.run(
        [sys.executable, str(FIXTURES / f"twice_{adapter}.py"), argument],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    plain, ours = json.loads(line.removeprefix("RESULT "))
    assert ours == plain


@pytest.mark.soak
@pytest.mark.parametrize("flags", ["--mode ssgd", "--mode asgd", "--mode localsgd --sync-every 4"])
@pytest.mark.parametrize(
    ("adapter", "arguments"),
    [("hf", ("--epochs", "1", "--reviews", "128")), ("lightning", ("--epochs", "1", "--digits", "256"))],
)
def test_workers_share_the_samples_of_an_example(
    adapter: str, arguments: tuple[str, ...], flags: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    need(adapter)
    script = str(ROOT / "examples" / adapter / "train.py")
    run = (*flags.split(), "--num-workers", "2", "--run-dir", "run", script, *arguments)
    done = warm_paceline(launcher, "run", *run, folder=tmp_path)
    assert done.code == 0, done.err
    assert "steps" in done.err
    verified = warm_paceline(launcher, "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out
