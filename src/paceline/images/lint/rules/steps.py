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
from paceline.images.lint.view import Place

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
    what="A stage installs something, and no later stage begins with it or copies from it.",
    fix="only reported: `FROM name` or `COPY --from=name`",
    level=Level.WARNING,
)
OPTION = Pattern(
    number=26,
    id="option-without-value",
    what="An option of pip or uv that takes a value is followed by another option, or by nothing.",
    fix="only reported: the value",
)
NOT_A_PACKAGE = Pattern(
    number=26,
    id="file-as-package",
    what="pip is given a requirements file without `-r`, and looks for a package of that name.",
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


def state_lost(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        changed = _state_of(place, step)
        if changed is None:
            continue
        kind, name = changed
        later = [one for one in place.stage.instructions if one.first > step.last]
        relied = _relies(place, step, later, kind, name)
        instead = {"variable": f"write `ENV {name}=…`", "folder": f"write `WORKDIR {name}`"}
        what = {"variable": f"the value of {name}", "folder": f"`cd {name}`"}
        yield LOST.found(
            place,
            step,
            f"{what.get(kind, 'the activated environment')} ends with this RUN"
            + (f", and line {relied.first} relies on it" if relied is not None else ""),
            step.values[0].strip()[:120],
            instead.get(kind, "put the environment's bin folder on PATH with ENV, or use one RUN"),
            level=Level.WARNING if relied is None else Level.PROBLEM,
        )


def _state_of(place: Place, step: Instruction) -> tuple[str, str] | None:
    """The kind and the name of what a RUN changes, if it changes nothing but its own shell."""
    if step.word != "RUN" or step.is_json or not step.commands:
        return None
    text = "".join(lines_of(place.docker.text)[step.first - 1 : step.last])
    if re.search(r"[<>|]", re.sub(r"\|\|", "", text)):
        return None
    found: tuple[str, str] | None = None
    for command in step.commands:
        change = _change_of(command)
        if change is None and command.texts[0] not in _NEUTRAL:
            return None
        found = found if change is None else change
    return found


def _change_of(command: Command) -> tuple[str, str] | None:
    words = command.texts
    behind = words[1:]
    if all(_ASSIGNMENT.match(word) for word in words):
        return "variable", words[-1].partition("=")[0].rstrip("+")
    if words[0] == "export" and behind:
        return "variable", behind[0].partition("=")[0]
    if words[0] == "cd" and len(behind) == 1:
        return "folder", behind[0]
    if words[0] in ("source", ".") and behind and _ACTIVATION.search(behind[0]):
        return "environment", behind[-1]
    if words[:2] in (("conda", "activate"), ("mamba", "activate")):
        return "environment", words[-1]
    return None


def _relies(
    place: Place, step: Instruction, later: list[Instruction], kind: str, name: str
) -> Instruction | None:
    """The first later step whose result depends on the lost state."""
    match kind:
        case "variable":
            return _uses_variable(place, later, name)
        case "folder":
            return _uses_folder(place, step, later, name)
        case _:
            return _uses_environment(place, later, name)


def _uses_variable(place: Place, later: list[Instruction], name: str) -> Instruction | None:
    if any(
        name in (*env_values(one), *argument_values(one)) for one in place.steps if one.word in ("ENV", "ARG")
    ):
        return None
    if place.base.family not in _KNOWN:
        return None
    runs = [one for one in later if one.word in ("RUN", "CMD", "ENTRYPOINT")]
    if name in _SEARCH_PATHS:
        return runs[0] if runs else None
    for one in runs:
        text = " ".join(one.values)
        if re.search(rf"\b{name}=|\bread {name}\b|\bfor {name}\b", text):
            return None
        if re.search(rf"\$(?:{name}\b|\{{{name}\}})", text):
            return one
    return None


def _uses_folder(place: Place, step: Instruction, later: list[Instruction], name: str) -> Instruction | None:
    here = _folder_at(place, step)
    if here is None or "$" in name or posixpath.join(here, name) == here or name in (".", "-", "~"):
        return None
    filled = [
        one
        for one in place.steps
        if one.word in ("COPY", "ADD")
        and one.values
        and here == _absolute(place, one, one.values[-1]).rstrip("/").rpartition("/")[0]
    ]
    filled += [
        one
        for one in place.steps
        if one.word in ("COPY", "ADD")
        and one.values
        and here == _absolute(place, one, one.values[-1]).rstrip("/")
    ]
    if filled:
        return None
    for one in later:
        if one.word == "WORKDIR":
            return None
        if one.word == "RUN" and one.commands and not one.is_json:
            first = " ".join(one.commands[0].texts)
            if first.startswith("cd "):
                continue
            return one if _NEEDS_FOLDER.match(first) else None
    return None


def _uses_environment(place: Place, later: list[Instruction], name: str) -> Instruction | None:
    path = place.variables.get("PATH", "")
    label = name.removesuffix("/bin/activate").rpartition("/")[2]
    chosen = " ".join(value for one in place.steps if one.word == "SHELL" for value in one.values)
    is_on_path = f"/{label}/" in path or re.search(r"venv|envs/", path) is not None
    if is_on_path or re.search(r"run|-\w*[li]\b|login", chosen):
        return None
    for one in later:
        for command in one.commands if one.word == "RUN" else ():
            if _PYTHON_PROGRAM.match(command.texts[0]):
                return one
            if command.texts[0] in ("source", ".", "conda", "mamba", "bash"):
                return None
    return None


def _folder_at(place: Place, step: Instruction) -> str | None:
    """The working folder of a step; None where a variable or the base decides."""
    here = "/" if place.base.family in _KNOWN and place.base.family != "pytorch" else "/workspace"
    if place.base.family not in _KNOWN:
        here = ""
    for one in place.steps:
        if one.first >= step.first:
            break
        if one.word == "WORKDIR" and one.values:
            values = place.docker.variables(place.stage, one.first)
            here = posixpath.normpath(posixpath.join(here, substituted(one.values[0].strip("\"'"), values)))
    return here if here.startswith("/") and "$" not in here else None


def _absolute(place: Place, step: Instruction, path: str) -> str:
    values = place.docker.variables(place.stage, step.first)
    here = _folder_at(place, step) or "$"
    goal = substituted(path, values)
    joined = posixpath.normpath(posixpath.join(here, goal))
    return f"{joined}/" if goal.endswith(("/", "/.")) or goal == "." else joined


def conda_activate_fails(place: Place) -> Iterator[Finding]:
    is_conda = re.search(r"(?:^|/)(?:mini|ana)?(?:conda3?|forge3?)$|mambaforge$", place.base.name) is not None
    is_known = place.base.family in (*_KNOWN, "ngc", "dlc") or is_conda
    if not is_known or "BASH_ENV" in place.variables:
        return
    for step in place.stage.instructions:
        chosen = [one for one in place.steps if one.word == "SHELL" and one.first < step.first]
        is_login = bool(chosen) and re.search(r"-\w*[li]|login|conda|mamba|env", " ".join(chosen[-1].values))
        if step.word != "RUN" or step.is_json or is_login or "||" in step.values[0] or "<<" in step.values[0]:
            continue
        maybe = conditional_commands(step)
        has_hook = False
        for command in step.commands:
            words = command.texts
            has_hook = has_hook or (
                words[0] in (".", "source", "eval") and bool(_HOOK.search(" ".join(words)))
            )
            is_activation = words[:2] in (
                ("conda", "activate"),
                ("mamba", "activate"),
                ("micromamba", "activate"),
            )
            if is_activation and not has_hook and id(command) not in maybe:
                yield ACTIVATE.found(
                    place,
                    step,
                    "the shell of this RUN has no hook of conda: `CondaError: Run 'conda init' before "
                    "'conda activate'`",
                    " ".join(words[:4]),
                    "use `conda run -n ENV COMMAND`, or put the environment's bin folder on PATH with ENV",
                )
                break


def outside_context(place: Place) -> Iterator[Finding]:
    patterns = ignored_patterns(place)
    for step in place.stage.instructions:
        if step.word not in ("COPY", "ADD") or step.flag("from") is not None or len(step.values) < 2:
            continue
        values = place.docker.variables(place.stage, step.first)
        for written in step.values[:-1]:
            source = substituted(written, values)
            if "://" in source or source.startswith(("git@", "<<")):
                continue
            why = _why_outside(place, source)
            if why:
                yield OUTSIDE.found(
                    place,
                    step,
                    f"{why}: the build does not find it",
                    f"{step.word} {' '.join(step.values)}"[:120],
                    "name a path below the build context, or build with a context that holds it",
                )
                break
            if _is_excluded(source, patterns):
                yield EXCLUDED.found(
                    place,
                    step,
                    f".dockerignore excludes {source}: the build does not find it",
                    f"{step.word} {' '.join(step.values)}"[:120],
                    f"add `!{posixpath.normpath(source).lstrip('/')}` to the end of .dockerignore",
                )
                break


def _why_outside(place: Place, source: str) -> str:
    parts = [part for part in source.split("/") if part not in ("", ".")]
    if source.startswith("~"):
        return "" if "~" in place.project.names else f"`~` is no home folder in {source}"
    if re.match(r"^\$\{?HOME\}?(?:/|$)", source):
        return f"HOME is not set for COPY in {source}"
    if posixpath.normpath(source).startswith(".."):
        # BuildKit removes the `..`, and takes the rest as a path below the context.
        below = [part for part in parts if part != ".."]
        is_there = bool(below) and below[0] in place.project.names
        return "" if is_there else f"{source} is outside of the build context"
    host = re.match(r"^/(home|Users|mnt|root)/\S", source)
    if host is not None and host[1] not in place.project.names:
        return f"{source} is read as a path below the build context"
    return ""


def _is_excluded(source: str, patterns: list[str]) -> bool:
    path = posixpath.normpath(source).lstrip("/")
    if path in ("", ".") or re.search(r"[*?\[$]", path) or not is_ignored(path, patterns):
        return False
    # An exception may bring back a part of the folder.
    exceptions = [line.strip()[1:].strip("/") for line in patterns if line.strip().startswith("!")]
    return not any(one.startswith((f"{path}/", "*")) for one in exceptions)


def stage_not_used(place: Place) -> Iterator[Finding]:
    stages, stage = place.docker.stages, place.stage
    if place.is_last or not any(step.word == "RUN" for step in stage.instructions):
        return
    # A name of its own may be a target of `docker build --target`, unless it is one that says: build.
    if stage.name is not None and not re.search(r"build|compil|deps|dependenc|install", stage.name):
        return
    later = stages[stage.number + 1 :]
    if any("$" in one.base for one in later) or any(_takes(one, stage) for one in later):
        return
    shown = f"{stage.name or 'without a name'}"
    yield UNUSED.found(
        place,
        stage.origin,
        f"stage {stage.number} ({shown}) is not used: FROM on line {later[0].origin.first} starts afresh, "
        "and nothing is copied from it",
        f"FROM {stage.base_written}",
        "give it a name, and begin with it or COPY --from it; or remove it",
    )


def _takes(other: Stage, stage: Stage) -> bool:
    names = {str(stage.number), stage.name}
    if other.parent == stage.number:
        return True
    for step in other.instructions:
        mounts = re.findall(r"\bfrom=([^,\s]+)", " ".join(step.flags))
        if any(one.lower() in names or "$" in one for one in mounts):
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


def arguments_of_pip(place: Place) -> Iterator[Finding]:
    for by in [one for one in place.pip if id(one.instruction) in place.own_steps]:
        yield from _without_value(place, by)
        file = next((one for one in by.command.texts if _is_lost_file(by, one)), None)
        if file is not None:
            yield NOT_A_PACKAGE.found(
                place,
                by.instruction,
                f"{file} is a file, and without -r pip looks for a package of that name: "
                "`No matching distribution found`",
                " ".join(by.command.texts[:8]),
                f"write `-r {file}`",
            )


def _is_lost_file(by: PipInstall, word: str) -> bool:
    asked = [one.text for one in by.asked]
    is_sync = "sync" in [one.text for one in by.command.words[:4]]
    return not is_sync and word in asked and "://" not in word and _FILE.search(word) is not None


def _without_value(place: Place, by: PipInstall) -> Iterator[Finding]:
    words = [word for word in by.command.words if word.start > by.program[-1].start]
    if by.instruction.is_json:
        return
    taken = False
    for word, behind in zip(words, [*words[1:], None], strict=True):
        kind = _MUST_HAVE_VALUE.get(word.text)
        if taken or kind is None:
            taken = False
            continue
        taken = True
        if behind is not None and (not re.match(r"^-.", behind.text)):
            continue
        # pip only warns of a page of links that it cannot read.
        is_warning = kind == "find-links" and by.tool == "pip" and behind is not None
        shown = "nothing follows" if behind is None else f"takes `{behind.text}` as its value"
        yield OPTION.found(
            place,
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
