"""Every fault between a Dockerfile, its context and its start is found; what is sound has no problem."""

from pathlib import Path

import pytest
from tests.images.cases import TODAY
from tests.images.contexts import FAULTY, SOUND

from paceline.images.lint.check import apply_fixes, check
from paceline.images.lint.files import load_project
from paceline.images.lint.project import Level, Project, Target

TARGET = Target(today=TODAY)


def _project(folder: Path, files: dict[str, str]) -> Project:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return load_project(folder)


def _problems(project: Project) -> list[str]:
    return [finding.id for finding in check(project, TARGET) if finding.level is Level.PROBLEM]


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_context_is_a_problem(name: str, tmp_path: Path) -> None:
    finding, files = FAULTY[name]
    assert finding in _problems(_project(tmp_path, files))


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_context_has_no_problem(name: str, tmp_path: Path) -> None:
    project = _project(tmp_path, SOUND[name])
    assert _problems(project) == []
    assert apply_fixes(project, TARGET).project == project


def test_a_lone_dockerfile_reveals_nothing_about_the_files_next_to_it(tmp_path: Path) -> None:
    docker = (
        "FROM python:3.11-slim\nCOPY src ./src\nCOPY requirements/base.txt .\nRUN pip install -r base.txt\n"
        'CMD ["python", "src/train.py", "--config", "configs/a.yaml"]\n'
    )
    assert _problems(_project(tmp_path, {"Dockerfile": docker})) == []


def test_a_script_that_may_not_be_executed_is_a_problem(tmp_path: Path) -> None:
    docker = 'FROM python:3.11-slim\nCOPY start.sh /start.sh\nENTRYPOINT ["/start.sh"]\n'
    files = {"Dockerfile": docker, "start.sh": '#!/bin/sh\nexec "$@"\n'}
    project = _project(tmp_path, files)
    assert _problems(project) == ["script-not-run"]
    (tmp_path / "start.sh").chmod(0o755)
    assert _problems(load_project(tmp_path)) == []
