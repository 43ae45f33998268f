"""Every known conflict is found, fixed by a minimal change, and recognised in a build log."""

import re

import pytest
from tests.fixtures.wording import Wording
from tests.images.cases import TODAY, Case, case, cases, everything, project_of
from tests.images.contexts import FAULTY
from tests.images.seeded import FAULTS, WARNED
from tests.images.test_steps_that_fail import BROKEN, LIKELY

from paceline.core.redaction import redact
from paceline.images.lint.build_log import external_cause
from paceline.images.lint.check import (
    apply_findings,
    apply_fixes,
    changed_files,
    check,
    findings_from_log,
    redacted_diff,
    unified_diff,
)
from paceline.images.lint.project import Finding, Kind, Level, Project, Target
from paceline.images.lint.rules import PATTERNS

ALL = [pytest.param(item, id=item.name) for item in cases()]
LOGGED = [pytest.param(item, id=item.name) for item in cases() if "log" in item.said]
TARGET = Target(today=TODAY)


def ids(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.id for finding in findings]


def fixed_text(project: Project) -> str:
    return everything(apply_fixes(project, TARGET).project)


def test_all_patterns_have_a_rule_and_at_least_one_broken_image() -> None:
    numbers = {pattern.number for pattern in PATTERNS}
    assert numbers == set(range(1, max(numbers) + 1))
    assert len({pattern.id for pattern in PATTERNS}) == len(PATTERNS)
    tested = {item.finding for item in cases()} | {item.id for item in (*FAULTS, *WARNED)}
    tested |= {finding for finding, _ in (*BROKEN, *LIKELY)} | {finding for finding, _ in FAULTY.values()}
    assert tested >= {pattern.id for pattern in PATTERNS} - {"runs-as-root", "excluded-from-context"}


@pytest.mark.parametrize("broken", ALL)
def test_a_conflict_is_found_with_its_place_its_reason_and_its_evidence(broken: Case) -> None:
    findings = [finding for finding in check(broken.project, broken.target) if finding.id == broken.finding]
    assert findings, f"nothing says {broken.finding}"
    first = findings[0]
    assert first.pattern == broken.said["pattern"]
    assert 1 <= first.line <= len(broken.project.text(first.path).splitlines())
    assert first.why
    assert first.evidence
    assert first.advice


@pytest.mark.parametrize("broken", ALL)
def test_a_conflict_is_fixed_and_a_second_fix_changes_nothing(broken: Case) -> None:
    fix_result = apply_fixes(broken.project, broken.target)
    if not broken.is_fixed:
        assert fix_result.project == broken.project
        return
    text = everything(fix_result.project)
    assert broken.said["has"] in text
    assert broken.said.get("hasnt", "a text that no file has") not in text
    assert broken.finding not in ids(tuple(finding for finding in fix_result.left if finding.is_automatic))
    again = apply_fixes(fix_result.project, broken.target)
    assert again.applied == ()
    assert again.project == fix_result.project
    assert again.project.fingerprint == fix_result.project.fingerprint != broken.project.fingerprint


@pytest.mark.parametrize("broken", LOGGED)
def test_the_log_of_its_build_names_the_same_conflict_and_the_same_change(broken: Case) -> None:
    findings = findings_from_log(broken.said["log"], broken.project, broken.target)
    assert broken.finding in ids(findings)
    assert all(finding.log_line and finding.log_line in broken.said["log"] for finding in findings)
    if broken.is_fixed:
        assert broken.said["has"] in everything(apply_findings(broken.project, findings))


def test_a_log_of_a_successful_build_has_no_findings() -> None:
    log = "STEP 1/3: FROM python:3.11-slim\nCollecting six\nSuccessfully installed six-1.16.0\nCOMMIT\n"
    assert findings_from_log(log, case("torch-trio").project, TARGET) == ()
    assert external_cause(log) is None


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("dial tcp: lookup registry-1.docker.io: no such host", "unreachable"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED", "certificate"),
        ("write /layer: No space left on device", "disk"),
    ],
)
def test_failures_of_the_environment_are_distinguished_from_those_of_the_project(
    line: str, word: str
) -> None:
    assert word in (external_cause(line) or "")
    assert findings_from_log(line, case("torch-trio").project, TARGET) == ()


