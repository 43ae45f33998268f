"""Do builds that are known to fail really fail, by the sign they are known by, and work once mended?"""

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest
from tests.fixtures.engine import EngineHere
from tests.image_builds.builds import FAILING, Failing

from paceline.images.build.attempts import BuildRequest, BuildResult, build_image
from paceline.images.build.engine import find_engine
from paceline.images.build.engine_cli import BuildOptions
from paceline.images.lint.check import findings_from_log
from paceline.images.lint.project import Project, Source, Target

TARGET = Target(today=date(2026, 11, 15))


def built(folder: Path, tag: str, *, write: bool = False) -> BuildResult:
    wish = BuildOptions(context=folder, dockerfile=folder, tags=(tag,))
    request = BuildRequest(
        folder=folder, dockerfile=None, requirements=(), target=TARGET, wish=wish, write=write
    )
    return build_image(find_engine("podman"), request, lambda _: None)


def written(folder: Path, case: Failing) -> None:
    (folder / "Dockerfile").write_text(case.dockerfile)
    (folder / "requirements.txt").write_text(case.requirements)


@pytest.mark.parametrize("case", FAILING, ids=lambda case: case.name)
def test_what_fails_for_a_known_reason_is_mended_and_then_built(
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
    assert case.pattern in {one.pattern for one in findings_from_log(log, text, TARGET)}, log

    done = built(project, f"{name}:mended")
    assert done.ok, done.attempts[-1].log
    assert case.pattern in {fix.finding.pattern for fix in done.fixes}
    assert (project / "Dockerfile").read_text() == case.dockerfile, "the user's files stay as they are"
    assert (project / "requirements.txt").read_text() == case.requirements
    here.podman("run", "--rm", "--network", "none", f"{name}:mended", "python", "-c", case.works)


@pytest.mark.usefixtures("here")
def test_what_nobody_can_mend_is_tried_once_and_explained(project: Path) -> None:
    (project / "Dockerfile").write_text("FROM python:3.11-slim-bookworm\nRUN exit 3\n")
    done = built(project, "localhost/hopeless:1")
    assert not done.ok
    assert len(done.attempts) == 1, "a second attempt would have changed nothing"
    assert done.attempts[0].failed_at == "in step 2 of 2: RUN exit 3"
    assert done.stopped == "nothing more is known that could be mended"


@pytest.mark.usefixtures("here")
def test_only_where_it_is_said_the_users_files_are_written(project: Path) -> None:
    (case,) = (one for one in FAILING if one.name == "torch-and-its-sisters")
    written(project, case)
    done = built(project, "localhost/written:1", write=True)
    assert done.ok
    assert (project / "requirements.txt").read_text() == "torch==2.6.0\ntorchvision==0.21.0\n"
    again = built(project, "localhost/written:1", write=True)
    assert again.ok
    assert not again.fixes, "what was mended stays mended"
    assert not again.written


def test_nothing_of_a_build_is_left(here: EngineHere) -> None:
    assert here.podman("ps", "--all", "--external", "--quiet").stdout.split() == []
    mounted = subprocess.run(["findmnt", "-rno", "TARGET"], capture_output=True, text=True, check=True).stdout
    assert f"{here.folder}/storage/overlay/" not in mounted
