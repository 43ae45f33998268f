"""docker/compose.yaml runs: three coordinators elect a leader, and a run trains, in containers.

Prometheus and Grafana come from a registry: they are not run here.
"""

import os
import shutil
import site
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import BASE, EngineHere
from tests.fixtures.processes.command import ROOT, paceline
from tests.fixtures.waiting import until

NODES = ("node-1", "node-2", "node-3")
# The stand-in base with paceline and its packages from this machine, by mounts.
IMAGE = f"""FROM {BASE}
RUN useradd -u 1000 paceline && install -d -o 1000 -g 100 /workspace /data /runs \\
 && printf '#!/bin/sh\\nexec python3 -m paceline "$@"\\n' > /usr/local/bin/paceline \\
 && chmod 755 /usr/local/bin/paceline
ENV PYTHONPATH=/src:/site
WORKDIR /workspace
USER 1000
"""


def _program() -> str | None:
    own = ROOT / ".venv-tools" / "bin" / "podman-compose"
    return str(own) if own.exists() else shutil.which("podman-compose")


@pytest.mark.soak
@pytest.mark.skipif(_program() is None, reason="NO podman-compose HERE: pip install podman-compose")
def test_coordinators_and_workers_run_in_containers(here: EngineHere, tmp_path: Path) -> None:
    folder = tmp_path / "docker"
    shutil.copytree(ROOT / "docker", folder)
    named = [word for node in NODES for word in ("--node", f"{node[-1]}={node}")]
    assert paceline("coordinator", "init-pki", "--out", str(folder / "pki"), *named).code == 0
    for file in (folder / "pki").iterdir():
        os.chown(file, 1000, 100)
    (packages,) = (path for path in site.getsitepackages() if Path(path, "torch").is_dir())
    mounts = f'volumes: ["{packages}:/site:ro", "{ROOT / "src"}:/src:ro"]\n'
    limits = "    ulimits: {nofile: 4096, nproc: 4096}\n"
    more = "services:\n" + "".join(f"  {name}:\n    {mounts}{limits}" for name in (*NODES, "workers"))
    (folder / "more.yaml").write_text(more)
    here.podman("build", "--quiet", "--tag", "localhost/paceline:cpu", "-f", "-", said=IMAGE)
    try:
        _compose(folder, "up", "-d", *NODES, "workers")
        until(lambda: any("role=leader" in _log(here, node) for node in NODES), "there is a leader")
        until(lambda: "step " in _log(here, "workers"), "the run trains")
    finally:
        _compose(folder, "down", "-v")


def _compose(folder: Path, *words: str) -> None:
    program = _program()
    assert program is not None
    result = subprocess.run(
        [program, "-f", "compose.yaml", "-f", "more.yaml", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def _log(here: EngineHere, name: str) -> str:
    completed = here.podman("logs", f"paceline_{name}_1", check=False)
    return completed.stdout + completed.stderr
