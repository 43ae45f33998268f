"""Rules about files that a step reads: where the steps before it have put them (29).

`Files` follows a stage from its first instruction and keeps every path that may exist by then: the goals of
COPY and ADD, cloned repositories, downloads. Behind a program that may write anywhere, and on a base that may
hold a project of its own, a file is missed only where a later COPY of the same stage brings it.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from paceline.images.lint.dockerfile import Command, Instruction, substituted
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.context import copied_files, needed_files
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

NO_FILE = Pattern(
    number=29,
    id="file-not-copied",
    what="A step reads a file or enters a folder that no earlier step has created.",
    fix="only reported: COPY it before, or the path where it is",
)
SEVERAL = Pattern(
    number=29,
    id="goal-is-no-folder",
    what="COPY or ADD with several sources needs a folder as its destination, which ends with `/`.",
    fix="only reported: `/` at the end",
    level=Level.WARNING,
)
PATTERNS = (NO_FILE, SEVERAL)
# Images of frameworks and systems: they hold no project of a user's.
_PUBLIC = re.compile(
    r"^(?:nvcr\.io/nvidia/|rayproject/|huggingface/transformers-|tensorflow/tensorflow|rocm/|intel/|mambaorg/"
    r"|condaforge/|ghcr\.io/astral-sh/uv|public\.ecr\.aws/deep-learning|anyscale/ray|mosaicml/pytorch"
    r"|(?:\d+\.dkr\.ecr\.[\w-]+\.amazonaws\.com/)(?:huggingface-)?(?:pytorch|tensorflow)-)"
)
_FOLDERS = {"python": "/", "debian": "/", "ubuntu": "/", "cuda": "/", "pytorch": "/workspace", "conda": "/"}
_OF_THE_BASE = "/..."  # the working folder of a base that is not known
# Folders that a base fills, or that programs write to.
OF_THE_SYSTEM = re.compile(
    r"^/(?:usr(?!/src)|etc|bin|sbin|lib\d*|var|dev|proc|sys|run|opt/conda|boot|media|mnt)(?:/|$)"
)
_FILE_ENDING = re.compile(
    r"\.(?:txt|py|toml|ya?ml|sh|json|cfg|lock|md|in|whl|ini|ipynb|rst|pth|pt|deb|env|conf|list)$"
)
_ARCHIVE = re.compile(r"\.(?:tar|tgz|zip|gz|xz|bz2)")
_PIP = re.compile(r"^(?:\S*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"^(?:\S*/)?python(?:3(?:\.\d+)?)?$")
_IN_ENVIRONMENT = re.compile(r"^[\w./-]*\.?v?env/bin/(?:pip|python)3?$")
# Files that a command reads from the working folder.
_PROJECT_FILES = {
    ("uv", "sync"): "pyproject.toml",
    ("uv", "export"): "pyproject.toml",
    ("uv", "lock"): "pyproject.toml",
    ("poetry", "install"): "pyproject.toml",
    ("poetry", "export"): "pyproject.toml",
    ("pdm", "install"): "pyproject.toml",
    ("pdm", "sync"): "pyproject.toml",
    ("npm", "ci"): "package.json",
    ("npm", "install"): "package.json",
}
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
class Files:
    """Files that may exist at one point of a stage."""

    folder: str | None  # the working folder; None: not known
    exact: set[str] = field(default_factory=set)
    below: set[str] = field(default_factory=set)  # folders that may hold anything
    made: set[str] = field(default_factory=set)  # folders that exist, perhaps empty
    is_open: bool = False  # a program may have written anywhere
    is_base_known: bool = True
    origin: dict[str, str] = field(default_factory=dict)  # path in the image: path in the context

    def may_hold(self, path: str) -> bool:
        if not self.is_base_known:  # its working folder may be the goal of any COPY
            names = {posixpath.basename(path) for path in self.exact}
            return bool(self.below) or posixpath.basename(path) in names
        return path in self.exact or any(_is_within(path, folder) for folder in self.below)

    def may_be_folder(self, path: str) -> bool:
        known = (*self.exact, *self.made, *self.below)
        return self.may_hold(path) or any(_is_within(known_path, path) for known_path in known)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


def followed(
    view: StageView,
) -> Iterator[tuple[Instruction, Files, tuple[Command, str, bool] | None]]:
    """Each step of a stage with what may exist behind it, and what its RUN reads and does not find."""
    files = Files(
        folder=_FOLDERS.get(view.base.family, _OF_THE_BASE), is_base_known=view.base.family in _FOLDERS
    )
    for step in view.steps:
        values = view.docker.variables(view.stage, step.first)
        lost = None
        match step.word:
            case "WORKDIR" if step.values:
                files.folder = joined(files.folder, substituted(step.values[0].strip("\"'"), values))
                files.made |= {files.folder} if files.folder else set()
            case "COPY" | "ADD" if len(step.values) >= 2:
                copy(files, step, values, view)
            case "RUN":
                lost = _run(files, step, values)
        yield step, files, lost


def file_not_copied(view: StageView) -> Iterator[Finding]:
    if any(step.word == "ONBUILD" for step in view.steps):
        return
    is_public = view.base.family in _FOLDERS or _PUBLIC.match(view.base.name) is not None
    for step, files, lost in followed(view):
        if id(step) not in view.own_steps:
            continue
        if lost is None:
            yield from _needed_by_pip(view, step, files)
            continue
        command, path, was_open = lost
        is_certain = files.is_base_known if command.texts[0] == "cd" else is_public
        if (is_certain and not was_open) or _is_brought_later(view, step, command, path):
            yield _finding(view, step, command, path)
            return


def _needed_by_pip(view: StageView, step: Instruction, files: Files) -> Iterator[Finding]:
    """Files that a requirements file names, and those that building the project reads."""
    if step.word != "RUN" or files.is_open or files.folder is None or any("mount" in f for f in step.flags):
        return
    if any(command.texts[0] in ("cd", "pushd") for command in step.commands):
        return
    for by in [install for install in view.commands_of_pip if install.instruction is step]:
        needed = [(files.folder, names) for names in needed_files(view, by)]
        if posixpath.join(files.folder, "pyproject.toml") not in files.exact:
            needed = []
        for name in by.values("requirement"):
            path = joined(files.folder, name)
            file = view.file_named(view.path_in_context(by, name))
            if path in files.exact and file is not None:
                named = [o.value for o in file.options if o.name in ("requirement", "constraint")]
                needed += [(posixpath.dirname(path or "/"), name) for name in named if "://" not in name]
        for folder, names in needed:
            paths = [joined(folder, name) for name in names.split("|")]
            if not any(path is None or files.may_hold(path) for path in paths):
                yield _finding(view, step, by.command, paths[0] or "")
                return


def _finding(view: StageView, step: Instruction, command: Command, path: str) -> Finding:
    is_folder = command.texts[0] == "cd"
    path = path.removeprefix(f"{_OF_THE_BASE}/")
    return NO_FILE.finding(
        view,
        step,
        f"there is no folder {path} at this point: `cd: can't cd to`"
        if is_folder
        else f"{path} is not in the image at this point: `No such file or directory`",
        f"{' '.join(command.texts[:6])}; no COPY, ADD, mount or command before it creates it",
        "use the path where it was copied to" if is_folder else f"COPY it before, to {path}",
    )


def joined(folder: str | None, path: str) -> str | None:
    """The absolute path; None where a variable or an unknown folder decides."""
    path = path.strip("\"'")
    if "$" in path or "~" in path or "*" in path or "`" in path:
        return None
    if not path.startswith("/") and folder is None:
        return None
    return posixpath.normpath(posixpath.join(folder or "/", path)).replace("//", "/")


def copy(files: Files, step: Instruction, values: Mapping[str, str], view: StageView) -> None:
    """Add what COPY or ADD brings: file by file where the context is known."""
    written = substituted(step.values[-1], values)
    goal = joined(files.folder, written)
    if goal is None:
        files.is_open = True
        return
    for source in step.values[:-1]:
        tail = source.rstrip("/").rpartition("/")[2]
        copied = None if step.flag("from") is not None else copied_files(view, substituted(source, values))
        if copied is not None:
            into = written.endswith(("/", ".")) or len(step.values) > 2
            _bring(files, goal, copied, into_folder=into)
            continue
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


def _bring(files: Files, goal: str, copied: Mapping[str, str], *, into_folder: bool) -> None:
    """`brought`: path below the goal, path in the context; a single file may take the goal's own name."""
    for below, path in copied.items():
        named = [posixpath.join(goal, below)]
        named += [goal] if below == posixpath.basename(path) and len(copied) == 1 and not into_folder else []
        files.exact |= set(named)
        files.origin |= dict.fromkeys(named, path)
    files.made.add(goal)


