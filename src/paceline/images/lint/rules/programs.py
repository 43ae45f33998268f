"""Rules about programs that a step calls and the image does not have (30, 37).

A program is judged only on the official images whose content is known, and only while every earlier step is
understood: a script, a copy from another stage or an unknown system package may bring any program.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.dockerfile import Command, Instruction, commands_in
from paceline.images.lint.installs import conditional_commands, system_installs
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

NO_PROGRAM = Pattern(
    number=30,
    id="no-such-program",
    what="A program is called where no step has installed it: pip, python, git, curl, make, sudo, bash.",
    fix="only reported: the package that has it",
)
WRONG_MANAGER = Pattern(
    number=30,
    id="wrong-package-manager",
    what="The package manager of another system is called: apt-get on Alpine, yum on Debian.",
    fix="only reported: the package manager of the base",
)
NO_GPU = Pattern(
    number=37,
    id="no-gpu-in-build",
    what="A build step needs a GPU: `docker build` provides no GPU and no `nvidia-smi`.",
    fix="only reported: run it when the container starts",
)
NO_USER = Pattern(
    number=37,
    id="no-such-user",
    what="USER names a user that neither the base nor a step has created.",
    fix="only reported: `useradd` before it",
)
NO_VENV = Pattern(
    number=37,
    id="uv-without-environment",
    what="`uv pip install` without a virtual environment and without `--system`.",
    fix="only reported: `--system`, or `uv venv` before it",
)
PATTERNS = (NO_PROGRAM, WRONG_MANAGER, NO_GPU, NO_USER, NO_VENV)

_PLAIN = ("debian", "ubuntu", "cuda")
_FAMILIES = (*_PLAIN, "python")
_BUILD = frozenset({"build-essential", "build-base"})


class _Source(NamedTuple):
    """The system packages that bring a program, and whether the full images of python have it."""

    packages: frozenset[str]
    is_in_full_python: bool = False


def _of(*packages: str, full: bool = False) -> _Source:
    return _Source(frozenset(packages), full)


_PROGRAMS = {
    "git": _of("git", "git-lfs", "git-core", "git-all", "git-man", "devscripts", "gitk", full=True),
    "curl": _of("curl", full=True),
    "wget": _of("wget", "wget2", full=True),
    "unzip": _of("unzip", "zip", "p7zip-full", "r-base", full=True),
    "sudo": _of("sudo"),
    "gcc": _of("gcc", "g++", "dkms", *_BUILD, full=True),
    "g++": _of("g++", "dkms", *_BUILD, full=True),
    "make": _of("make", "cmake", "dpkg-dev", "dkms", "automake", "autoconf", *_BUILD, full=True),
    "cmake": _of("cmake", "cmake-data", "extra-cmake-modules"),
    "aria2c": _of("aria2"),
    "jq": _of("jq"),
    "rsync": _of("rsync"),
    "ffmpeg": _of("ffmpeg"),
    "add-apt-repository": _of("software-properties-common", "python-software-properties"),
    "npm": _of("npm", "nodejs", "yarnpkg"),
    "node": _of("nodejs", "npm", "node"),
}
# Packages that install none of the programs above, by dependencies or recommendations.
_BRINGS_NOTHING = re.compile(
    r"^(?:lib[\w.+-]+|python3?[\w.+-]*|fonts-[\w-]+|zlib1g[\w-]*|ca-certificates|vim[\w-]*|nano|less|tmux|screen|htop"
    r"|curl|wget|git|git-lfs|git-core|unzip|zip|bzip2|xz-utils|tar|gzip|sudo|gcc|g\+\+|make|cmake|jq|aria2|rsync"
    r"|tzdata|locales|procps|gnupg2?|gpg|dirmngr|net-tools|iputils-ping|iproute2|lsb-release|pkg-config"
    r"|ninja-build|openssh-(?:client|server)|apt-transport-https|apt-utils|ffmpeg|tree|swig|nasm|yasm"
    r"|openjdk-[\w-]+|default-j\w+|build-essential|pkgconf|gdb|strace|file|psmisc|locales-all|espeak[\w-]*|sox"
    r"|tesseract-[\w-]+|poppler-utils|graphviz|patchelf|ccache|bash|coreutils|x11-[\w-]+|xvfb|mesa-utils"
    r"|numactl|pciutils|kmod|hwloc|openmpi-bin|parallel|pigz|p7zip|nginx|supervisor|cron|netcat[\w-]*|dumb-init|tini)$"
)
_BY_RECOMMENDATION = {"gcc": "python3-pip", "g++": "python3-pip", "make": "python3-pip"}
_WRAPPERS = frozenset({"exec", "time", "nice", "nohup", "env", "command", "!", "then", "do", "else"})
_SHELL_WORDS = frozenset({"if", "for", "while", "until", "case", "[", "[[", "test", "function", "{"})
_OPAQUE = re.compile(
    r"(?:^|/)(?:conda|mamba|micromamba|pixi|spack|nix|nix-env|brew|dpkg|snap|linuxbrew)$|\.(?:sh|run|deb|bin)$|^<<"
)


def no_such_program(view: StageView) -> Iterator[Finding]:
    if view.base.family not in _FAMILIES or view.base.system == "alpine" or not view.are_packages_known:
        return
    installed: set[str] = set()
    reported: set[str] = set()
    with_recommended = False
    for step in view.steps:
        if _may_bring_programs(step):
            return
        conditional = conditional_commands(step)
        for command in step.commands:
            program = program_of(command)
            is_mine = (
                id(step) in view.own_steps and id(command) not in conditional and "||" not in step.values[0]
            )
            if program in _PROGRAMS and is_mine and program not in reported:
                reported.add(program)
                yield from _missing(view, step, command, installed, with_recommended=with_recommended)
            if _is_opaque(command):
                return
            installed |= _installed_by(step, command)
            with_recommended |= _takes_recommended(command)


def _missing(
    view: StageView, step: Instruction, command: Command, installed: set[str], *, with_recommended: bool
) -> Iterator[Finding]:
    program = program_of(command)
    source = _PROGRAMS[program]
    base = view.base
    is_full = base.family == "python" and not base.is_slim
    is_devel = base.flavour == "devel" and program in ("gcc", "g++", "make")
    by_recommendation = with_recommended and _BY_RECOMMENDATION.get(program) in installed
    if installed & source.packages or (is_full and source.is_in_full_python) or is_devel or by_recommendation:
        return
    is_certain = all(_BRINGS_NOTHING.match(name) for name in installed)
    yield NO_PROGRAM.finding(
        view,
        step,
        f"{base.reference} has no {program}, and no step before this one installs it: `{program}: not found`",
        f"{' '.join(command.texts[:5])}; system packages: {', '.join(sorted(installed)) or 'none'}",
        f"install {min(source.packages, key=lambda name: (name != program, name))} before it",
        level=Level.PROBLEM if is_certain else Level.WARNING,
    )


def _may_bring_programs(step: Instruction) -> bool:
    """A copy into the folders of programs; that of uv brings uv alone."""
    if step.word not in ("COPY", "ADD") or not step.values:
        return False
    goal = step.values[-1]
    if step.flag("from") is not None:
        return not all(re.search(r"/uvx?$", value) for value in step.values[:-1])
    return goal == "/" or re.match(r"^/(?:usr|bin|sbin|opt)(?:/|$)", goal) is not None or step.word == "ADD"


def _is_opaque(command: Command) -> bool:
    argv = command.texts
    pipes_into_shell = argv[0].rpartition("/")[2] in ("bash", "sh", "dash")
    makes_links = argv[0] in ("ln", "cp", "mv", "install", "update-alternatives", "tar", "alias")
    builds = argv[:2] in (("make", "install"), ("ninja", "install"), ("cmake", "--install"))
    by_pip = "install" in argv and any(
        word.partition("=")[0] in ("cmake", "nodeenv", "ninja") for word in argv
    )
    return pipes_into_shell or makes_links or builds or by_pip or any(_OPAQUE.search(word) for word in argv)


def _installed_by(step: Instruction, command: Command) -> set[str]:
    if not any(word.rpartition("/")[2] in ("apt-get", "apt", "aptitude") for word in command.texts):
        return set()
    single = Instruction(
        word=step.word, flags=(), values=step.values, first=step.first, last=step.last, commands=(command,)
    )
    names = [word.text for install in system_installs(single) for word in install.packages]
    return {name.partition("=")[0].partition(":")[0] for name in names}


def _takes_recommended(command: Command) -> bool:
    argv = command.texts
    return "install" in argv and not any("no-install-recommends" in word.lower() for word in argv)


def program_of(command: Command) -> str:
    """The first word that is neither an assignment nor a wrapper; "" for the shell's own words."""
    for word in command.texts:
        if re.match(r"^\w+=", word) or word in _WRAPPERS:
            continue
        return "" if word in _SHELL_WORDS else word
    return ""


