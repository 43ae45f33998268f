"""`paceline skills`: list, install and remove skills and slash commands for coding agents."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core import environ
from paceline.core.errors import ConfigError, Mistake, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json
    from paceline.skills.bundle import Unit
    from paceline.skills.changes import Change
    from paceline.skills.listing import Copy, Listed
    from paceline.skills.places import Place, Scope, UserFolders

_AGENTS = click.Choice(["claude-code", "opencode"])
_names = click.argument("names", nargs=-1, metavar="[NAME]...")
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")


def _place_options(body: Callable[..., object]) -> Callable[..., object]:
    agent = click.option("--for", "agent", type=_AGENTS, required=True, help="Coding agent.")
    scope = click.option(
        "--scope",
        default="user",
        show_default=True,
        metavar="user|project|DIR",
        help="user: your own settings; project: the git repository of this folder; DIR: another project.",
    )
    return agent(scope(body))


@click.group("skills")
@common_options
def skills(session: Session) -> None:
    """List, install and remove skills and slash commands for coding agents."""


@skills.command("list")
@click.option("--for", "agent", type=_AGENTS, help="Coding agent. [default: all]")
@click.option(
    "--scope",
    metavar="user|project|DIR",
    help="List only copies of this scope; DIR: those of another project. [default: user and project]",
)
@common_options
def list_skills(session: Session, *, agent: str | None, scope: str | None) -> None:
    """List skills and slash commands, where they are installed, and which copy the agent follows.

    A copy is current, outdated (installed by another version), edited, or yours (not installed by paceline).
    """
    from paceline.skills.bundle import bundle
    from paceline.skills.listing import list_units
    from paceline.skills.places import Agent, Scope

    shown, project = (None, _project(session)) if scope is None else _scope(session, scope)
    agents = [Agent(agent)] if agent is not None else list(Agent)
    rows = [row for one in agents for row in list_units(one, bundle(one), _user(), project)]
    scopes = set(Scope) if shown is None else {shown}
    lines = [line for row in rows for line in _list_lines(row, scopes)]
    emit(session, "skills.list", {"skills": [_list_row(row, scopes) for row in rows]}, lines)


@skills.command("install")
@_names
@_place_options
@_dry_run
@common_options
def install(session: Session, *, names: Sequence[str], agent: str, scope: str, dry_run: bool) -> None:
    """Install skills and slash commands, or update them: all, or those of these names.

    A file that you edited is kept and named, and so is a skill of yours with the same name. A second
    installation changes nothing. What was installed is recorded in paceline-skills.json.
    """
    from paceline.skills.bundle import bundle
    from paceline.skills.install import install as install_units

    place = _place(session, agent, scope)
    shipped = bundle(place.agent)
    units = _named(shipped, names)
    changes = install_units(place, units, shipped, dry_run=dry_run)
    _show(session, "skills.install", place, changes, dry_run=dry_run)


@skills.command("uninstall")
@_names
@_place_options
@_dry_run
@common_options
def uninstall(session: Session, *, names: Sequence[str], agent: str, scope: str, dry_run: bool) -> None:
    """Remove what `install` wrote: all, or the skills and slash commands of these names.

    Files that you edited, and files that paceline did not install, are kept.
    """
    from paceline.skills.bundle import bundle
    from paceline.skills.install import uninstall as uninstall_paths

    place = _place(session, agent, scope)
    units = _named(bundle(place.agent), names)
    paths = [path for unit in units for path in unit.files] if names else None
    changes = uninstall_paths(place, paths, dry_run=dry_run)
    _show(session, "skills.uninstall", place, changes, dry_run=dry_run)


def _user() -> "UserFolders":
    from paceline.skills.places import UserFolders

    return UserFolders(
        home=environ.home_folder(), claude=environ.claude_folder(), opencode=environ.opencode_folder()
    )


def _project(session: Session) -> Path:
    from paceline.skills.places import project_root

    return project_root(session.folder.resolve(), environ.home_folder())


def _scope(session: Session, text: str) -> "tuple[Scope, Path]":
    """The scope, and the project's folder."""
    from paceline.skills.places import Scope

    if text in {scope.value for scope in Scope}:
        return Scope(text), _project(session)
    folder = session.folder.resolve() / text
    if not folder.is_dir():
        hint = "use user, project or the folder of a project that exists"
        raise ConfigError([Problem(f"{text!r} is not a folder", hint, "--scope", code=Mistake.VALUE)])
    return Scope.PROJECT, folder