def _run(files: Files, step: Instruction, values: Mapping[str, str]) -> tuple[Command, str, bool] | None:
    """Follow the commands of a RUN; the first that reads what was not seen, and whether all was seen."""
    if step.is_json or "<<" in step.values[0]:
        files.is_open = True
        return None
    outside = files.folder
    missing = None
    conditional = conditional_commands(step)
    is_tolerant = "||" in step.values[0] or "pushd" in step.values[0] or "(" in step.values[0]
    is_tolerant |= any("bind" in flag for flag in step.flags)
    for command in step.commands:
        texts = tuple(substituted(word, values) for word in command.texts)
        texts = texts[1:] if texts[0] in ("exec", "sudo", "time") and len(texts) > 1 else texts
        while len(texts) > 1 and re.match(r"^\w+=", texts[0]):
            texts = texts[1:]
        if missing is None and not is_tolerant and id(command) not in conditional:
            lost = next((path for path in _reads(files, texts) if not files.may_hold(path)), None)
            if texts[0] == "cd" and len(texts) == 2:
                lost = _lost_folder(files, texts[1])
            missing = None if lost is None else (command, lost, files.is_open)
        _effect(files, texts)
    files.folder = outside
    return missing


def _lost_folder(files: Files, path: str) -> str | None:
    goal = joined(files.folder, path)
    if goal is None or goal == "/" or re.match(r"^/(?:tmp|root|home|opt|srv|workspace)$", goal):
        return None
    return None if OF_THE_SYSTEM.match(goal) or files.may_be_folder(goal) else goal


