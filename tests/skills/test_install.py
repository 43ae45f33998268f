"""`paceline skills` installs twice as once, keeps what a user edited, and shows which copy is effective."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.skills.reader import COMMANDS, SKILLS

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
Call = Callable[..., Any]  # Any: JSON
AGENTS = ["claude-code", "opencode"]
FOLDERS = {
    ("claude-code", "user"): "home/.claude",
    ("claude-code", "project"): "project/.claude",
    ("opencode", "user"): "home/.config/opencode",
    ("opencode", "project"): "project/.opencode",
}
PLACES = list(FOLDERS)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Call:
    """`paceline skills … --json` in a folder below the root of a project."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "src").mkdir()

    def skills(*words: str, code: int = ExitCode.OK) -> Any:  # Any: JSON
        session = Session(folder=tmp_path / "project" / "src")
        assert run(["skills", *words, "--json"], session) == code
        return json.loads(capsys.readouterr().out)

    return skills


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(call: Call, agent: str, name: str) -> Any:  # Any: JSON
    (row,) = (row for row in call("list", "--for", agent)["data"]["skills"] if row["name"] == name)
    return row


@pytest.mark.parametrize(("agent", "scope"), PLACES)
def test_all_skills_are_installed_where_the_agent_searches(
    agent: str, scope: str, call: Call, tmp_path: Path
) -> None:
    data = call("install", "--for", agent, "--scope", scope)["data"]
    folder = tmp_path / FOLDERS[agent, scope]
    assert data["folder"] == str(folder)
    assert sorted(path.name for path in (folder / "skills").iterdir()) == SKILLS
    assert sorted(path.stem for path in (folder / "commands").iterdir()) == COMMANDS
    assert all(path.stat().st_mode & stat.S_IXUSR for path in folder.rglob("*.sh"))
    row = listed(call, agent, "image-builder")
    assert row["effective"] == str(folder / "skills" / "image-builder" / "SKILL.md")
    assert row["effective_scope"] == scope


@pytest.mark.parametrize(("agent", "scope"), PLACES)
def test_a_second_installation_writes_nothing(agent: str, scope: str, call: Call, tmp_path: Path) -> None:
    call("install", "--for", agent, "--scope", scope)
    before = tree(tmp_path)
    data = call("install", "--for", agent, "--scope", scope)["data"]
    assert {row["action"] for row in data["files"]} == {"unchanged"}
    assert tree(tmp_path) == before


@pytest.mark.parametrize(("agent", "scope"), PLACES)
def test_an_edit_survives_installation_and_removal(
    agent: str, scope: str, call: Call, tmp_path: Path
) -> None:
    where = ("--for", agent, "--scope", scope)
    call("install", *where)
    folder = tmp_path / FOLDERS[agent, scope]
    edited = folder / "skills" / "image-builder" / "SKILL.md"
    edited.write_text("mine\n")
    own = folder / "skills" / "image-builder" / "notes.md"
    own.write_text("also mine\n")
    for action in ("install", "uninstall", "uninstall", "install"):
        data = call(action, *where)["data"]
        kept = [row for row in data["files"] if row["action"] == "kept"]
        assert [row["path"] for row in kept] == ["skills/image-builder/SKILL.md"]
        assert kept[0]["reason"]
        assert edited.read_text() == "mine\n"
        assert own.read_text() == "also mine\n"
    (copy,) = listed(call, agent, "image-builder")["copies"]
    assert copy["state"] == "edited"
    assert copy["edited"] == ["skills/image-builder/SKILL.md"]


@pytest.mark.parametrize(("agent", "scope"), PLACES)
def test_removal_leaves_what_was_there_before(agent: str, scope: str, call: Call, tmp_path: Path) -> None:
    own = tmp_path / FOLDERS[agent, scope] / "skills" / "mine" / "SKILL.md"
    own.parent.mkdir(parents=True)
    own.write_text("mine\n")
    empty = tmp_path / FOLDERS[agent, scope] / "commands"
    empty.mkdir()
    before = sorted(tmp_path.rglob("*"))
    call("install", "--for", agent, "--scope", scope)
    call("uninstall", "--for", agent, "--scope", scope)
    assert sorted(tmp_path.rglob("*")) == before


def test_removal_in_an_empty_home_leaves_nothing(call: Call, tmp_path: Path) -> None:
    call("install", "--for", "claude-code")
    call("uninstall", "--for", "claude-code")
    assert list((tmp_path / "home").iterdir()) == []


