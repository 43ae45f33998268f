"""Rules about how a container starts: ENTRYPOINT with CMD, SHELL, the options of a launcher (38)."""

import re
from collections.abc import Iterator
from itertools import pairwise

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.programs import NO_PROGRAM
from paceline.images.lint.view import StageView

IGNORED = Pattern(
    number=38,
    id="cmd-ignored",
    what="CMD has arguments for an ENTRYPOINT that does not receive them: the shell form drops them.",
    fix="only reported: ENTRYPOINT as a JSON array",
)
DOUBLED = Pattern(
    number=38,
    id="program-twice",
    what="ENTRYPOINT and CMD both name the program: CMD is its argument, `python python train.py`.",
    fix="only reported: the program in one of them",
)
NO_SHELL = Pattern(
    number=38,
    id="shell-instruction",
    what="SHELL is not a JSON array, or lacks `-c`: the shell interprets the text of RUN as a file name.",
    fix='only reported: `SHELL ["/bin/bash", "-c"]`',
)
FLAG = Pattern(
    number=33,
    id="unknown-flag",
    what="An instruction has a flag that BuildKit does not support: the build fails before it starts.",
    fix="only reported: the flag that is meant",
)
LAUNCHER = Pattern(
    number=38,
    id="launcher-option",
    what="An option of torchrun or deepspeed that takes a number gets the script as its value, or no number.",
    fix="only reported: the number",
)
PATTERNS = (IGNORED, DOUBLED, NO_SHELL, FLAG, LAUNCHER)
_LAUNCHERS = re.compile(r"^(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|uv|bash|conda|poetry)$")
_NUMBERS = re.compile(
    r"^--?(?:nproc[_-]per[_-]node|nnodes|node[_-]rank|master[_-]port|num[_-]processes|num[_-]gpus|num[_-]machines"
    r"|machine[_-]rank|main[_-]process[_-]port|max[_-]restarts)$"
)
_FLAGS = {
    "RUN": frozenset({"mount", "network", "security", "device"}),
    "COPY": frozenset({"from", "chown", "chmod", "link", "parents", "exclude"}),
    "ADD": frozenset({"chown", "chmod", "link", "keep-git-dir", "checksum", "exclude", "unpack"}),
    "FROM": frozenset({"platform"}),
    "HEALTHCHECK": frozenset({"interval", "timeout", "start-period", "start-interval", "retries"}),
}
_WITHOUT_FLAGS = frozenset({"WORKDIR", "ENV", "USER", "ENTRYPOINT", "EXPOSE", "VOLUME", "LABEL"})


def last_start(view: StageView) -> dict[str, Instruction]:
    """The ENTRYPOINT and the CMD that count: the last; an ENTRYPOINT resets the CMD of earlier stages."""
    instructions: dict[str, Instruction] = {}
    for stage in view.docker.chain(view.stage):
        own = {step.word: step for step in stage.instructions if step.word in ("CMD", "ENTRYPOINT")}
        if "ENTRYPOINT" in own:
            instructions.pop("CMD", None)
        instructions |= own
    return instructions


def argv_of(step: Instruction) -> list[str]:
    if step.is_json:
        return list(step.values)
    return step.values[0].split() if step.values else []


def entrypoint_and_cmd(view: StageView) -> Iterator[Finding]:
    if not view.is_last:
        return
    steps = last_start(view)
    entry = steps.get("ENTRYPOINT")
    cmd = steps.get("CMD")
    if entry is None or cmd is None or not entry.values or not cmd.values:
        return
    if id(entry) not in view.own_steps and id(cmd) not in view.own_steps:
        return
    shown = f"ENTRYPOINT {' '.join(entry.values)}; CMD {' '.join(cmd.values)}"[:160]
    if not entry.is_json:
        uses_them = re.search(r"\$[@*1]|\$\{[@*1]", entry.values[0]) is not None
        has_options = cmd.values[0].startswith("-")
        if not uses_them and not entry.values[0].lstrip().startswith("["):
            yield IGNORED.finding(
                view,
                cmd,
                "an ENTRYPOINT in shell form receives no arguments: CMD is ignored",
                shown,
                "write ENTRYPOINT as a JSON array, or put the arguments into it",
                level=Level.PROBLEM if has_options else Level.WARNING,
            )
        return
    first = argv_of(cmd)
    program = first[0].rpartition("/")[2]
    last = entry.values[-1].rpartition("/")[2]
    if cmd.is_json and program == last and _LAUNCHERS.match(program) and program not in ("bash", "conda"):
        yield DOUBLED.finding(
            view,
            cmd,
            f"CMD is appended to ENTRYPOINT: {last} would run a file named {first[0]}",
            shown,
            f"leave {first[0]} out of CMD",
        )