def _reads(files: Files, texts: tuple[str, ...]) -> list[str]:
    """The files that a command must find, as absolute paths."""
    program = texts[0]
    behind = texts[1:]
    needed: list[str] = []
    if _IN_ENVIRONMENT.match(program) and not files.may_hold(joined(files.folder, program) or ""):
        needed.append(program)
    elif "install" in texts and (_PIP.match(program) or program == "uv" or behind[:2] == ("-m", "pip")):
        needed += [value for option, value in pairwise(texts) if option in ("-r", "--requirement")]
        needed += [word.partition("=")[2] for word in texts if word.startswith("--requirement=")]
        projects = [
            w for w in behind if re.fullmatch(r"\./?(?:\[[\w,-]*\])?", w) and "/" not in w.strip("./")
        ]
        if projects:
            needed.append("setup.py|pyproject.toml|setup.cfg")
    elif (_PYTHON.match(program) and behind and re.fullmatch(r"[\w./-]+\.py", behind[0])) or (
        program in ("bash", "sh") and behind and re.fullmatch(r"[\w./-]+\.sh", behind[0])
    ):
        needed.append(behind[0])
    elif re.fullmatch(r"\./[\w./-]+\.(?:sh|py)", program):
        needed.append(program)
    elif program in ("conda", "mamba", "micromamba") and {"env", "install", "create"} & set(behind[:2]):
        needed += [value for option, value in pairwise(texts) if option in ("-f", "--file")]
        needed += [word.partition("=")[2] for word in texts if word.startswith("--file=")]
    elif (program, *behind[:1]) in _PROJECT_FILES:
        is_elsewhere = any(
            re.match(r"--(?:project|directory|prefix)\b|-[CP]$|--no-project", w) for w in behind
        )
        file = _PROJECT_FILES[program, behind[0]]
        # The folders above the working folder are searched, too.
        needed += [] if is_elsewhere else ["|".join(f"{'../' * count}{file}" for count in range(8))]
    elif program == "chmod" and len(behind) > 1:
        needed += [word for word in behind[1:] if re.fullmatch(r"[\w./-]+\.(?:sh|py)", word)]
    paths = [
        _alternative(files, name) for name in needed if "://" not in name and not name.startswith(("<", "-"))
    ]
    return [path for path in paths if path is not None and not OF_THE_SYSTEM.match(path)]


def _alternative(files: Files, alternatives: str) -> str | None:
    """The absolute path; of several names the first that may be there, or the first."""
    paths = [joined(files.folder, name) for name in alternatives.split("|")]
    existing = [path for path in paths if path is not None and files.may_hold(path)]
    return existing[0] if existing else paths[0]


