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
    assert [finding.id for finding in check(project, TARGET) if finding.level is Level.PROBLEM] == []
    assert apply_fixes(project, TARGET).project == project


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_seeded_fault_is_a_problem(fault: Fault) -> None:
    findings = check(fault.project(), TARGET)
    assert fault.id in [finding.id for finding in findings if finding.level is Level.PROBLEM]


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_fix_leaves_no_new_problem_behind(fault: Fault) -> None:
    """What an edit was made for is gone, and no problem of another kind came in its place."""
    before = {finding.id for finding in check(fault.project(), TARGET) if finding.level is Level.PROBLEM}
    fix_result = apply_fixes(fault.project(), TARGET)
    left = {finding.id for finding in fix_result.left if finding.level is Level.PROBLEM}
    assert left <= before
    assert not any(finding.is_automatic for finding in fix_result.left if finding.id == fault.id)


@pytest.mark.parametrize("image", [pytest.param(item, id=item.name) for item in SILENT])
def test_what_works_is_not_reported(image: Fault) -> None:
    assert image.id not in [finding.id for finding in check(image.project(), TARGET)]


@pytest.mark.parametrize("image", [pytest.param(item, id=item.name) for item in WARNED])
def test_a_likely_mistake_is_a_warning(image: Fault) -> None:
    assert [finding.level for finding in check(image.project(), TARGET) if finding.id == image.id] == [
        Level.WARNING
    ]


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
    findings = [
        finding for finding in check(project_of(files), TARGET) if finding.id == "excluded-from-context"
    ]
    assert [finding.level for finding in findings] == ([Level.PROBLEM] if is_reported else [])
