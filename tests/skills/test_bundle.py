"""The bundled skills keep to the format, and every command and flag in them exists."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.shell_blocks import commands, problem
from tests.cli.reading import find_command
from tests.skills.reader import BUNDLED, COMMANDS, SKILLS, page, steps, words_to_fill_in

from paceline.cli.main import cli
from paceline.skills.bundle import DEFERS_TO_PROJECT, UnitKind, bundle, split_front_matter
from paceline.skills.places import Agent

NAMES = ["cluster-manager", "image-builder", "image-tester", "job-deployer", "registry-pusher"]
SPEC_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
ARGUMENTS = {
    "build-docker-image": ("image-builder", {"--auto_fix", "--verbose"}),
    "test-docker-image": ("image-tester", {"--level"}),
    "push-to-ecr": ("registry-pusher", {"--repository", "--tags"}),
    "manage-cluster": ("cluster-manager", {"--target"}),
    "deploy-job": ("job-deployer", {"--target"}),
}

OTHER_FLAGS = {"--help", "--version", "--epochs", "--max_steps", "--no-build-isolation"}
OF_OTHER_PROGRAMS = re.compile(r"`(?:podman|docker|kubectl|aws|RUN) [^`]*`")


def command_page(name: str) -> str:
    return (BUNDLED / "commands" / f"{name}.md").read_text(encoding="utf-8")


def texts(skill: str) -> dict[str, str]:
    """Every text of a skill and of its slash command, by name."""
    folder = BUNDLED / "skills" / skill
    found = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.*")}
    (command,) = (name for name, (owner, _) in ARGUMENTS.items() if owner == skill)
    return {**found, f"{command}.md": command_page(command)}


def paceline_commands(text: str) -> list[list[str]]:
    """In shell, in blocks and in sentences."""
    lines = [
        *re.findall(r"`((?:exec )?paceline [^`\n]+)`", text),
        *re.findall(r"^(?:exec )?paceline .*$", text, re.M),
    ]
    found = [
        words[1:] if words[0] == "exec" else words
        for line in lines
        for words in commands(line.replace('"$@"', ""))
    ]
    return [words for words in found if words[0] == "paceline"]


def test_there_are_five_skills_and_five_slash_commands() -> None:
    assert SKILLS == NAMES
    assert sorted(ARGUMENTS) == COMMANDS


@pytest.mark.parametrize("skill", SKILLS)
def test_front_matter_keeps_to_the_limits_of_the_format(skill: str) -> None:
    fields, body = split_front_matter(page(skill))
    assert set(fields) <= SPEC_FIELDS
    assert fields["name"] == skill
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill)
    assert len(skill) <= 64
    assert 1 <= len(str(fields["description"])) <= 1024
    assert 1 <= len(str(fields["compatibility"])) <= 500
    assert isinstance(fields["allowed-tools"], str)
    metadata = fields["metadata"]
    assert isinstance(metadata, dict)
    assert all(isinstance(value, str) for value in metadata.values())
    assert len(body.splitlines()) < 500


@pytest.mark.parametrize("skill", SKILLS)
def test_skill_yaml_says_the_same_and_names_every_file(skill: str) -> None:
    folder = BUNDLED / "skills" / skill
    index: dict[str, Any] = yaml.safe_load((folder / "skill.yaml").read_text())  # Any: YAML
    fields, body = split_front_matter(page(skill))
    assert index["name"] == skill
    assert index["description"] == str(fields["description"]).strip()
    assert " ".join(index["allowed_tools"]) == fields["allowed-tools"]
    named = [row["path"] for row in index["scripts"]] + index["references"]
    assert sorted(named) == sorted(
        str(path.relative_to(folder))
        for name in ("scripts", "references")
        for path in (folder / name).iterdir()
    )
    assert not [path for path in named if f"`{path}" not in body], "SKILL.md tells of each"
    assert (folder / "README.md").exists()
    assert index["commands"] == [f"/{name}" for name, (owner, _) in ARGUMENTS.items() if owner == skill]


@pytest.mark.parametrize("skill", SKILLS)
def test_every_command_that_a_skill_names_is_parsed(skill: str) -> None:
    seen = [(name, words) for name, text in texts(skill).items() for words in paceline_commands(text)]
    assert len(seen) > 3
    wrong = [(name, words, error) for name, words in seen if (error := problem(words, cli, loosely=True))]
    assert not wrong


@pytest.mark.parametrize("skill", SKILLS)
def test_every_flag_that_a_skill_names_exists_in_a_command_of_it(skill: str) -> None:
    (command_name,) = (name for name, (owner, _) in ARGUMENTS.items() if owner == skill)
    fields, _ = split_front_matter(command_page(command_name))
    known = {*re.findall(r"--[a-z_]+", str(fields["argument-hint"])), *OTHER_FLAGS}
    for text in texts(skill).values():
        for words in paceline_commands(text):
            command, _ = find_command(words[1:])
            known |= {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    for name, text in texts(skill).items():
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", OF_OTHER_PROGRAMS.sub("", text)))
        assert flags <= known, name


@pytest.mark.parametrize("skill", SKILLS)
def test_every_word_of_a_step_in_capitals_is_explained(skill: str) -> None:
    text = page(skill)
    known = words_to_fill_in(text)
    used = {word for step in steps(text) for word in re.findall(r"(?<![\w-])[A-Z]{2,}\b", step.shell)}
    assert used
    assert used <= set(known)
    assert [step.number for step in steps(text)] == list(range(1, len(steps(text)) + 1))


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_says_what_never_to_do_and_what_to_report(skill: str) -> None:
    text = page(skill)
    for heading in ("## Before you start", "## Output", "## Never", "## Report"):
        assert heading in text
    assert text.count("- Never ") >= 4
    assert re.search(r"secret|token|password", text.partition("## Never")[2].partition("## ")[0])


@pytest.mark.parametrize("skill", SKILLS)
def test_tools_that_need_no_permission_send_delete_and_apply_nothing(skill: str) -> None:
    fields, _ = split_front_matter(page(skill))
    tools = re.findall(r"\w+\(([^)]*)\)", str(fields["allowed-tools"]))
    risky = ("build", "push", "submit", "stop", "deploy", "attach", "fix:")
    assert not [tool for tool in tools if any(word in tool for word in risky)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_slash_command_names_its_skill_and_has_its_arguments(name: str) -> None:
    fields, body = split_front_matter(command_page(name))
    skill, flags = ARGUMENTS[name]
    assert set(fields) == {"description", "argument-hint", "allowed-tools"}
    assert f"Use the skill {skill}" in body
    assert "$ARGUMENTS" in body
    assert flags <= set(re.findall(r"--[a-z_]+", str(fields["argument-hint"])))
    assert not [flag for flag in flags if f"`{flag}`" not in body.replace("`--target`, ", "`--target` ")]
    assert f"/{name}" in page(skill)


@pytest.mark.parametrize("agent", list(Agent))
def test_every_unit_sends_the_agent_to_the_copy_of_the_project(agent: Agent) -> None:
    units = bundle(agent)
    assert [unit.name for unit in units if unit.kind is UnitKind.SKILL] == SKILLS
    for unit in units:
        text = unit.files[unit.entry].decode()
        assert DEFERS_TO_PROJECT in text
        assert f"`.claude/{unit.entry}`" in text
        assert f"`.opencode/{unit.entry}`" in text


def test_opencode_gets_only_front_matter_that_it_reads() -> None:
    for unit in bundle(Agent.OPENCODE):
        if unit.kind is UnitKind.COMMAND:
            fields, _ = split_front_matter(unit.files[unit.entry].decode())
            assert list(fields) == ["description"]


def test_shellcheck_reports_nothing_about_the_scripts() -> None:
    scripts: list[Path] = sorted(BUNDLED.rglob("*.sh"))
    assert len(scripts) == 8
    result = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