def _effect(files: Files, texts: tuple[str, ...]) -> None:
    """Record the files that a command adds, or that it may have added any."""
    program = texts[0].rpartition("/")[2]
    operands = [word for word in texts[1:] if not word.startswith("-")]
    if program == "cd":
        files.folder = joined(files.folder, operands[0]) if len(operands) == 1 else None
        files.is_open |= files.folder is None
    elif program == "mkdir":
        files.made |= {path for word in operands if (path := joined(files.folder, word)) is not None}
        files.is_open |= any("$" in word or "{" in word for word in operands)
    elif program == "git":
        _cloned(files, operands)
    elif program in ("wget", "curl"):
        files.below |= {files.folder or "/"}
        files.below |= {p for word in operands if "://" not in word and (p := joined(files.folder, word))}
    elif _PYTHON.match(program) and texts[1:2] == ("-m",) and texts[2:3] in (("venv",), ("ensurepip",)):
        files.below |= {path for word in operands[1:] if (path := joined(files.folder, word)) is not None}
        files.is_open |= any("$" in word for word in operands)
    elif _PIP.match(program) or (_PYTHON.match(program) and texts[1:3] == ("-m", "pip")):
        files.is_open |= any(word in ("download", "wheel") for word in operands)
    elif _PYTHON.match(program) and texts[1:2] == ("-c",):
        files.is_open |= re.search(r"open\(|write|download|save|load|run|system", texts[-1]) is not None
    elif program not in _HARMLESS:
        files.is_open = True
    elif program in ("uv", "poetry", "pdm", "conda", "mamba", "micromamba"):
        named = {path for word in operands if (path := joined(files.folder, word)) is not None}
        files.below |= named | {posixpath.join(files.folder or "/", ".venv")}
        files.below |= {files.folder or "/"} if operands[:1] in (["init"], ["new"]) else set()
    goals = [goal for sign, goal in pairwise(texts) if sign in (">", ">>")]
    goals += [word.lstrip("0123456789>") for word in texts if re.match(r"^\d?>", word)]
    files.exact |= {path for goal in goals if goal and (path := joined(files.folder, goal)) is not None}


def _cloned(files: Files, argv: list[str]) -> None:
    if not argv or argv[0] != "clone":
        files.is_open |= bool(argv) and argv[0] in (
            "checkout",
            "worktree",
            "-C",
            "submodule",
            "init",
            "pull",
        )
        return
    address = next((at for at, word in enumerate(argv) if "://" in word or word.startswith("git@")), None)
    if address is None:
        files.is_open = True
        return
    behind = argv[address + 1 :]
    name = re.sub(r"\.git$", "", argv[address].rstrip("/")).rpartition("/")[2]
    goal = joined(files.folder, behind[-1] if behind else name)
    if goal is None:
        files.is_open = True
    else:
        files.below.add(goal)


def _is_brought_later(view: StageView, step: Instruction, command: Command, path: str) -> bool:
    """Nothing else is certain of an unknown state, unless a later step of the stage brings this very file."""
    name = posixpath.basename(path)
    if command.texts[0] == "cd":
        return False
    earlier = [instruction for instruction in view.steps if instruction.first < step.first]
    is_named = any(name in word for step in earlier for c in step.commands for word in c.texts)
    has_sources = any(
        (step.word in ("COPY", "ADD") and _brings(step, name))
        or any("clone" in c.texts or "checkout" in c.texts for c in step.commands)
        for step in earlier
    )
    if is_named or has_sources:
        return False
    later = [instruction for instruction in view.stage.instructions if instruction.first > step.first]
    return any(
        step.word in ("COPY", "ADD") and step.flag("from") is None and _brings(step, name) for step in later
    )


def _brings(step: Instruction, name: str) -> bool:
    """COPY of this file, of the whole context or of a pattern that may match it."""
    tails = [posixpath.basename(source.rstrip("/")) for source in step.values[:-1]]
    return any(tail in (name, ".", "") or "*" in tail or "$" in tail for tail in tails)


def several_sources(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word not in ("COPY", "ADD") or len(step.values) < 3 or "<<" in " ".join(step.values):
            continue
        goal = substituted(step.values[-1], view.docker.variables(view.stage, step.first))
        if goal.endswith(("/", "/.", "\\")) or goal in (".", "..") or "$" in goal or step.is_json:
            continue
        yield SEVERAL.finding(
            view,
            step,
            f"{step.word} has several sources, and {goal} does not end with `/`: some builders reject it",
            f"{step.word} {' '.join(step.values)}"[:120],
            f"write {goal}/",
        )


RULES = (file_not_copied, several_sources)
