"""Rules about how a container starts: ENTRYPOINT with CMD, SHELL, the options of a launcher (38)."""

import re
from collections.abc import Iterator
from itertools import pairwise

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.programs import NO_PROGRAM
from paceline.images.lint.view import Place

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
    what="SHELL is no JSON array, or lacks `-c`: the shell takes the text of RUN as the name of a file.",
    fix='only reported: `SHELL ["/bin/bash", "-c"]`',
)
FLAG = Pattern(
    number=33,
    id="unknown-flag",
    what="An instruction has a flag that BuildKit does not know: the build is refused before it begins.",
    fix="only reported: the flag that is meant",
)
LAUNCHER = Pattern(
    number=38,
    id="launcher-option",
    what="An option of torchrun or deepspeed that takes a number is given the script, or no number.",
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


def last_start(place: Place) -> dict[str, Instruction]:
    """The ENTRYPOINT and the CMD that count: the last; an ENTRYPOINT resets the CMD of earlier stages."""
    found: dict[str, Instruction] = {}
    for stage in place.docker.chain(place.stage):
        own = {step.word: step for step in stage.instructions if step.word in ("CMD", "ENTRYPOINT")}
        if "ENTRYPOINT" in own:
            found.pop("CMD", None)
        found |= own
    return found


def words_of(step: Instruction) -> list[str]:
    if step.is_json:
        return list(step.values)
    return step.values[0].split() if step.values else []


def entrypoint_and_cmd(place: Place) -> Iterator[Finding]:
    if not place.is_last:
        return
    steps = last_start(place)
    entry, cmd = steps.get("ENTRYPOINT"), steps.get("CMD")
    if entry is None or cmd is None or not entry.values or not cmd.values:
        return
    if id(entry) not in place.own_steps and id(cmd) not in place.own_steps:
        return
    shown = f"ENTRYPOINT {' '.join(entry.values)}; CMD {' '.join(cmd.values)}"[:160]
    if not entry.is_json:
        uses_them = re.search(r"\$[@*1]|\$\{[@*1]", entry.values[0]) is not None
        has_options = cmd.values[0].startswith("-")
        if not uses_them and not entry.values[0].lstrip().startswith("["):
            yield IGNORED.found(
                place,
                cmd,
                "an ENTRYPOINT in shell form receives no arguments: CMD is ignored",
                shown,
                "write ENTRYPOINT as a JSON array, or put the arguments into it",
                level=Level.PROBLEM if has_options else Level.WARNING,
            )
        return
    first = words_of(cmd)
    program, last = first[0].rpartition("/")[2], entry.values[-1].rpartition("/")[2]
    if cmd.is_json and program == last and _LAUNCHERS.match(program) and program not in ("bash", "conda"):
        yield DOUBLED.found(
            place,
            cmd,
            f"CMD is appended to ENTRYPOINT: {last} is asked to run a file named {first[0]}",
            shown,
            f"leave {first[0]} out of CMD",
        )


def shell_instruction(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        if step.word != "SHELL":
            continue
        is_shell = bool(step.values) and re.search(r"(?:^|/)(?:ba|da|z)?sh$", step.values[0]) is not None
        takes_text = any(re.fullmatch(r"-[a-z]*c[a-z]*|--command", value) for value in step.values[1:])
        if step.is_json and (not is_shell or takes_text):
            continue
        why = (
            f"{step.values[0]} takes the text of every RUN as the name of a script: `No such file or "
            "directory`"
            if step.is_json
            else "SHELL takes a JSON array: the build is refused before it begins"
        )
        yield NO_SHELL.found(
            place,
            step,
            why,
            f"SHELL {' '.join(step.values)}",
            'write SHELL ["/bin/bash", "-o", "pipefail", "-c"]',
        )


def unknown_flag(place: Place) -> Iterator[Finding]:
    for step in [place.stage.origin, *place.stage.instructions]:
        known = frozenset() if step.word in _WITHOUT_FLAGS else _FLAGS.get(step.word)
        names = [flag.removeprefix("--").partition("=")[0] for flag in step.flags]
        bad = next((name for name in names if known is not None and name and name not in known), None)
        if bad is not None:
            yield FLAG.found(
                place,
                step,
                f"{step.word} has no flag --{bad}: `unknown flag`",
                f"{step.word} {' '.join(step.flags)}",
                f"{step.word} takes {', '.join(f'--{one}' for one in sorted(known or ())) or 'none'}",
            )


def launcher_option(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        if step.word not in ("CMD", "ENTRYPOINT", "RUN"):
            continue
        words = words_of(step)
        launched = any(
            re.search(r"(?:^|/)(?:torchrun|deepspeed|accelerate)$|distributed\.(?:run|launch)$", w)
            for w in words
        )
        for option, value in pairwise(words) if launched else ():
            if _NUMBERS.match(option) and re.search(r"^-|\.py$", value):
                yield LAUNCHER.found(
                    place,
                    step,
                    f"{option} takes a number, and gets `{value}`: the launcher refuses it, or has no script",
                    f"{step.word} {' '.join(words)}"[:140],
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


def start_program_missing(place: Place) -> Iterator[Finding]:
    """The first program of ENTRYPOINT or CMD comes from a system package that no step installs."""
    if not place.is_last or place.base.family not in ("python", "debian", "ubuntu", "cuda", "pytorch"):
        return
    steps = last_start(place)
    step = steps.get("ENTRYPOINT") or steps.get("CMD")
    words = [] if step is None else words_of(step)
    name = words[0].rpartition("/")[2] if words else ""
    wanted = _STARTED.get(name)
    if step is None or wanted is None or id(step) not in place.own_steps or place.has_conda:
        return
    others = [value for one in place.steps if one is not step for value in (*one.values, *one.flags)]
    named = any(
        re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in others if "CMD" not in text
    )
    installed = any(wanted.search(package) for package in place.system_packages)
    pip = any(wanted.search(one.asked.name) for one in place.installed)
    if named or installed or pip or not place.are_packages_known:
        return
    yield NO_PROGRAM.found(
        place,
        step,
        f"no step installs {name}, which the container starts with: `{name}: not found`",
        f"{step.word} {' '.join(words)}"[:120],
        f"install the system package that has {name}",
    )


RULES = (start_program_missing, entrypoint_and_cmd, shell_instruction, unknown_flag, launcher_option)