def test_a_pinned_torch_is_never_changed_unless_the_user_agreed() -> None:
    """Whatever else is fixed, `torch==` stays as it was written, in every broken image."""
    for broken in cases():
        before = re.findall(r"\btorch==\S+", everything(broken.project))
        after = re.findall(r"\btorch==\S+", everything(apply_fixes(broken.project, broken.target).project))
        assert before == after, broken.name


def test_a_cpu_build_in_a_pin_is_changed_for_gpus_only_when_the_user_agrees() -> None:
    docker = (
        "FROM python:3.11-slim\n"
        "RUN pip install torch==2.6.0+cpu \\\n    --index-url https://download.pytorch.org/whl/cpu\n"
    )
    project, target = project_of(docker), Target(today=TODAY, kind=Kind.GPU)
    finding = next(finding for finding in check(project, target) if finding.id == "wrong-build")
    assert finding.asks
    assert apply_fixes(project, target).project == project
    agreed = everything(apply_fixes(project, target, agreed=True).project)
    assert "torch==2.6.0+cu124" in agreed
    assert "whl/cu124" in agreed


def test_versions_that_are_not_in_the_matrix_are_noted_and_stop_nothing(wording: Wording) -> None:
    docker = (
        "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\nRUN apt-get update && apt-get install -y python3-pip\n"
        "RUN pip install torch==99.1.0 torchvision==99.0\n"
    )
    findings = check(project_of(docker), TARGET)
    assert {finding.level for finding in findings} == {Level.NOTE}
    wording(findings[0].why)


def test_a_cuda_base_written_as_an_argument_is_changed_where_its_value_stands() -> None:
    docker = (
        "ARG BASE=nvidia/cuda:11.8.0-devel-ubuntu22.04\nFROM ${BASE}\n"
        "RUN apt-get update && apt-get install -y python3-pip\nRUN pip3 install torch==2.6.0\n"
        "RUN pip3 install --no-build-isolation flash-attn\n"
    )
    text = fixed_text(project_of(docker))
    assert text == docker.replace("11.8.0", "12.4.1")


def test_a_minor_difference_of_cuda_changes_nothing() -> None:
    docker = "FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\nRUN pip3 install torch==2.6.0\n"
    assert fixed_text(project_of(docker)) == docker


def test_only_the_stage_that_compiles_gets_the_compiler() -> None:
    docker = (
        "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04 AS builder\n"
        "RUN pip3 install torch==2.6.0 && pip3 install --no-build-isolation causal-conv1d==1.5.0\n"
        "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n"
        "COPY --from=builder /usr/local /usr/local\n"
    )
    lines = fixed_text(project_of(docker)).splitlines()
    assert lines[0] == "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04 AS builder"
    assert lines[2] == "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04"


def test_pip_in_the_same_step_as_apt_gets_its_environment_there() -> None:
    docker = (
        "FROM ubuntu:24.04\n"
        "RUN apt-get update && apt-get install -y python3-pip && pip3 install six && pip3 install tqdm\n"
        'CMD ["python3"]\n'
    )
    text = fixed_text(project_of(docker))
    assert "apt-get install -y python3-pip python3-venv && python3 -m venv /opt/venv" in text
    assert "&& /opt/venv/bin/pip install six && /opt/venv/bin/pip install tqdm\n" in text
    assert 'ENV PATH=/opt/venv/bin:$PATH\nCMD ["python3"]\n' in text


def test_a_missing_tool_joins_the_list_of_packages_that_is_there() -> None:
    docker = (
        "FROM python:3.11-slim\n"
        "RUN apt-get update \\\n && apt-get install -y \\\n      curl \\\n      wget \\\n"
        " && rm -rf /var/lib/apt/lists/*\n"
        "RUN pip install git+https://example.com/a/b.git\n"
    )
    assert fixed_text(project_of(docker)) == docker.replace("      wget \\", "      wget git \\")


def test_as_another_user_no_system_package_is_added() -> None:
    docker = "FROM python:3.11-slim\nUSER 1000\nRUN pip install git+https://example.com/a/b.git\n"
    project = project_of(docker)
    assert ids(check(project, TARGET)) == ["no-build-tools"]
    assert fixed_text(project) == docker


