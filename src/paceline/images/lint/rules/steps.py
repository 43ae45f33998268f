"""Rules about what a step receives: shell state, files of the context, stages, options (26, 29, 35, 36).

Every RUN starts a new shell in WORKDIR with the environment of ENV and ARG. Every COPY reads the build
context after `.dockerignore`. A rule reports a problem only where the build or its result is certain to be
wrong.
"""

import posixpath
import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import (
    Command,
    Instruction,
    Stage,
    argument_values,
    env_values,
    substituted,
)
from paceline.images.lint.installs import PipInstall, conditional_commands
from paceline.images.lint.project import Finding, Level, lines_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.secrets import ignored_patterns, is_ignored
from paceline.images.lint.view import StageView

LOST = Pattern(
    number=35,
    id="state-lost",
    what="A RUN only changes its own shell (variable, `cd`, activation): the next step starts a new one.",
    fix="only reported: ENV, WORKDIR, or the commands in one RUN",
)
ACTIVATE = Pattern(
    number=35,
    id="conda-activate-fails",
    what="`conda activate` in a shell without conda's hook: `Run 'conda init' before 'conda activate'`.",
    fix="only reported: `conda run -n ENV`, or the environment's bin folder on PATH",
)
OUTSIDE = Pattern(
    number=36,
    id="outside-context",
    what="COPY or ADD names a file outside of the build context: `..`, `~`, `$HOME` or a folder of the host.",
    fix="only reported: a path below the context",
)
EXCLUDED = Pattern(
    number=36,
    id="excluded-from-context",
    what="`.dockerignore` excludes what COPY or ADD names: `not found`.",
    fix="only reported: an exception (`!path`) in .dockerignore",
)
UNUSED = Pattern(
    number=29,
    id="stage-not-used",
    what="A stage installs something, and no later stage starts from it or copies from it.",
    fix="only reported: `FROM name` or `COPY --from=name`",
    level=Level.WARNING,
)
OPTION = Pattern(
    number=26,
    id="option-without-value",
    what="An option of pip or uv that needs a value is followed by another option, or by nothing.",
    fix="only reported: the value",
)
NOT_A_PACKAGE = Pattern(
    number=26,
    id="file-as-package",
    what="pip is given a requirements file without `-r`, and searches for a package of that name.",
    fix="only reported: `-r` before the file",
)
PATTERNS = (LOST, ACTIVATE, OUTSIDE, EXCLUDED, UNUSED, OPTION, NOT_A_PACKAGE)
_KNOWN = ("python", "debian", "ubuntu", "cuda", "pytorch", "conda")
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)\+?=")
_NEUTRAL = frozenset({"echo", "true", ":", "pwd", "set"})
_ACTIVATION = re.compile(r"(?:^|/)activate$|/conda\.sh$|/mamba\.sh$")
_HOOK = re.compile(
    r"conda\.sh$|mamba\.sh$|activate$|bashrc$|(?:^|/)\.?profile$|shell\.\w+|hook|\.bash_profile$"
)
# Variables that only programs read: a RUN sets them for later steps, never for itself.
_SEARCH_PATHS = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH"})
_PYTHON_PROGRAM = re.compile(r"^(?:pip|python)(?:3(?:\.\d+)?)?$")
_NEEDS_FOLDER = re.compile(
    r"^(?:make|cmake|\./\S+|(?:python3?|bash|sh) [\w.-]+\.(?:py|sh)\b"
    r"|(?:python3? -m )?pip3? install .*(?: \.(?:\[\S*\])?(?: |$)|-r [\w.-]))"
)


