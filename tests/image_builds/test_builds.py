"""Known failing builds really fail, by their known signature, and succeed once fixed."""

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import EngineHere
from tests.image_builds.builds import FAILING, Failing

from paceline.images.build.attempts import BuildRequest, BuildResult, build_image
from paceline.images.build.engine import find_engine
from paceline.images.build.engine_cli import BuildOptions
from paceline.images.lint.check import findings_from_log
from paceline.images.lint.project import Project, Source, Target

TARGET = Target(today=date(2026, 11, 15))


def built(folder: Path, tag: str, *, write: bool = False) -> BuildResult:
    options = BuildOptions(context=folder, dockerfile=folder, tags=(tag,))
    request = BuildRequest(
        folder=folder, dockerfile=None, requirements=(), target=TARGET, options=options, write=write
    )
    return build_image(find_engine("podman"), request, lambda _: None)


def written(folder: Path, case: Failing) -> None:
    (folder / "Dockerfile").write_text(case.dockerfile)
    (folder / "requirements.txt").write_text(case.requirements)


@pytest.mark.parametrize("case", FAILING, ids=lambda case: case.name)
def test_what_fails_for_a_known_reason_is_fixed_and_then_built(
    case: Failing, here: EngineHere, project: Path
) -> None:
    written(project, case)
    name = f"localhost/{case.name}"

    alone = here.podman("build", "--tag", f"{name}:broken", str(project), check=False)
    log = alone.stdout + alone.stderr
    assert alone.returncode != 0, "it was to fail as it is"
    assert re.search(case.signature, log), log
    text = Project(
        files=(Source("Dockerfile", case.dockerfile), Source("requirements.txt", case.requirements))
    )
    assert case.pattern in {finding.pattern for finding in findings_from_log(log, text, TARGET)}, log

    build_result = built(project, f"{name}:fixed")
    assert build_result.ok, build_result.attempts[-1].log
    assert case.pattern in {fix.finding.pattern for fix in build_result.fixes}
    assert (project / "Dockerfile").read_text() == case.dockerfile, "the user's files stay as they are"
    assert (project / "requirements.txt").read_text() == case.requirements
    here.podman("run", "--rm", "--network", "none", f"{name}:fixed", "python", "-c", case.works)


@pytest.mark.usefixtures("here")
def test_what_cannot_be_fixed_is_tried_once_and_explained(project: Path) -> None:
    (project / "Dockerfile").write_text("FROM python:3.11-slim-bookworm\nRUN exit 3\n")
    build_result = built(project, "localhost/hopeless:1")
    assert not build_result.ok
    assert len(build_result.attempts) == 1, "a second attempt would have changed nothing"
    # podman counts the label of the revision as a step.
    assert build_result.attempts[0].failed_at == "in step 2 of 3: RUN exit 3"
    assert build_result.stopped


@pytest.mark.usefixtures("here")
def test_the_users_files_are_written_only_on_request(project: Path) -> None:
    (case,) = (case for case in FAILING if case.name == "torch-and-its-sisters")
    written(project, case)
    build_result = built(project, "localhost/written:1", write=True)
    assert build_result.ok
    assert (project / "requirements.txt").read_text() == "torch==2.6.0\ntorchvision==0.21.0\n"
    again = built(project, "localhost/written:1", write=True)
    assert again.ok
    assert not again.fixes, "what was fixed stays fixed"
    assert not again.written


def test_nothing_of_a_build_is_left(here: EngineHere) -> None:
    assert here.podman("ps", "--all", "--external", "--quiet").stdout.split() == []
    mounted = subprocess.run(["findmnt", "-rno", "TARGET"], capture_output=True, text=True, check=True).stdout
    assert f"{here.folder}/storage/overlay/" not in mounted