def unhealthy(view: StageView) -> Iterator[Finding]:
    """HEALTHCHECK calls curl or wget, which the image does not have: the container never becomes healthy."""
    base = view.base
    if base.family not in _FAMILIES or not base.is_slim or not view.is_last or not view.are_packages_known:
        return
    if any(_may_bring_programs(step) or any(map(_is_opaque, step.commands)) for step in view.steps):
        return
    installed = view.system_packages
    for step in view.stage.instructions:
        called = (
            re.search(r"(?:^|\s)(curl|wget)\s", " ".join(step.values)) if step.word == "HEALTHCHECK" else None
        )
        if called is None or installed & _PROGRAMS[called[1]].packages:
            continue
        yield NO_PROGRAM.finding(
            view,
            step,
            f"{base.reference} has no {called[1]}, and no step installs it: the container does not become "
            "healthy",
            f"HEALTHCHECK {' '.join(step.values)}"[:120],
            f"install {called[1]}, or check with Python",
            level=Level.PROBLEM if all(_BRINGS_NOTHING.match(name) for name in installed) else Level.WARNING,
        )


def no_pip(view: StageView) -> Iterator[Finding]:
    """pip and python on plain Debian, Ubuntu and CUDA images, which have neither."""
    if (
        view.base.family not in ("debian", "ubuntu", "cuda")
        or not view.are_packages_known
        or view.has_own_python
    ):
        return
    if any(step.word in ("COPY", "ADD") and step.flag("from") is not None for step in view.steps):
        return
    installed = view.system_packages
    if any(
        package.startswith(("python3-", "python3.", "pypy")) and "pip" in package for package in installed
    ):
        return
    installers = re.compile(
        r"get-pip|ensurepip|virtualenv|pyenv|miniforge|pixi|\.sh$|\.run$|Python-3|make|configure|venv|pipx|uv$"
    )
    if any(installers.search(word) for word in view.words) or installed & {
        "python3-pip",
        "python3-full",
        "pip",
    }:
        return
    if any(install.tool != "apt" for install in view.system) or "PATH" in view.variables:
        return
    own = [by for by in view.pip if by.instruction in view.stage.instructions and by.tool == "pip"]
    if not own or own[0].instruction.is_json or "/" in own[0].program[0].text:
        return
    by = own[0]
    yield NO_PROGRAM.finding(
        view,
        by.instruction,
        f"{view.base.reference} has no pip, and no step installs it: `{by.program[0].text}: not found`",
        f"{' '.join(by.command.texts[:4])}; system packages: {', '.join(sorted(installed)) or 'none'}",
        "install python3-pip before it",
    )


