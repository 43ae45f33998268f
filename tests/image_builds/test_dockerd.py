"""Fix, build, probe and push with docker, on a daemon of its own where one can run."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.fixtures.containers.engine import BASE, registry_at, unmount_below
from tests.fixtures.containers.stand_in_base import make_base
from tests.fixtures.containers.stand_in_packages import make_wheels
from tests.fixtures.waiting import until
from tests.image_builds.builds import FAILING

from paceline.images.build.attempts import BuildRequest, build_image
from paceline.images.build.engine import find_engine
from paceline.images.build.engine_cli import BuildOptions
from paceline.images.lint.project import Target
from paceline.images.probe.container import TestRequest, run_image_test
from paceline.images.push.publish import PushRequest, push_image
from paceline.images.push.references import RegistryDestination

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("dockerd") is None or os.geteuid() != 0 or shutil.which("docker-registry") is None,
        reason="NO dockerd CAN RUN HERE: apt-get install docker.io docker-registry, as root",
    ),
]


@contextmanager
def dockerd(folder: Path) -> Iterator[str]:
    socket = f"unix://{folder}/docker.sock"
    words = ["dockerd", "--host", socket, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    words += ["--pidfile", f"{folder}/pid", "--iptables=false", "--ip6tables=false", "--bridge=none"]
    words += ["--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    client = ["docker", "--host", socket, "version"]
    try:
        until(
            lambda: process.poll() is not None or subprocess.run(client, capture_output=True).returncode == 0,
            "dockerd answers",
        )
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield socket
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        unmount_below(folder)  # it leaves its network's place mounted


def test_docker_builds_inspects_and_pushes_as_podman_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = (case for case in FAILING if case.name == "tokenizers")
    project = tmp_path / "project"
    project.mkdir()
    (project / "Dockerfile").write_text(case.dockerfile)
    (project / "requirements.txt").write_text(case.requirements)
    make_base(tmp_path / "base.tar", make_wheels(tmp_path / "wheels"), {})
    # A short name: a socket's may have 107 signs.
    with (
        TemporaryDirectory(prefix="dockerd-") as home,
        dockerd(Path(home)) as socket,
        registry_at(tmp_path / "registry") as address,
    ):
        monkeypatch.setenv("DOCKER_HOST", socket)
        subprocess.run(
            ["docker", "import", str(tmp_path / "base.tar"), BASE], check=True, capture_output=True
        )
        engine = find_engine("docker")
        options = BuildOptions(context=project, dockerfile=project, tags=("fixed:1",), network="host")
        request = BuildRequest(
            folder=project,
            dockerfile=None,
            requirements=(),
            target=Target(today=date(2026, 11, 15)),
            options=options,
        )
        reported: list[str] = []
        built = build_image(engine, request, reported.append)
        assert built.ok, built.attempts[-1].log
        assert [fix.finding.pattern for fix in built.fixes] == [case.pattern]
        assert any(line.startswith("step 2 of 4") for line in reported), reported
        names = ("transformers", "tokenizers")
        tested = run_image_test(engine, TestRequest(image="fixed:1", level="quick", requirements=names))
        assert tested.ok
        place = RegistryDestination(host=address, repository="team/x")
        push_request = PushRequest(image="fixed:1", places=(place,), folder=tmp_path, tags=("1", "2"))
        pushed = push_image(engine, push_request, reported.append)
        assert [push.verified_by for push in pushed.sent] == [("registry",)] * 2
