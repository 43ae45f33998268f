"""Every seeded fault is found as a problem; the healthy image it was seeded into has none."""

import pytest
from tests.images.cases import TODAY
from tests.images.seeded import FAULTS, HEALTHY, Fault, project_of

from paceline.images.api import check, mend
from paceline.images.project import Level, Target

TARGET = Target(today=TODAY)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_image_has_no_problem_and_is_not_edited(name: str) -> None:
    project = project_of(HEALTHY[name])
    assert [one.id for one in check(project, TARGET) if one.level is Level.PROBLEM] == []
    assert mend(project, TARGET).project == project


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_a_seeded_fault_is_a_problem(fault: Fault) -> None:
    found = check(fault.project(), TARGET)
    assert fault.id in [one.id for one in found if one.level is Level.PROBLEM]


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_a_fix_leaves_no_new_problem_behind(fault: Fault) -> None:
    """What an edit was made for is gone, and no problem of another kind came in its place."""
    before = {one.id for one in check(fault.project(), TARGET) if one.level is Level.PROBLEM}
    done = mend(fault.project(), TARGET)
    left = {one.id for one in done.left if one.level is Level.PROBLEM}
    assert left <= before
    assert not any(one.is_automatic for one in done.left if one.id == fault.id)