def no_python(view: StageView) -> Iterator[Finding]:
    """`python` on Debian and Ubuntu, whose packages of Python 3 have `python3` alone."""
    if view.base.family not in _PLAIN or not view.are_packages_known or view.has_conda:
        return
    if re.search(r"ubuntu1|debian(?:8|9|10)$", view.base.system) or not view.base.system:
        return
    if any(re.match(r"^python(?:2|$|-is|-\w+$|2\.\d)", package) for package in view.system_packages):
        return
    if "PATH" in view.variables or any(_may_bring_programs(step) for step in view.steps):
        return
    brings = re.compile(
        r"update-alternatives|/python$|alias|venv|pyenv|\.sh$|\.run$|^uv$|pixi|Python-\d|altinstall|deadsnakes|^make$"
        r"|activate|bashrc|\.deb$|^nix|python=|^snap$"
    )
    if any(brings.search(word) for word in view.words):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        commands = [command for command in commands_of(step) if id(command) not in conditional]
        if step.values and "||" in step.values[0]:
            continue
        called = next((command for command in commands if program_of(command) == "python"), None)
        if called is not None and (step.word == "RUN" or view.is_last):
            yield NO_PROGRAM.finding(
                view,
                step,
                f"{view.base.reference} has `python3` and no `python`: `python: not found`",
                " ".join(called.texts[:5]),
                "call python3, or install python-is-python3",
            )
            return