def test_a_skill_of_the_user_with_the_same_name_is_left_alone(call: Call, tmp_path: Path) -> None:
    own = tmp_path / "home" / ".claude" / "skills" / "image-builder"
    own.mkdir(parents=True)
    (own / "SKILL.md").write_text("---\nname: image-builder\n---\nmine\n")
    call("install", "--for", "claude-code")
    assert [path.name for path in own.iterdir()] == ["SKILL.md"]
    (copy,) = listed(call, "claude-code", "image-builder")["copies"]
    assert copy["state"] == "yours"
    call("uninstall", "--for", "claude-code")
    assert [path.name for path in own.iterdir()] == ["SKILL.md"]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", ["image-builder", "deploy-job"])
def test_a_copy_of_the_project_comes_before_the_users(agent: str, name: str, call: Call) -> None:
    call("install", "--for", agent, "--scope", "user")
    assert listed(call, agent, name)["effective_scope"] == "user"
    call("install", "--for", agent, "--scope", "project")
    row = listed(call, agent, name)
    assert row["effective_scope"] == "project"
    assert {copy["scope"] for copy in row["copies"]} == {"user", "project"}


def test_a_users_copy_without_the_sentence_about_projects_wins_in_claude_code(
    call: Call, tmp_path: Path
) -> None:
    """Claude Code itself prefers the user's skill: the list does not promise more than what will happen."""
    call("install", "--for", "claude-code", "--scope", "user")
    call("install", "--for", "claude-code", "--scope", "project")
    entry = tmp_path / "home" / ".claude" / "skills" / "image-builder" / "SKILL.md"
    entry.write_text("mine, for all projects\n")
    assert listed(call, "claude-code", "image-builder")["effective_scope"] == "user"
    assert listed(call, "claude-code", "image-tester")["effective_scope"] == "project"


def test_opencode_also_follows_skills_of_claude_code(call: Call, tmp_path: Path) -> None:
    call("install", "--for", "claude-code", "--scope", "user")
    row = listed(call, "opencode", "image-builder")
    assert row["effective"] == str(tmp_path / "home/.claude/skills/image-builder/SKILL.md")
    assert listed(call, "opencode", "deploy-job")["effective"] is None


def test_chosen_skills_are_installed_and_removed_by_name(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "project" / ".claude"
    where = ("--for", "claude-code", "--scope", "project")
    call("install", "image-builder", "deploy-job", *where)
    assert [path.name for path in (folder / "skills").iterdir()] == ["image-builder"]
    call("uninstall", "deploy-job", *where)
    assert not (folder / "commands").exists()
    assert (folder / "skills" / "image-builder" / "SKILL.md").exists()


def test_a_folder_is_the_scope_of_another_project(call: Call, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    data = call("install", "--for", "opencode", "--scope", str(tmp_path / "other"))["data"]
    assert data["folder"] == str(tmp_path / "other" / ".opencode")
    rows = call("list", "--for", "opencode", "--scope", str(tmp_path / "other"))["data"]["skills"]
    assert {row["effective_scope"] for row in rows} == {"project"}


def test_a_dry_run_writes_nothing(call: Call, tmp_path: Path) -> None:
    data = call("install", "--for", "claude-code", "--dry-run")["data"]
    assert {row["action"] for row in data["files"]} == {"created"}
    assert tree(tmp_path) == {}


def test_variables_of_the_agents_move_the_users_folder(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert call("install", "--for", "claude-code")["data"]["folder"] == str(tmp_path / "elsewhere")
    assert call("install", "--for", "opencode")["data"]["folder"] == str(tmp_path / "xdg" / "opencode")


def test_a_link_in_place_of_a_file_is_kept(call: Call, tmp_path: Path) -> None:
    call("install", "--for", "claude-code")
    entry = tmp_path / "home" / ".claude" / "commands" / "deploy-job.md"
    target = tmp_path / "mine.md"
    target.write_bytes(entry.read_bytes())
    entry.unlink()
    entry.symlink_to(target)
    for action in ("install", "uninstall"):
        data = call(action, "--for", "claude-code")["data"]
        assert [row["path"] for row in data["files"] if row["action"] == "kept"] == ["commands/deploy-job.md"]
        assert entry.is_symlink()
        assert target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"files": {"../../victim": "sha256:0"}, "folders": []}',
        '{"files": {}, "folders": ["/etc"]}',
    ],
)
def test_a_damaged_record_removes_nothing(text: str, call: Call, tmp_path: Path) -> None:
    call("install", "--for", "claude-code")
    (tmp_path / "home" / ".claude" / "paceline-skills.json").write_text(text)
    before = tree(tmp_path)
    for action in ("install", "uninstall"):
        call(action, "--for", "claude-code", code=ExitCode.TRAINING_FAILED)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "words",
    [
        ("install", "image-bilder", "--for", "claude-code"),
        ("install", "--for", "claude-code", "--scope", "nowhere"),
    ],
)
def test_an_unknown_name_or_folder_is_refused(words: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    answer = call(*words, code=ExitCode.BAD_CONFIG)
    assert answer["error"]["problems"][0]["hint"]
    assert tree(tmp_path) == {}