def state_lost(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        changed = _state_of(view, step)
        if changed is None:
            continue
        kind, name = changed
        later = [instruction for instruction in view.stage.instructions if instruction.first > step.last]
        relied = _relies(view, step, later, kind, name)
        instead = {"variable": f"write `ENV {name}=…`", "folder": f"write `WORKDIR {name}`"}
        subjects = {"variable": f"the value of {name}", "folder": f"`cd {name}`"}
        yield LOST.finding(
            view,
            step,
            f"{subjects.get(kind, 'the activated environment')} ends with this RUN"
            + (f", and line {relied.first} relies on it" if relied is not None else ""),
            step.values[0].strip()[:120],
            instead.get(kind, "put the environment's bin folder on PATH with ENV, or use one RUN"),
            level=Level.WARNING if relied is None else Level.PROBLEM,
        )


def _state_of(view: StageView, step: Instruction) -> tuple[str, str] | None:
    """The kind and the name of what a RUN changes, if it changes nothing but its own shell."""
    if step.word != "RUN" or step.is_json or not step.commands:
        return None
    text = "".join(lines_of(view.docker.text)[step.first - 1 : step.last])
    if re.search(r"[<>|]", re.sub(r"\|\|", "", text)):
        return None
    last: tuple[str, str] | None = None
    for command in step.commands:
        change = _change_of(command)
        if change is None and command.texts[0] not in _NEUTRAL:
            return None
        last = last if change is None else change
    return last


def _change_of(command: Command) -> tuple[str, str] | None:
    argv = command.texts
    behind = argv[1:]
    if all(_ASSIGNMENT.match(word) for word in argv):
        return "variable", argv[-1].partition("=")[0].rstrip("+")
    if argv[0] == "export" and behind:
        return "variable", behind[0].partition("=")[0]
    if argv[0] == "cd" and len(behind) == 1:
        return "folder", behind[0]
    if argv[0] in ("source", ".") and behind and _ACTIVATION.search(behind[0]):
        return "environment", behind[-1]
    if argv[:2] in (("conda", "activate"), ("mamba", "activate")):
        return "environment", argv[-1]
    return None


def _relies(
    view: StageView, step: Instruction, later: list[Instruction], kind: str, name: str
) -> Instruction | None:
    """The first later step whose result depends on the lost state."""
    match kind:
        case "variable":
            return _uses_variable(view, later, name)
        case "folder":
            return _uses_folder(view, step, later, name)
        case _:
            return _uses_environment(view, later, name)


def _uses_variable(view: StageView, later: list[Instruction], name: str) -> Instruction | None:
    if any(
        name in (*env_values(step), *argument_values(step))
        for step in view.steps
        if step.word in ("ENV", "ARG")
    ):
        return None
    if view.base.family not in _KNOWN:
        return None
    runs = [step for step in later if step.word in ("RUN", "CMD", "ENTRYPOINT")]
    if name in _SEARCH_PATHS:
        return runs[0] if runs else None
    for step in runs:
        text = " ".join(step.values)
        if re.search(rf"\b{name}=|\bread {name}\b|\bfor {name}\b", text):
            return None
        if re.search(rf"\$(?:{name}\b|\{{{name}\}})", text):
            return step
    return None


def _uses_folder(
    view: StageView, step: Instruction, later: list[Instruction], name: str
) -> Instruction | None:
    cwd = _folder_at(view, step)
    if cwd is None or "$" in name or posixpath.join(cwd, name) == cwd or name in (".", "-", "~"):
        return None
    filled = [
        step
        for step in view.steps
        if step.word in ("COPY", "ADD")
        and step.values
        and cwd == _absolute(view, step, step.values[-1]).rstrip("/").rpartition("/")[0]
    ]
    filled += [
        step
        for step in view.steps
        if step.word in ("COPY", "ADD")
        and step.values
        and cwd == _absolute(view, step, step.values[-1]).rstrip("/")
    ]
    if filled:
        return None
    for instruction in later:
        if instruction.word == "WORKDIR":
            return None
        if instruction.word == "RUN" and instruction.commands and not instruction.is_json:
            first = " ".join(instruction.commands[0].texts)
            if first.startswith("cd "):
                continue
            return instruction if _NEEDS_FOLDER.match(first) else None
    return None


def _uses_environment(view: StageView, later: list[Instruction], name: str) -> Instruction | None:
    path = view.variables.get("PATH", "")
    label = name.removesuffix("/bin/activate").rpartition("/")[2]
    chosen = " ".join(value for step in view.steps if step.word == "SHELL" for value in step.values)
    is_on_path = f"/{label}/" in path or re.search(r"venv|envs/", path) is not None
    if is_on_path or re.search(r"run|-\w*[li]\b|login", chosen):
        return None
    for step in later:
        for command in step.commands if step.word == "RUN" else ():
            if _PYTHON_PROGRAM.match(command.texts[0]):
                return step
            if command.texts[0] in ("source", ".", "conda", "mamba", "bash"):
                return None
    return None


def _folder_at(view: StageView, step: Instruction) -> str | None:
    """The working folder of a step; None where a variable or the base decides."""
    cwd = "/" if view.base.family in _KNOWN and view.base.family != "pytorch" else "/workspace"
    if view.base.family not in _KNOWN:
        cwd = ""
    for instruction in view.steps:
        if instruction.first >= step.first:
            break
        if instruction.word == "WORKDIR" and instruction.values:
            values = view.docker.variables(view.stage, instruction.first)
            cwd = posixpath.normpath(
                posixpath.join(cwd, substituted(instruction.values[0].strip("\"'"), values))
            )
    return cwd if cwd.startswith("/") and "$" not in cwd else None


def _absolute(view: StageView, step: Instruction, path: str) -> str:
    values = view.docker.variables(view.stage, step.first)
    cwd = _folder_at(view, step) or "$"
    goal = substituted(path, values)
    joined = posixpath.normpath(posixpath.join(cwd, goal))
    return f"{joined}/" if goal.endswith(("/", "/.")) or goal == "." else joined


def conda_activate_fails(view: StageView) -> Iterator[Finding]:
    is_conda = re.search(r"(?:^|/)(?:mini|ana)?(?:conda3?|forge3?)$|mambaforge$", view.base.name) is not None
    is_known = view.base.family in (*_KNOWN, "ngc", "dlc") or is_conda
    if not is_known or "BASH_ENV" in view.variables:
        return
    for step in view.stage.instructions:
        chosen = [
            instruction
            for instruction in view.steps
            if instruction.word == "SHELL" and instruction.first < step.first
        ]
        is_login = bool(chosen) and re.search(r"-\w*[li]|login|conda|mamba|env", " ".join(chosen[-1].values))
        if step.word != "RUN" or step.is_json or is_login or "||" in step.values[0] or "<<" in step.values[0]:
            continue
        conditional = conditional_commands(step)
        has_hook = False
        for command in step.commands:
            argv = command.texts
            has_hook = has_hook or (argv[0] in (".", "source", "eval") and bool(_HOOK.search(" ".join(argv))))
            is_activation = argv[:2] in (
                ("conda", "activate"),
                ("mamba", "activate"),
                ("micromamba", "activate"),
            )
            if is_activation and not has_hook and id(command) not in conditional:
                yield ACTIVATE.finding(
                    view,
                    step,
                    "the shell of this RUN has no conda hook: `CondaError: Run 'conda init' before "
                    "'conda activate'`",
                    " ".join(argv[:4]),
                    "use `conda run -n ENV COMMAND`, or put the environment's bin folder on PATH with ENV",
                )
                break


def outside_context(view: StageView) -> Iterator[Finding]:
    patterns = ignored_patterns(view)
    for step in view.stage.instructions:
        if step.word not in ("COPY", "ADD") or step.flag("from") is not None or len(step.values) < 2:
            continue
        values = view.docker.variables(view.stage, step.first)
        for written in step.values[:-1]:
            source = substituted(written, values)
            if "://" in source or source.startswith(("git@", "<<")):
                continue
            why = _why_outside(view, source)
            if why:
                yield OUTSIDE.finding(
                    view,
                    step,
                    f"{why}: the build does not find it",
                    f"{step.word} {' '.join(step.values)}"[:120],
                    "name a path below the build context, or build with a context that holds it",
                )
                break
            if _is_excluded(source, patterns):
                yield EXCLUDED.finding(
                    view,
                    step,
                    f".dockerignore excludes {source}: the build does not find it",
                    f"{step.word} {' '.join(step.values)}"[:120],
                    f"add `!{posixpath.normpath(source).lstrip('/')}` to the end of .dockerignore",
                )
                break


def _why_outside(view: StageView, source: str) -> str:
    parts = [part for part in source.split("/") if part not in ("", ".")]
    if source.startswith("~"):
        return "" if "~" in view.project.names else f"`~` is not expanded in {source}"
    if re.match(r"^\$\{?HOME\}?(?:/|$)", source):
        return f"HOME is not set for COPY in {source}"
    if posixpath.normpath(source).startswith(".."):
        # BuildKit removes the `..`, and takes the rest as a path below the context.
        below = [part for part in parts if part != ".."]
        is_there = bool(below) and below[0] in view.project.names
        return "" if is_there else f"{source} is outside of the build context"
    host = re.match(r"^/(home|Users|mnt|root)/\S", source)
    if host is not None and host[1] not in view.project.names:
        return f"{source} is read as a path below the build context"
    return ""


def _is_excluded(source: str, patterns: list[str]) -> bool:
    path = posixpath.normpath(source).lstrip("/")
    if path in ("", ".") or re.search(r"[*?\[$]", path) or not is_ignored(path, patterns):
        return False
    # An exception may bring back a part of the folder.
    exceptions = [line.strip()[1:].strip("/") for line in patterns if line.strip().startswith("!")]
    return not any(pattern.startswith((f"{path}/", "*")) for pattern in exceptions)


def stage_not_used(view: StageView) -> Iterator[Finding]:
    stages = view.docker.stages
    stage = view.stage
    if view.is_last or not any(step.word == "RUN" for step in stage.instructions):
        return
    # A named stage may be a target of `docker build --target`, unless its name marks a build stage.
    if stage.name is not None and not re.search(r"build|compil|deps|dependenc|install", stage.name):
        return
    later = stages[stage.number + 1 :]
    if any("$" in step.base for step in later) or any(_takes(step, stage) for step in later):
        return
    shown = f"{stage.name or 'without a name'}"
    yield UNUSED.finding(
        view,
        stage.origin,
        f"stage {stage.number} ({shown}) is not used: FROM on line {later[0].origin.first} starts a new "
        "image, and nothing is copied from it",
        f"FROM {stage.base_written}",
        "give it a name, and start from it or COPY --from it; or remove it",
    )


def _takes(other: Stage, stage: Stage) -> bool:
    names = {str(stage.number), stage.name}
    if other.parent == stage.number:
        return True
    for step in other.instructions:
        mounts = re.findall(r"\bfrom=([^,\s]+)", " ".join(step.flags))
        if any(mount.lower() in names or "$" in mount for mount in mounts):
            return True
    return False


_MUST_HAVE_VALUE = {
    "-r": "requirement",
    "--requirement": "requirement",
    "--requirements": "requirement",
    "-c": "constraint",
    "--constraint": "constraint",
    "-e": "editable",
    "--editable": "editable",
    "-i": "index-url",
    "--index-url": "index-url",
    "--extra-index-url": "index-url",
    "-f": "find-links",
    "--find-links": "find-links",
    "-t": "target",
    "--target": "target",
}
_FILE = re.compile(r"(?:^|/)requirements?$|\.(?:txt|lock)$")


def arguments_of_pip(view: StageView) -> Iterator[Finding]:
    for by in [install for install in view.pip if id(install.instruction) in view.own_steps]:
        yield from _without_value(view, by)
        file = next((word for word in by.command.texts if _is_lost_file(by, word)), None)
        if file is not None:
            yield NOT_A_PACKAGE.finding(
                view,
                by.instruction,
                f"{file} is a file, and without -r pip searches for a package of that name: "
                "`No matching distribution found`",
                " ".join(by.command.texts[:8]),
                f"write `-r {file}`",
            )


def _is_lost_file(by: PipInstall, word: str) -> bool:
    texts = [spec.text for spec in by.specs]
    is_sync = "sync" in [word.text for word in by.command.words[:4]]
    return not is_sync and word in texts and "://" not in word and _FILE.search(word) is not None


def _without_value(view: StageView, by: PipInstall) -> Iterator[Finding]:
    arguments = [word for word in by.command.words if word.start > by.program[-1].start]
    if by.instruction.is_json:
        return
    taken = False
    for word, behind in zip(arguments, [*arguments[1:], None], strict=True):
        kind = _MUST_HAVE_VALUE.get(word.text)
        if taken or kind is None:
            taken = False
            continue
        taken = True
        if behind is not None and (not re.match(r"^-.", behind.text)):
            continue
        # pip only warns of a page of links that it cannot read.
        is_warning = kind == "find-links" and by.tool == "pip" and behind is not None
        shown = "nothing follows" if behind is None else f"gets `{behind.text}` as its value"
        yield OPTION.finding(
            view,
            by.instruction,
            f"{word.text} needs a value, and {shown}",
            " ".join(by.command.texts[:8]),
            f"give {word.text} its value, or leave it out",
            level=Level.WARNING if is_warning else Level.PROBLEM,
        )
        return


RULES = (
    outside_context,
    conda_activate_fails,
    state_lost,
    arguments_of_pip,
    stage_not_used,
)