def _place(session: Session, agent: str, scope: str) -> "Place":
    from paceline.skills.places import Agent, find_place

    kind, project = _scope(session, scope)
    return find_place(Agent(agent), kind, _user(), project)


def _named(units: "Sequence[Unit]", names: Sequence[str]) -> "list[Unit]":
    known = {unit.name for unit in units}
    problems = [
        Problem(
            f"there is no skill {name!r}", f"use one of: {', '.join(sorted(known))}", "NAME", Mistake.VALUE
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return [unit for unit in units if not names or unit.name in names]


def _show(
    session: Session, command: str, place: "Place", changes: "Sequence[Change]", *, dry_run: bool
) -> None:
    from paceline.skills.changes import Action
    from paceline.skills.install import RECORD_NAME

    counts = Counter(change.action for change in changes)
    data: dict[str, Json] = {
        "agent": place.agent.value,
        "scope": place.scope.value,
        "folder": str(place.folder),
        "record": str(place.folder / RECORD_NAME),
        "dry_run": dry_run,
        "counts": {action.value: counts[action] for action in Action},
        "files": [{"path": c.path, "action": c.action.value, "reason": c.reason} for c in changes],
    }
    lines = [_change_line(place, change) for change in changes if change.action is not Action.UNCHANGED]
    done = ", ".join(f"{counts[action]} {action.value}" for action in Action if counts[action])
    verb = "would be " if dry_run else ""
    emit(session, command, data, [*lines, f"{place.folder}: {verb}{done or 'nothing installed'}"])
    if counts[Action.KEPT]:
        files = pluralize(counts[Action.KEPT], "file")
        print_message(session, f"note: {files} of yours kept; to get ours, move yours away and install again")


def _change_line(place: "Place", change: "Change") -> str:
    reason = f": {change.reason}" if change.reason else ""
    return f"{change.action.value:<9} {place.folder / change.path}{reason}"


def _list_lines(row: "Listed", scopes: "set[Scope]") -> list[str]:
    slash = "/" if row.unit.kind.value == "command" else ""
    head = f"{row.agent.value:<12} {slash}{row.unit.name}"
    copies = [copy for copy in row.copies if copy.place.scope in scopes]
    if not copies:
        return [f"{head}: not installed"]
    return [head, *(_copy_line(copy) for copy in copies)]


def _copy_line(copy: "Copy") -> str:
    mark = "*" if copy.is_effective else " "
    edited = f" ({', '.join(copy.edited)})" if copy.edited else ""
    return f"  {mark} {copy.place.scope.value:<8} {copy.state.value:<9} {copy.path}{edited}"


def _list_row(row: "Listed", scopes: "set[Scope]") -> "dict[str, Any]":  # Any: JSON
    effective = row.effective
    return {
        "agent": row.agent.value,
        "kind": row.unit.kind.value,
        "name": row.unit.name,
        "description": row.unit.description,
        "effective": None if effective is None else str(effective.path),
        "effective_scope": None if effective is None else effective.place.scope.value,
        "copies": [
            {
                "scope": copy.place.scope.value,
                "path": str(copy.path),
                "state": copy.state.value,
                "edited": list(copy.edited),
                "effective": copy.is_effective,
            }
            for copy in row.copies
            if copy.place.scope in scopes
        ],
    }