def other_python(view: StageView) -> Iterator[Finding]:
    """`python3.10`, called or linked, where the system has another Python and no step installs that one."""
    base = view.base
    if base.family not in _FAMILIES or base.python is None or view.has_conda or not view.are_packages_known:
        return
    brings = re.compile(
        r"pyenv|Python-3|deadsnakes|altinstall|^uv$|pixi|\.deb$|\.tgz$|virtualenv|python-build"
    )
    if any(_may_bring_programs(step) for step in view.steps) or any(brings.search(w) for w in view.words):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        if step.values and "||" in step.values[0]:
            continue
        for command in [command for command in commands_of(step) if id(command) not in conditional]:
            links = command.texts[0] in ("ln", "update-alternatives")
            named = command.texts[1:] if links else (program_of(command),)
            matches = [
                re.fullmatch(r"(?:/usr(?:/local)?/bin/)?(?:python|pip)(3\.\d+)", word) for word in named
            ]
            missing = next(
                (match for match in matches if match is not None and match[1] != base.python), None
            )
            if missing is None or any(f"python{missing[1]}" in package for package in view.system_packages):
                continue
            if links and named.index(missing[0]) == len(named) - 1 and command.texts[0] == "ln":
                continue  # the name of the link
            yield NO_PROGRAM.finding(
                view,
                step,
                f"{base.reference} has Python {base.python}, and no step installs {missing[1]}: "
                f"`{missing[0]}: not found`",
                " ".join(command.texts[:5]),
                f"use python{base.python}, or install python{missing[1]}",
            )
            return


def commands_of(step: Instruction) -> list[Command]:
    """The commands of RUN, CMD and ENTRYPOINT."""
    if step.word == "RUN":
        return list(step.commands)
    if step.word not in ("CMD", "ENTRYPOINT") or not step.values:
        return []
    text = " ".join(step.values)
    return commands_in(text, 0, len(text))


_MANAGERS = {"apt-get": "apt", "apt": "apt", "apk": "apk", "yum": "rpm", "dnf": "rpm", "microdnf": "rpm"}
_MANAGER_OF_SYSTEM = re.compile(r"^(?:(alpine)|(debian|ubuntu)|(centos|rhel|amazon))")


def wrong_package_manager(view: StageView) -> Iterator[Finding]:
    match = _MANAGER_OF_SYSTEM.match(view.base.system)
    if match is None and view.base.family not in ("pytorch", "python"):
        return
    manager = "apt"
    if match and match[1]:
        manager = "apk"
    elif match and match[3]:
        manager = "rpm"
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = [word for word in command.texts if word != "sudo"]
            needed = _MANAGERS.get(argv[0]) if argv else None
            if needed in (None, manager) or id(command) in conditional or "||" in step.values[0]:
                continue
            if argv[0] in view.system_packages:
                continue
            yield WRONG_MANAGER.finding(
                view,
                step,
                f"{view.base.reference} has no {argv[0]}: `{argv[0]}: not found`",
                " ".join(command.texts[:5]),
                {"apt": "use apt-get", "apk": "use apk", "rpm": "use dnf or yum"}[manager],
            )
            return


