"""Healthy projects, and the lines beside a fix, stay byte for byte."""

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.images.cases import TODAY, Case, cases, healthy, project_in, project_of

from paceline.core.errors import ConfigError
from paceline.images.lint.check import apply_findings, apply_fixes, check
from paceline.images.lint.dockerfile import read_dockerfile
from paceline.images.lint.project import Edit, Level, Project, Target, lines_of

TARGET = Target(today=TODAY)
FIXED = [case for case in cases() if case.is_fixed]
# Its fix exchanges two steps, which only happens where nothing stands between them.
DECORATED = [case for case in FIXED if case.name != "layer-order"]


@pytest.mark.parametrize("folder", [pytest.param(path, id=path.name) for path in healthy()])
def test_a_healthy_image_is_not_edited_and_has_no_problem(folder: Path) -> None:
    project = project_in(folder)
    assert apply_fixes(project, TARGET).project == project
    assert [finding for finding in check(project, TARGET) if finding.level is Level.PROBLEM] == []


def test_there_are_at_least_thirty_healthy_images() -> None:
    assert len(healthy()) >= 30


@pytest.mark.parametrize("broken", [pytest.param(case, id=case.name) for case in FIXED])
def test_lines_outside_an_edit_stay_byte_for_byte(broken: Case) -> None:
    project = broken.project
    for finding in apply_fixes(project, broken.target).applied:
        after = apply_findings(project, [finding])
        for path in {edit.path for edit in finding.edits}:
            _same_outside(project, after, path, [e for e in finding.edits if e.path == path])
        project = after


def _same_outside(before: Project, after: Project, path: str, edits: list[Edit]) -> None:
    old = lines_of(before.text(path)) if before.has(path) else []
    touched = {line for edit in edits for line in range(edit.first, edit.last + 1)}
    for mark, first, last, _, _ in difflib.SequenceMatcher(a=old, b=lines_of(after.text(path))).get_opcodes():
        if mark in ("replace", "delete"):
            assert set(range(first + 1, last + 1)) <= touched


noise = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r\\`"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DECORATED), st.lists(noise, min_size=1, max_size=6), st.randoms(), st.booleans())
def test_comments_and_line_ends_around_a_fix_survive_it(
    broken: Case, said: list[str], chance: object, windows: bool
) -> None:
    """Comments of any text between the steps: fixed with them is the same as fixed without, plus them."""
    docker = broken.project.text("Dockerfile")
    plain = apply_fixes(broken.project, broken.target).project.text("Dockerfile")
    decorated = _decorated(docker, said, chance)
    if windows:
        plain, decorated = plain.replace("\n", "\r\n"), decorated.replace("\n", "\r\n")
    project = broken.project.with_text("Dockerfile", decorated)
    after = apply_fixes(project, broken.target).project.text("Dockerfile")
    assert [line for line in lines_of(after) if MARK in line] == [
        line for line in lines_of(decorated) if MARK in line
    ]
    assert "".join(line for line in lines_of(after) if MARK not in line) == plain


MARK = "# remark:"


def _decorated(docker: str, messages: list[str], chance: object) -> str:
    lines = lines_of(docker)
    stages = read_dockerfile("Dockerfile", docker).stages
    starts = [step.first for stage in stages for step in (stage.origin, *stage.instructions)]
    for text in messages:
        at = chance.choice(starts)  # type: ignore[attr-defined]  # hypothesis's own Random
        lines[at - 1] = f"{MARK} {text}\n{lines[at - 1]}"
    return "".join(lines)


PIECES = st.sampled_from(
    [
        "FROM nvidia/cuda:11.8.0-runtime-ubuntu22.04\n",
        "FROM python:3.13-slim AS a\n",
        "FROM a\n",
        "FROM ${X:-debian:12}\n",
        "ARG X\n",
        "ENV PATH=/opt/venv/bin:$PATH A='b c'\n",
        "RUN pip install torch==2.2.2 'numpy' \"flash-attn\" opencv-python && (cd /x; pip install .)\n",
        "RUN apt-get update \\\n  # why\n && apt-get install -y git python3-pip \\\n && true\n",
        "RUN pip3 install -r requirements.txt\n",
        "RUN <<EOF\npip install torch==2.6.0+cpu\nEOF\n",
        'RUN ["pip", "install", "torch"]\n',
        "COPY . .\n",
        "# a remark\n",
        "\n",
        "USER 1000\n",
        "RUN python -m pip install $(cat list) `echo x` torch>=2 || true\n",
    ]
)


def test_two_stages_that_contradict_each_other_are_left_to_a_person() -> None:
    docker = (
        "FROM python:3.11-slim AS a\nRUN pip install torch==2.2.2\nRUN pip install -r requirements.txt\n"
        "FROM python:3.11-slim\nRUN pip install torch==2.6.0\nRUN pip install -r requirements.txt\n"
    )
    project = project_of(docker, requirements_txt="torchvision==0.17.2\nnumpy<2\n")
    fix_result = apply_fixes(project, TARGET)
    assert fix_result.project == project
    assert "torch-trio" in [finding.id for finding in fix_result.left]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PIECES, min_size=1, max_size=9),
    st.sampled_from(["torch==2.6.0\ntorchvision==0.20.1", "", "-r x\n"]),
)
def test_fixing_any_dockerfile_ends_and_a_second_fix_changes_nothing(
    pieces: list[str], requirements: str
) -> None:
    project = project_of("".join(pieces), requirements_txt=requirements)
    try:
        once = apply_fixes(project, TARGET)
    except ConfigError:
        return  # a text that no build would read, such as one without FROM
    again = apply_fixes(once.project, TARGET)
    assert again.applied == ()
    assert again.project == once.project