def test_a_secret_is_reported_without_being_shown() -> None:
    docker = (
        "FROM debian:12-slim\nENV API_TOKEN=very-secret-1 OTHER=2\nARG DB_PASSWORD='very-secret-2'\n"
        "RUN apt-get install -y python3-pip\nRUN pip install --index-url https://me:very-secret-3@host/ six\n"
    )
    project = project_of(docker)
    findings = check(project, TARGET)
    assert ids(findings).count("secret-in-image") == 3
    text = "".join(
        f"{finding.why}{finding.evidence}{finding.advice}{redacted_diff(project, finding)}"
        for finding in findings
    )
    assert "API_TOKEN" in text
    assert "very-secret" not in text
    patch = unified_diff(project, apply_fixes(project, TARGET).project)
    assert "very-secret-1" in patch  # the patch itself is exact, or it would not apply


def test_two_findings_on_one_line_are_both_fixed() -> None:
    docker = "FROM python:3.11-slim\nRUN pip install torch==2.2.2 torchvision==0.18.1 opencv-python\n"
    fix_result = apply_fixes(project_of(docker), TARGET)
    assert sorted(ids(fix_result.applied)) == ["missing-library", "numpy-abi", "torch-trio"]
    fixed = 'RUN pip install torch==2.2.2 "numpy<2" torchvision==0.17.2 opencv-python-headless'
    assert everything(fix_result.project).splitlines()[1] == fixed


def test_what_must_be_written_is_named_file_by_file() -> None:
    broken = case("build-isolation")
    after = apply_fixes(broken.project, broken.target).project
    assert set(changed_files(broken.project, after)) == {"Dockerfile", "requirements.txt"}
    assert "flash-attn" not in after.text("requirements.txt")


def test_requirements_that_are_copied_under_another_name_are_read_from_their_own_file() -> None:
    copied = (
        "FROM python:3.11-slim\n"
        "COPY gpu.txt /tmp/requirements.txt\nRUN pip install -r /tmp/requirements.txt\n"
    )
    mounted = (
        "FROM python:3.11-slim\n"
        "RUN --mount=type=bind,source=gpu.txt,target=/tmp/r.txt pip install -r /tmp/r.txt\n"
    )
    for docker in (copied, mounted):
        project = project_of(docker, gpu_txt="opencv-python\n", requirements_txt="opencv-python\n")
        findings = [finding for finding in check(project, TARGET) if finding.id == "missing-library"]
        assert [finding.path for finding in findings] == ["gpu.txt"]


def test_with_another_sign_for_continued_lines_nothing_is_edited() -> None:
    docker = "# escape=`\nFROM python:3.11-slim\nRUN pip install `\n  six\nRUN pip install opencv-python\n"
    project = project_of(docker)
    assert "missing-library" in ids(check(project, TARGET))
    assert fixed_text(project) == docker


def test_extras_markers_and_remarks_of_a_requirement_survive_its_new_version() -> None:
    requirements = (
        "torch==2.6.0 ; sys_platform == 'linux'\n"
        "TorchVision[scipy]==0.20.1; python_version >= '3.9'  # ours\n"
        "torchvision==0.15.2; python_version < '3.9'\n"
    )
    docker = "FROM python:3.11-slim\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"
    after = apply_fixes(project_of(docker, requirements_txt=requirements), TARGET).project
    assert after.text("requirements.txt") == requirements.replace("0.20.1", "0.21.0")


def test_a_library_of_the_stage_that_runs_counts_for_what_another_stage_installed() -> None:
    docker = (
        "FROM python:3.11-slim AS build\nRUN python -m venv /v && /v/bin/pip install opencv-python\n"
        "FROM python:3.11-slim\nRUN apt-get update && apt-get install -y libgl1 libglib2.0-0\n"
        "COPY --from=build /v /v\n"
    )
    assert fixed_text(project_of(docker)) == docker


@pytest.mark.parametrize(
    "text",
    [
        "ENV HF_TOKEN=planted",
        "ENV HF_TOKEN planted",
        "x --password planted",
        "https://me:planted@host/",
        'API_KEY="planted x"',
    ],
)
def test_what_follows_the_name_of_a_secret_is_hidden(text: str) -> None:
    assert "planted" not in redact(text)
    harmless = "the token you gave, MAX_TOKENS=5, HF_TOKEN_FILE=/run/x"
    assert redact(harmless) == harmless