def _argv(step: Instruction) -> list[str]:
    return [word for command in step.commands for word in command.texts]


def no_gpu_in_build(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        if (
            step.word != "RUN"
            or "||" in " ".join(step.values)
            or any("security" in flag for flag in step.flags)
        ):
            continue
        for command in step.commands:
            line = " ".join(command.texts)
            asserts = re.search(
                r"assert\s+torch\.cuda\.is_available\(\)|torch\.cuda\.get_device_\w+\(|\.cuda\(\)", line
            )
            runs = program_of(command) == "nvidia-smi"
            if (runs or (asserts and "-c" in command.texts)) and id(command) not in conditional:
                yield NO_GPU.finding(
                    view,
                    step,
                    "`docker build` provides no GPU and no driver: the command fails",
                    line[:100],
                    "run it when the container starts, with --gpus all",
                )
                break


# Users of the official images; a number needs no entry.
_KNOWN_USERS = frozenset(
    [
        "root",
        "daemon",
        "bin",
        "sys",
        "sync",
        "games",
        "man",
        "lp",
        "mail",
        "news",
        "uucp",
        "proxy",
        "www-data",
        "backup",
        "list",
        "irc",
        "gnats",
        "nobody",
        "_apt",
    ]
)


def no_such_user(view: StageView) -> Iterator[Finding]:
    if view.base.family not in (*_FAMILIES, "pytorch") or view.base.system == "alpine":
        return
    if any(
        step.word in ("COPY", "ADD") and re.search(r"/etc", step.values[-1])
        for step in view.steps
        if step.values
    ):
        return
    if re.search(r"useradd|adduser|usermod|newusers|/etc/passwd|\.sh\b", " ".join(view.words)):
        return
    for step in view.stage.instructions:
        name = step.values[0].partition(":")[0] if step.word == "USER" and step.values else ""
        if not name or name.isdigit() or "$" in name or name in _KNOWN_USERS:
            continue
        if name == "ubuntu" and view.base.family in ("ubuntu", "cuda"):
            continue
        if any(package in name or name in package for package in view.system_packages):
            continue  # a service creates its own user
        yield NO_USER.finding(
            view,
            step,
            f"{view.base.reference} has no user {name}, and no step creates it: `unable to find user`",
            f"USER {step.values[0]}",
            f"add `RUN useradd --create-home {name}` before it",
        )
        return


def uv_without_environment(view: StageView) -> Iterator[Finding]:
    if view.base.family not in _FAMILIES or view.has_conda:
        return
    if view.variables.keys() & {
        "VIRTUAL_ENV",
        "UV_SYSTEM_PYTHON",
        "UV_PYTHON",
        "UV_PROJECT_ENVIRONMENT",
        "CONDA_PREFIX",
    }:
        return
    if any(step.word == "COPY" and re.search(r"venv|uv\.toml", " ".join(step.values)) for step in view.steps):
        return
    for by in view.commands_of_pip:
        if by.tool != "uv" or by.flags & {"--system", "--break-system-packages"}:
            continue
        if by.values("target", "prefix", "python", "root") or by.instruction.is_json:
            continue
        values = view.environment(by)
        if values.keys() & {"VIRTUAL_ENV", "UV_SYSTEM_PYTHON", "UV_PYTHON"}:
            continue
        before = [step for step in view.steps if step.first <= by.instruction.first]
        argv = [word for step in before for word in _argv(step)]
        if any(re.search(r"^venv$|virtualenv|activate|^sync$|\.sh$|^init$|^run$", word) for word in argv):
            continue
        yield NO_VENV.finding(
            view,
            by.instruction,
            "uv installs into a virtual environment, and there is none: `No virtual environment found`",
            " ".join(by.command.texts[:6]),
            "add --system, or run `uv venv` before it",
        )
        return


RULES = (
    wrong_package_manager,
    no_such_program,
    no_pip,
    no_python,
    other_python,
    unhealthy,
    no_gpu_in_build,
    no_such_user,
    uv_without_environment,
)
