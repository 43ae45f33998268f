"""Rules about files that a step reads: where the steps before it have put them (29).

`_Files` follows a stage from its first instruction and keeps every path that may exist by then: the goals of
COPY and ADD, cloned repositories, downloads. A program that may write anywhere ends the judgement.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from paceline.images.dockerfile import Instruction
from paceline.images.installs import conditional_commands
from paceline.images.project import Finding, Level
from paceline.images.rules.pattern import Pattern
from paceline.images.shell import Command, substituted
from paceline.images.view import Place

NO_FILE = Pattern(
    number=29,
    id="file-not-copied",
    what="A step reads a file or enters a folder that no step has put there by then.",
    fix="only reported: COPY it before, or the path where it is",
)
SEVERAL = Pattern(
    number=29,
    id="goal-is-no-folder",
    what="COPY or ADD with several sources needs a folder as its goal, which ends with `/`.",
    fix="only reported: `/` at the end",
    level=Level.WARNING,
)
PATTERNS = (NO_FILE, SEVERAL)
_FOLDERS = {"python": "/", "debian": "/", "ubuntu": "/", "cuda": "/", "pytorch": "/workspace", "conda": "/"}
_OF_THE_BASE = "/..."  # the working folder of a base that is not known
# Folders that a base fills, or that programs write to.
_OF_THE_SYSTEM = re.compile(
    r"^/(?:usr(?!/src)|etc|bin|sbin|lib\d*|var|dev|proc|sys|run|opt/conda|boot|media|mnt)(?:/|$)"
)
_FILE_ENDING = re.compile(
    r"\.(?:txt|py|toml|ya?ml|sh|json|cfg|lock|md|in|whl|ini|ipynb|rst|pth|pt|deb|env|conf|list)$"
)
_ARCHIVE = re.compile(r"\.(?:tar|tgz|zip|gz|xz|bz2)")
_PIP = re.compile(r"^(?:\S*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"^(?:\S*/)?python(?:3(?:\.\d+)?)?$")
_IN_ENVIRONMENT = re.compile(r"^[\w./-]*\.?v?env/bin/(?:pip|python)3?$")
# They write to folders of the system, or to what their own words name.
_HARMLESS = frozenset(
    [
        "apt-get",
        "apt",
        "apk",
        "yum",
        "dnf",
        "microdnf",
        "aptitude",
        "rm",
        "echo",
        "mkdir",
        "chmod",
        "chown",
        "useradd",
        "groupadd",
        "adduser",
        "addgroup",
        "usermod",
        "locale-gen",
        "dpkg-reconfigure",
        "set",
        "export",
        "cd",
        "update-alternatives",
        "add-apt-repository",
        "ldconfig",
        "true",
        ":",
        "pwd",
        "ls",
        "which",
        "conda",
        "mamba",
        "micromamba",
        "uv",
        "poetry",
        "pdm",
        "sed",
        "cat",
        "printf",
        "ulimit",
        "apt-key",
        "update-ca-certificates",
        "exit",
        "sleep",
        "date",
    ]
)


@dataclass(slots=True)
class _Files:
    """What may exist at one point of a stage."""

    folder: str | None  # the working folder; None: not known
    exact: set[str] = field(default_factory=set)
    below: set[str] = field(default_factory=set)  # folders that may hold anything
    made: set[str] = field(default_factory=set)  # folders that exist, perhaps empty
    is_open: bool = False  # a program may have written anywhere
    is_base_known: bool = True

    def may_hold(self, path: str) -> bool:
        if not self.is_base_known:  # its working folder may be the goal of any COPY
            names = {posixpath.basename(one) for one in self.exact}
            return bool(self.below) or posixpath.basename(path) in names
        return path in self.exact or any(_is_within(path, folder) for folder in self.below)

    def may_be_folder(self, path: str) -> bool:
        known = (*self.exact, *self.made, *self.below)
        return self.may_hold(path) or any(_is_within(one, path) for one in known)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


def file_not_copied(place: Place) -> Iterator[Finding]:
    if any(step.word == "ONBUILD" for step in place.steps):
        return
    is_known = place.base.family in _FOLDERS
    files = _Files(folder=_FOLDERS.get(place.base.family, _OF_THE_BASE), is_base_known=is_known)
    for step in place.steps:
        values = place.docker.variables(place.stage, step.first)
        match step.word:
            case "WORKDIR" if step.values:
                files.folder = _joined(files.folder, substituted(step.values[0].strip("\"'"), values))
                files.made |= {files.folder} if files.folder else set()
            case "COPY" | "ADD" if len(step.values) >= 2:
                _copy(files, step, values)
            case "RUN":
                lost = _run(files, step, values)
                if lost is not None and id(step) in place.own_steps:
                    command, path = lost
                    if is_known or (command.texts[0] != "cd" and _is_brought_later(place, step, path)):
                        yield _finding(place, step, command, path)
                        return
        if files.is_open:
            return


def _finding(place: Place, step: Instruction, command: Command, path: str) -> Finding:
    is_folder = command.texts[0] == "cd"
    path = path.removeprefix(f"{_OF_THE_BASE}/")
    return NO_FILE.found(
        place,
        step,
        f"there is no folder {path} at this point: `cd: can't cd to`"
        if is_folder
        else f"{path} is not in the image at this point: `No such file or directory`",
        f"{' '.join(command.texts[:6])}; no COPY, ADD, mount or command before it brings it",
        "use the path where it was copied to" if is_folder else f"COPY it before, to {path}",
    )


def _joined(folder: str | None, path: str) -> str | None:
    """The absolute path; None where a variable or an unknown folder decides."""
    path = path.strip("\"'")
    if "$" in path or "~" in path or "*" in path or "`" in path:
        return None
    if not path.startswith("/") and folder is None:
        return None
    return posixpath.normpath(posixpath.join(folder or "/", path)).replace("//", "/")


def _copy(files: _Files, step: Instruction, values: Mapping[str, str]) -> None:
    written = substituted(step.values[-1], values)
    goal = _joined(files.folder, written)
    if goal is None:
        files.is_open = True
        return
    for source in step.values[:-1]:
        tail = source.rstrip("/").rpartition("/")[2]
        is_file = _FILE_ENDING.search(tail) is not None or tail in (
            "Makefile",
            "LICENSE",
            "README",
            "Dockerfile",
        )
        is_pattern = re.search(r"[*?\[$<]|://", source) is not None
        if step.flag("from") is not None or not is_file or is_pattern or _ARCHIVE.search(tail):
            files.below.add(goal)
            continue
        files.exact.add(posixpath.join(goal, tail))
        if len(step.values) == 2 and not written.endswith(("/", ".")):
            files.exact.add(goal)
        files.made.add(goal)


def _run(files: _Files, step: Instruction, values: Mapping[str, str]) -> tuple[Command, str] | None:
    """Follow the commands of a RUN; the first command that reads what cannot be there."""
    if step.is_json or any("bind" in flag for flag in step.flags) or "<<" in step.values[0]:
        files.is_open = True
        return None
    outside, found = files.folder, None
    maybe = conditional_commands(step)
    is_tolerant = "||" in step.values[0] or "pushd" in step.values[0] or "(" in step.values[0]
    for command in step.commands:
        texts = tuple(substituted(word, values) for word in command.texts)
        texts = texts[1:] if texts[0] in ("exec", "sudo", "time") and len(texts) > 1 else texts
        while len(texts) > 1 and re.match(r"^\w+=", texts[0]):
            texts = texts[1:]
        if found is None and not is_tolerant and not files.is_open and id(command) not in maybe:
            lost = next((path for path in _reads(files, texts) if not files.may_hold(path)), None)
            if texts[0] == "cd" and len(texts) == 2:
                lost = _lost_folder(files, texts[1])
            found = None if lost is None else (command, lost)
        _effect(files, texts)
    files.folder = outside
    return found


def _lost_folder(files: _Files, path: str) -> str | None:
    goal = _joined(files.folder, path)
    if goal is None or goal == "/" or re.match(r"^/(?:tmp|root|home|opt|srv|workspace)$", goal):
        return None
    return None if _OF_THE_SYSTEM.match(goal) or files.may_be_folder(goal) else goal


def _reads(files: _Files, texts: tuple[str, ...]) -> list[str]:
    """The files that a command must find, as absolute paths."""
    program, behind = texts[0], texts[1:]
    wanted: list[str] = []
    if _IN_ENVIRONMENT.match(program) and not files.may_hold(_joined(files.folder, program) or ""):
        wanted.append(program)
    elif "install" in texts and (_PIP.match(program) or program == "uv" or behind[:2] == ("-m", "pip")):
        wanted += [value for option, value in pairwise(texts) if option in ("-r", "--requirement")]
        wanted += [word.partition("=")[2] for word in texts if word.startswith("--requirement=")]
        projects = [
            w for w in behind if re.fullmatch(r"\./?(?:\[[\w,-]*\])?", w) and "/" not in w.strip("./")
        ]
        if projects:
            wanted.append("setup.py|pyproject.toml|setup.cfg")
    elif (_PYTHON.match(program) and behind and re.fullmatch(r"[\w./-]+\.py", behind[0])) or (
        program in ("bash", "sh") and behind and re.fullmatch(r"[\w./-]+\.sh", behind[0])
    ):
        wanted.append(behind[0])
    elif re.fullmatch(r"\./[\w./-]+\.(?:sh|py)", program):
        wanted.append(program)
    elif program in ("conda", "mamba") and "env" in behind[:1]:
        wanted += [value for option, value in pairwise(texts) if option in ("-f", "--file")]
    paths = [
        _alternative(files, one) for one in wanted if "://" not in one and not one.startswith(("<", "-"))
    ]
    return [path for path in paths if path is not None and not _OF_THE_SYSTEM.match(path)]


def _alternative(files: _Files, wanted: str) -> str | None:
    """The absolute path; of several names the first that may be there, or the first."""
    paths = [_joined(files.folder, name) for name in wanted.split("|")]
    there = [path for path in paths if path is not None and files.may_hold(path)]
    return there[0] if there else paths[0]


def _effect(files: _Files, texts: tuple[str, ...]) -> None:
    """What a command adds, or that it may have added anything."""
    program = texts[0].rpartition("/")[2]
    words = [word for word in texts[1:] if not word.startswith("-")]
    if program == "cd":
        files.folder = _joined(files.folder, words[0]) if len(words) == 1 else None
        files.is_open |= files.folder is None
    elif program == "mkdir":
        files.made |= {path for word in words if (path := _joined(files.folder, word)) is not None}
        files.is_open |= any("$" in word or "{" in word for word in words)
    elif program == "git":
        _cloned(files, words)
    elif program in ("wget", "curl"):
        files.below |= {files.folder or "/"}
        files.below |= {p for word in words if "://" not in word and (p := _joined(files.folder, word))}
    elif _PYTHON.match(program) and texts[1:2] == ("-m",) and texts[2:3] in (("venv",), ("ensurepip",)):
        files.below |= {path for word in words[1:] if (path := _joined(files.folder, word)) is not None}
        files.is_open |= any("$" in word for word in words)
    elif _PIP.match(program) or (_PYTHON.match(program) and texts[1:3] == ("-m", "pip")):
        files.is_open |= any(word in ("download", "wheel") for word in words)
    elif program not in _HARMLESS:
        files.is_open = True
    elif program in ("uv", "poetry", "pdm", "conda", "mamba", "micromamba"):
        named = {path for word in words if (path := _joined(files.folder, word)) is not None}
        files.below |= named | {posixpath.join(files.folder or "/", ".venv")}
    goals = [goal for sign, goal in pairwise(texts) if sign in (">", ">>")]
    goals += [word.lstrip("0123456789>") for word in texts if re.match(r"^\d?>", word)]
    files.exact |= {path for goal in goals if goal and (path := _joined(files.folder, goal)) is not None}


def _cloned(files: _Files, words: list[str]) -> None:
    if not words or words[0] != "clone":
        files.is_open |= bool(words) and words[0] in (
            "checkout",
            "worktree",
            "-C",
            "submodule",
            "init",
            "pull",
        )
        return
    address = next((at for at, word in enumerate(words) if "://" in word or word.startswith("git@")), None)
    if address is None:
        files.is_open = True
        return
    behind = words[address + 1 :]
    name = re.sub(r"\.git$", "", words[address].rstrip("/")).rpartition("/")[2]
    goal = _joined(files.folder, behind[-1] if behind else name)
    if goal is None:
        files.is_open = True
    else:
        files.below.add(goal)


def _is_brought_later(place: Place, step: Instruction, path: str) -> bool:
    """Of an unknown base nothing is certain, unless a later step of the stage brings this very file."""
    name = posixpath.basename(path)
    later = [one for one in place.stage.instructions if one.first > step.first]
    return any(
        one.word in ("COPY", "ADD")
        and one.flag("from") is None
        and any(posixpath.basename(source.rstrip("/")) in (name, ".", "") for source in one.values[:-1])
        for one in later
    )


def several_sources(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        if step.word not in ("COPY", "ADD") or len(step.values) < 3 or "<<" in " ".join(step.values):
            continue
        goal = substituted(step.values[-1], place.docker.variables(place.stage, step.first))
        if goal.endswith(("/", "/.", "\\")) or goal in (".", "..") or "$" in goal or step.is_json:
            continue
        yield SEVERAL.found(
            place,
            step,
            f"{step.word} has several sources, and {goal} does not end with `/`: some builders refuse it",
            f"{step.word} {' '.join(step.values)}"[:120],
            f"write {goal}/",
        )


RULES = (file_not_copied, several_sources)