def shell_instruction(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word != "SHELL":
            continue
        is_shell = bool(step.values) and re.search(r"(?:^|/)(?:ba|da|z)?sh$", step.values[0]) is not None
        takes_text = any(re.fullmatch(r"-[a-z]*c[a-z]*|--command", value) for value in step.values[1:])
        if step.is_json and (not is_shell or takes_text):
            continue
        why = (
            f"{step.values[0]} interprets the text of every RUN as a script name: `No such file or directory`"
            if step.is_json
            else "SHELL needs a JSON array: the build fails before it starts"
        )
        yield NO_SHELL.finding(
            view,
            step,
            why,
            f"SHELL {' '.join(step.values)}",
            'write SHELL ["/bin/bash", "-o", "pipefail", "-c"]',
        )


def unknown_flag(view: StageView) -> Iterator[Finding]:
    for step in [view.stage.origin, *view.stage.instructions]:
        known = frozenset() if step.word in _WITHOUT_FLAGS else _FLAGS.get(step.word)
        names = [flag.removeprefix("--").partition("=")[0] for flag in step.flags]
        bad = next((name for name in names if known is not None and name and name not in known), None)
        if bad is not None:
            yield FLAG.finding(
                view,
                step,
                f"{step.word} has no flag --{bad}: `unknown flag`",
                f"{step.word} {' '.join(step.flags)}",
                f"{step.word} supports {', '.join(f'--{flag}' for flag in sorted(known or ())) or 'none'}",
            )


def launcher_option(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word not in ("CMD", "ENTRYPOINT", "RUN"):
            continue
        argv = argv_of(step)
        launched = any(
            re.search(r"(?:^|/)(?:torchrun|deepspeed|accelerate)$|distributed\.(?:run|launch)$", w)
            for w in argv
        )
        for option, value in pairwise(argv) if launched else ():
            if _NUMBERS.match(option) and re.search(r"^-|\.py$", value):
                yield LAUNCHER.finding(
                    view,
                    step,
                    f"{option} needs a number, but gets `{value}`: the launcher rejects it, or has no script",
                    f"{step.word} {' '.join(argv)}"[:140],
                    f"write {option}=8, or the number of GPUs of a node",
                )
                break


# Programs that containers start with, and the system packages that have them.
_STARTED = {
    "mpirun": re.compile(r"mpi"),
    "mpiexec": re.compile(r"mpi"),
    "sshd": re.compile(r"openssh-server|^ssh$"),
    "tini": re.compile(r"^tini"),
    "dumb-init": re.compile(r"^dumb-init"),
    "gosu": re.compile(r"^gosu"),
    "supervisord": re.compile(r"^supervisor"),
    "numactl": re.compile(r"^numactl"),
}


def start_program_missing(view: StageView) -> Iterator[Finding]:
    """The first program of ENTRYPOINT or CMD comes from a system package that no step installs."""
    if not view.is_last or view.base.family not in ("python", "debian", "ubuntu", "cuda", "pytorch"):
        return
    steps = last_start(view)
    step = steps.get("ENTRYPOINT") or steps.get("CMD")
    argv = [] if step is None else argv_of(step)
    name = argv[0].rpartition("/")[2] if argv else ""
    pattern = _STARTED.get(name)
    if step is None or pattern is None or id(step) not in view.own_steps or view.has_conda:
        return
    values = [
        value
        for instruction in view.steps
        if instruction is not step
        for value in (*instruction.values, *instruction.flags)
    ]
    named = any(
        re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in values if "CMD" not in text
    )
    installed = any(pattern.search(package) for package in view.system_packages)
    pip = any(pattern.search(package.spec.name) for package in view.installed)
    if named or installed or pip or not view.are_packages_known:
        return
    yield NO_PROGRAM.finding(
        view,
        step,
        f"no step installs {name}, which the container starts with: `{name}: not found`",
        f"{step.word} {' '.join(argv)}"[:120],
        f"install the system package that has {name}",
    )


RULES = (start_program_missing, entrypoint_and_cmd, shell_instruction, unknown_flag, launcher_option)
