"""docker/compose.yaml runs: three coordinator nodes, a run and its workers, each in a container of its own.

The leader's container and a worker's are killed, and the run continues.

Prometheus and Grafana come from a registry: they are not run here.
"""

import json
import os
import re
import shutil
import site
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.fixtures.containers.engine import BASE, EngineHere
from tests.fixtures.processes.command import ROOT, paceline
from tests.fixtures.waiting import until

NAME = "localhost/paceline:cpu"
VERIFY = ("paceline", "verify", "/runs/compose")
NODES = ("node-1", "node-2", "node-3")
LOST = "paceline_workers_2"
LIST = ("paceline", "workers", "list", "/runs/compose", "--json")
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


def without_end(compose: str) -> str:
    """The file's own command of the run, as YAML, with more steps than the test waits for."""
    command = yaml.safe_load(compose)["services"]["train"]["command"]
    command[command.index("--steps") + 1] = "1000000"
    return json.dumps([*command, "--pace", "20ms"])


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
    volumes = [f"{packages}:/site:ro", f"{ROOT / 'src'}:/src:ro"]
    mounted = [word for volume in volumes for word in ("-v", volume)]
    mounts = f"volumes: {json.dumps(volumes)}\n"
    limits = "    ulimits: {nofile: 4096, nproc: 4096}\n"
    more = "services:\n" + "".join(
        f"  {name}:\n    {mounts}{limits}" for name in (*NODES, "workers", "train")
    )
    more += f"    command: {without_end((folder / 'compose.yaml').read_text())}\n"  # of the last one
    (folder / "more.yaml").write_text(more)
    here.podman("build", "--quiet", "--tag", NAME, "-f", "-", said=IMAGE)
    try:
        _compose(folder, "up", "-d", *NODES, "train", "workers")
        until(lambda: any("role=leader" in _log(here, node) for node in NODES), "there is a leader")
        until(lambda: _workers(here) == {"worker-0", "worker-1"}, "both workers train")
        leader = _leader(here)
        here.podman("kill", "--signal", "KILL", f"paceline_{leader}_1")
        until(lambda: _leader(here, without=leader) != "", "another node leads")
        here.podman("kill", "--signal", "KILL", LOST)
        until(lambda: len(_workers(here)) == 1, "the new leader has recorded the loss")
        reached = _steps(here)
        until(lambda: _steps(here) > reached, "the other worker continues without both")
        here.podman("start", LOST)
        until(lambda: len(_workers(here)) == 2, "the worker is replaced")
        _inside(here, "stop", "/runs/compose")
        here.podman("run", "--rm", *mounted, "-v", "paceline_runs:/runs", NAME, *VERIFY)  # exit code 0
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


def _inside(here: EngineHere, *words: str) -> str:
    """`paceline WORDS` in the container of the run."""
    return here.podman("exec", "paceline_train_1", "paceline", *words).stdout


def _workers(here: EngineHere) -> set[str]:
    """Those that train together."""
    if not _log(here, "train"):
        return set()
    listed = here.podman("exec", "paceline_train_1", *LIST, check=False)
    rows = json.loads(listed.stdout)["data"]["workers"] if listed.returncode == 0 else []
    return {row["worker"] for row in rows if row["rank"] is not None}


def _steps(here: EngineHere) -> int:
    return max(map(int, re.findall(r"step (\d+)/", _log(here, "train"))), default=0)


def _leader(here: EngineHere, without: str = "") -> str:
    """The node whose newest state is that of a leader; of two, that of the later term."""
    terms = {}
    for node in NODES:
        states = re.findall(r"term=(\d+) role=(\S+)", _log(here, node))
        if states and states[-1][1] == "leader" and node != without:
            terms[node] = int(states[-1][0])
    return max(terms, key=terms.__getitem__, default="")


def _log(here: EngineHere, name: str) -> str:
    completed = here.podman("logs", f"paceline_{name}_1", check=False)
    return completed.stdout + completed.stderr
