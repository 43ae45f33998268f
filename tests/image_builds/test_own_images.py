"""The project's own images pass its checks, and it can build them.

Docker Hub cannot be reached from tests, nor the index of torch: the image is built on the stand-in for
python-slim, with empty packages in place of torch and the others. That proves the Dockerfile, not torch.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import click
import pytest
import yaml
from tests.fixtures.containers.engine import BASE, EngineHere
from tests.fixtures.containers.stand_in_packages import make_needs, make_own_wheel
from tests.fixtures.processes.command import ROOT

from paceline.cli.main import cli
from paceline.coordinator.admin.launch import compose_config
from paceline.images.lint.check import apply_fixes
from paceline.images.lint.files import load_project
from paceline.images.lint.project import Kind, Target
from paceline.training.session import Session

OWN = {"cpu": Kind.CPU, "cuda": Kind.GPU, "ray": Kind.UNKNOWN}
IMAGE = "${PACELINE_IMAGE:-localhost/paceline:cpu}"


@pytest.mark.parametrize("name", sorted(OWN))
def test_there_is_nothing_to_fix_in_our_own_images(name: str) -> None:
    project = load_project(ROOT, Path("docker") / f"{name}.Dockerfile")
    fix_result = apply_fixes(project, Target(today=date(2026, 11, 15), kind=OWN[name]))
    assert fix_result.applied == ()
    assert fix_result.left == ()


def test_every_own_image_is_listed_here() -> None:
    assert {path.name.split(".")[0] for path in (ROOT / "docker").glob("*.Dockerfile")} == set(OWN)


def services() -> dict[str, dict[str, object]]:
    result = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    assert isinstance(result, dict)
    return result


def test_the_compose_files_coordinators_are_those_that_the_product_writes() -> None:
    made = compose_config(Path("docker"), 3, IMAGE, Path("docker/pki"))["services"]
    assert isinstance(made, dict)
    assert {name: services()[name] for name in made} == made


def test_the_compose_file_has_all_parts_and_no_secret() -> None:
    watching = {"metrics", "prometheus", "grafana"}
    assert set(services()) == {"node-1", "node-2", "node-3", "train", "workers", *watching}
    text = (ROOT / "docker" / "compose.yaml").read_text()
    assert "PASSWORD:" not in text
    for service in services().values():
        assert service["cap_drop"] == ["ALL"]
        for port in service.get("ports", []):  # type: ignore[attr-defined]
            assert str(port).startswith("127.0.0.1:"), "nothing is opened to other machines"


def test_a_run_is_not_restarted_in_a_folder_that_holds_one() -> None:
    assert services()["train"]["restart"] == "no", "it would be refused for ever"


@pytest.mark.parametrize("name", ["node-1", "train", "workers", "metrics"])
def test_commands_of_the_compose_file_are_ones_that_paceline_reads(name: str) -> None:
    words = [str(word) for word in services()[name]["command"]]  # type: ignore[attr-defined]
    command: click.Command = cli
    context = click.Context(cli, obj=Session())
    while isinstance(command, click.Group):
        result = command.get_command(context, words.pop(0))
        assert result is not None
        command = result
    command.make_context(name, words, obj=Session())


@pytest.mark.soak  # torch is packed into a layer
def test_the_cpu_image_is_built_by_the_product_itself(here: EngineHere, tmp_path: Path) -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    make_needs(tmp_path / "base" / "wheels", needs, {"torch": "2.13.0"})
    context = tmp_path / "context"
    make_own_wheel(context / "dist", ROOT)
    shutil.copytree(ROOT / "docker", context / "docker")
    shutil.copy(ROOT / "constraints.txt", context)
    message = f"FROM {BASE}\nCOPY wheels /wheels\n"
    (tmp_path / "base" / "Dockerfile").write_text(message)
    here.podman("build", "--quiet", "--tag", "localhost/base-of-ours:1", str(tmp_path / "base"))

    words = ["image", "build", str(context), "--dockerfile", str(context / "docker" / "cpu.Dockerfile")]
    words += [
        "--target",
        "cpu",
        "--build-arg",
        "BASE=localhost/base-of-ours:1",
        "--tag",
        "localhost/paceline:cpu",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "paceline", *words, "--engine", "podman", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    built = json.loads(result.stdout)["data"]
    assert (built["fixes"], len(built["attempts"])) == ([], 1)
    run = here.podman("run", "--rm", "--network", "none", "localhost/paceline:cpu", "--version")
    assert run.stdout.startswith("paceline ")
    user = here.podman(
        "run", "--rm", "--network", "none", "--entrypoint", "id", "localhost/paceline:cpu", "-u"
    )
    assert user.stdout.strip() == "1000"
