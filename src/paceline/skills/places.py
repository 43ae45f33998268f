"""Folders in which coding agents search for skills and slash commands, and which copy of a name they use.

Sources are listed in docs/decisions/0065-agent-skills.md. Both agents read `skills/NAME/SKILL.md` and
`commands/NAME.md` below a folder of the user and a folder of the project.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Agent(Enum):
    CLAUDE_CODE = "claude-code"
    OPENCODE = "opencode"


class Scope(Enum):
    USER = "user"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFolders:
    """The agents' folders of this user, by the environment."""

    home: Path
    claude: Path  # $CLAUDE_CONFIG_DIR, else ~/.claude
    opencode: Path  # $XDG_CONFIG_HOME/opencode, else ~/.config/opencode


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that holds `skills/` and `commands/` of one agent."""

    agent: Agent
    scope: Scope
    folder: Path


def find_place(agent: Agent, scope: Scope, user: UserFolders, project: Path) -> Place:
    match agent, scope:
        case Agent.CLAUDE_CODE, Scope.USER:
            folder = user.claude
        case Agent.CLAUDE_CODE, Scope.PROJECT:
            folder = project / ".claude"
        case Agent.OPENCODE, Scope.USER:
            folder = user.opencode
        case Agent.OPENCODE, Scope.PROJECT:
            folder = project / ".opencode"
    return Place(agent=agent, scope=scope, folder=folder)


def project_root(folder: Path, home: Path) -> Path:
    """The root of the git repository that contains `folder`; without one, `folder` itself.

    The home folder is no project: its `.claude` is the user's.
    """
    for candidate in (folder, *folder.parents):
        if candidate == home:
            break
        if (candidate / ".git").exists():
            return candidate
    return folder


def skill_places(agent: Agent, user: UserFolders, project: Path) -> list[Place]:
    """Where the agent reads skills, lowest precedence first. opencode also reads Claude Code's folders."""
    match agent:
        case Agent.CLAUDE_CODE:  # for skills, the user's copy comes before the project's
            order = [(Agent.CLAUDE_CODE, Scope.PROJECT), (Agent.CLAUDE_CODE, Scope.USER)]
        case Agent.OPENCODE:
            order = [
                (Agent.CLAUDE_CODE, Scope.USER),
                (Agent.CLAUDE_CODE, Scope.PROJECT),
                (Agent.OPENCODE, Scope.USER),
                (Agent.OPENCODE, Scope.PROJECT),
            ]
    return _distinct(find_place(owner, scope, user, project) for owner, scope in order)


def command_places(agent: Agent, user: UserFolders, project: Path) -> list[Place]:
    """Where the agent reads slash commands, lowest precedence first."""
    return _distinct(find_place(agent, scope, user, project) for scope in (Scope.USER, Scope.PROJECT))


def _distinct(places: Iterable[Place]) -> list[Place]:
    """In the home folder both scopes of Claude Code are the same folder."""
    by_folder: dict[Path, Place] = {}
    for place in places:
        by_folder.setdefault(place.folder, place)
    return list(by_folder.values())


def choose_effective(copies: Sequence[tuple[Place, bool]]) -> Place | None:
    """The copy that an agent follows, of those that exist, lowest precedence first.

    Each comes with whether it sends the agent to the project's copy. Such a copy of the user gives way.
    """
    if not copies:
        return None
    first_choice, defers = copies[-1]
    if first_choice.scope is Scope.PROJECT or not defers:
        return first_choice
    of_project = [place for place, _ in copies if place.scope is Scope.PROJECT]
    return of_project[-1] if of_project else first_choice
