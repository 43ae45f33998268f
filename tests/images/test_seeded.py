"""Every seeded fault is found as a problem; the healthy image it was seeded into has none."""

import pytest
from tests.images.cases import TODAY
from tests.images.seeded import FAULTS, HEALTHY, SILENT, WARNED, Fault, project_of

from paceline.images.lint.check import apply_fixes, check
from paceline.images.lint.project import Level, Target

TARGET = Target(today=TODAY)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_image_has_no_problem_and_is_not_edited(name: str) -> None:
    project = project_of(HEALTHY[name])
    assert [one.id for one in check(project, TARGET) if one.level is Level.PROBLEM] == []
    assert apply_fixes(project, TARGET).project == project


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_a_seeded_fault_is_a_problem(fault: Fault) -> None:
    found = check(fault.project(), TARGET)
    assert fault.id in [one.id for one in found if one.level is Level.PROBLEM]


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_a_fix_leaves_no_new_problem_behind(fault: Fault) -> None:
    """What an edit was made for is gone, and no problem of another kind came in its place."""
    before = {one.id for one in check(fault.project(), TARGET) if one.level is Level.PROBLEM}
    done = apply_fixes(fault.project(), TARGET)
    left = {one.id for one in done.left if one.level is Level.PROBLEM}
    assert left <= before
    assert not any(one.is_automatic for one in done.left if one.id == fault.id)


@pytest.mark.parametrize("image", [pytest.param(one, id=one.name) for one in SILENT])
def test_what_works_is_not_reported(image: Fault) -> None:
    assert image.id not in [one.id for one in check(image.project(), TARGET)]


@pytest.mark.parametrize("image", [pytest.param(one, id=one.name) for one in WARNED])
def test_a_likely_mistake_is_a_warning(image: Fault) -> None:
    assert [one.level for one in check(image.project(), TARGET) if one.id == image.id] == [Level.WARNING]


IGNORED = "*\n!src\n!requirements.txt\n!pyproject.toml\ndata/**\n**/*.bin\n!data/keep\n"


@pytest.mark.parametrize(
    ("source", "is_reported"),
    [
        ("train.py", True),
        ("src/weights.bin", True),
        ("data/raw", True),
        ("./requirements.txt", False),
        ("src", False),
        ("src/deep/x.py", False),
        ("data", False),
        ("data/keep", False),
        ("*.bin", False),
        (".", False),
    ],
)
def test_a_source_that_dockerignore_excludes_is_a_problem(source: str, is_reported: bool) -> None:
    files = {**HEALTHY["cuda-devel"], ".dockerignore": IGNORED}
    files["Dockerfile"] = files["Dockerfile"].replace("COPY . .", f"COPY {source} /x/")
    found = [one for one in check(project_of(files), TARGET) if one.id == "excluded-from-context"]
    assert [one.level for one in found] == ([Level.PROBLEM] if is_reported else [])
