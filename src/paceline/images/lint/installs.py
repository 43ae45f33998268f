"""The packages that a stage's commands install: Python's by pip, uv or poetry, the system's by apt or apk."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name

from paceline.images.lint.dependency_files import PackageSpec, read_spec
from paceline.images.lint.dockerfile import Command, Instruction, Word, substituted
from paceline.images.lint.project import line_at

# Options of `pip install` that take an argument; the others are flags.
_WITH_VALUE = {
    "-r": "requirement",
    "-c": "constraint",
    "-e": "editable",
    "-i": "index-url",
    "-f": "find-links",
    "-t": "target",
    "-p": "python",
} | {
    f"--{name}": name
    for name in [
        "requirement",
        "requirements",
        "constraint",
        "constraints",
        "editable",
        "index-url",
        "extra-index-url",
        "find-links",
        "target",
        "prefix",
        "root",
        "python",
        "cache-dir",
        "only-binary",
        "no-binary",
        "trusted-host",
        "timeout",
        "retries",
        "platform",
        "index",
        "default-index",
        "index-strategy",
        "torch-backend",
        "config-settings",
        "progress-bar",
        "upgrade-package",
        "cert",
        "global-option",
        "implementation",
        "abi",
        "python-version",
        "upgrade-strategy",
        "build-constraint",
        "proxy",
        "src",
        "log",
        "no-build-isolation-package",
        "reinstall-package",
        "refresh-package",
        "exclude-newer",
        "link-mode",
        "keyring-provider",
        "override",
        "overrides",
        "resolution",
        "prerelease",
        "python-platform",
        "config-setting",
        "extra",
        "group",
        "extras",
    ]
}
# Commands that install what a project's own files name. Their words are options, never packages.
_SYNC = {
    "uv": ("sync",),
    "poetry": ("install", "sync"),
    "pdm": ("install", "sync"),
    "pipenv": ("install", "sync"),
}
_PIP = re.compile(r"^(?:.*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"^(?:.*/)?python(?:3(?:\.\d+)?)?$")
_UV = re.compile(r"^(?:.*/)?uv$")
_SYSTEM_TOOLS = (
    ("apt-get", "install"),
    ("apt", "install"),
    ("apk", "add"),
    ("dnf", "install"),
    ("yum", "install"),
    ("microdnf", "install"),
)
_APT_VALUES = {"-o", "-t", "-c", "--target-release", "--option"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipInstall:
    instruction: Instruction
    command: Command
    tool: str  # pip, uv (for `uv pip`), or one that installs a project: uv sync, poetry, pdm, pipenv
    program: tuple[Word, ...]  # `pip`, `python3 -m pip`, `uv pip`
    behind: int  # position for a further option: after the word `install`
    end: int  # position for a further package: after the last word
    options: Mapping[str, tuple[str, ...]]
    flags: frozenset[str]
    specs: tuple[PackageSpec, ...]
    is_conditional: bool = False  # inside of if, case or a loop, or behind a test: it may not run

    @property
    def is_uv(self) -> bool:
        return self.program[0].text.endswith("uv")

    @property
    def is_pip(self) -> bool:
        """pip, or uv in pip's place: it installs what the command and its requirement files name."""
        return self.tool in ("pip", "uv")

    @property
    def is_editable(self) -> bool:
        """Whether its words have positions in the text, and a further one may be inserted."""
        return self.is_pip and not self.instruction.is_json

    def values(self, *names: str) -> list[str]:
        return [value for name in names for value in self.options.get(name, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInstall:
    instruction: Instruction
    tool: str  # apt, apk or dnf
    packages: tuple[Word, ...]
    end: int  # behind the last package


@dataclass(frozen=True, slots=True)
class Removal:
    """`pip uninstall`: removes packages installed before, by the base or by a step."""

    instruction: Instruction
    names: frozenset[str]


def pip_installs(path: str, text: str, step: Instruction, values: Mapping[str, str]) -> list[PipInstall]:
    """The commands of pip and uv pip alone."""
    installed = [install for install in installs(path, text, step, values) if isinstance(install, PipInstall)]
    return [install for install in installed if install.is_pip]


def installs(
    path: str, text: str, step: Instruction, values: Mapping[str, str]
) -> list[PipInstall | Removal]:
    """Everything that installs or removes Python packages, in order."""
    installed: list[PipInstall | Removal] = []
    conditional = conditional_commands(step)
    for command in step.commands:
        begins = _locate_pip(command.texts)
        removed = _removed(command.texts)
        if begins is not None:
            install = _pip_install(path, text, step, values, command, begins)
            installed.append(replace(install, is_conditional=id(command) in conditional))
        elif removed:
            installed.append(Removal(step, removed))
    return installed


def conditional_commands(step: Instruction) -> set[int]:
    """The ids of commands that a step may leave out, by the shell's words around them."""
    ids: set[int] = set()
    depth = 0
    is_tested = False
    for command in step.commands:
        first = command.texts[0]
        if first in ("if", "case", "for", "while", "until"):
            depth += 1
        if depth > 0 or is_tested:
            ids.add(id(command))
        if first in ("fi", "esac", "done") or command.texts[-1] in ("fi", "esac", "done"):
            depth = max(depth - 1, 0)
        is_tested = first in ("[", "[[", "test") or (is_tested and depth == 0)
    return ids


def _removed(argv: tuple[str, ...]) -> frozenset[str]:
    if "uninstall" not in argv or not any(_PIP.match(word) for word in argv[: argv.index("uninstall")]):
        return frozenset()
    behind = argv[argv.index("uninstall") + 1 :]
    return frozenset(str(canonicalize_name(word)) for word in behind if not word.startswith("-"))


def _locate_pip(argv: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Start of the program, number of words up to and including its verb, and the tool."""
    for at, word in enumerate(argv):
        behind = argv[at + 1 :]
        if _UV.match(word) and behind[:2] in (("pip", "install"), ("pip", "sync")):
            return at, 3, "uv"
        if _PIP.match(word) and "install" in behind[:4]:
            return at, behind.index("install") + 2, "pip"
        if _PYTHON.match(word) and behind[:2] == ("-m", "pip") and "install" in behind[2:5]:
            return at, behind.index("install") + 2, "pip"
        tool = word.rpartition("/")[2]
        if tool in _SYNC and behind[:1] and behind[0] in _SYNC[tool]:
            return at, 2, f"{tool} {behind[0]}" if tool == "uv" else tool
    return None


def _pip_install(
    path: str,
    text: str,
    step: Instruction,
    values: Mapping[str, str],
    command: Command,
    begins: tuple[int, int, str],
) -> PipInstall:
    at, count, tool = begins
    options: dict[str, tuple[str, ...]] = {}
    flags: set[str] = set()
    specs: list[PackageSpec] = []
    is_sync = command.words[at + count - 1].text == "sync"
    rest = list(command.words[at + count :])
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.text.partition("=")
        short = word.text[:2]
        if word.text.startswith("-") and name in _WITH_VALUE:
            raw = value
            if not is_joined and rest:
                raw = rest.pop(0).text
            key = _WITH_VALUE[name].removesuffix("s") if name.startswith("--re") else _WITH_VALUE[name]
            options[key] = (*options.get(key, ()), substituted(raw, values))
        elif short in ("-r", "-c") and len(word.text) > 2:  # -rrequirements.txt
            key = _WITH_VALUE[short]
            options[key] = (*options.get(key, ()), substituted(word.text[2:], values))
        elif word.text.startswith("-"):
            flags.add(word.text)
        elif re.match(r"^\d?[<>]", word.text):
            if word.text in ("<", ">", ">>", "2>") and rest:
                rest.pop(0)
        elif is_sync and tool == "uv":
            options["requirement"] = (*options.get("requirement", ()), substituted(word.text, values))
        elif tool in ("pip", "uv"):
            spec = _spec(path, text, word, values, is_json=step.is_json)
            specs += [spec] if spec is not None else []
    install = command.words[at + count - 1]
    return PipInstall(
        instruction=step,
        command=command,
        tool=tool,
        program=command.words[at : at + count - 1],
        behind=install.end,
        end=command.words[-1].end,
        options=options,
        flags=frozenset(flags),
        specs=tuple(specs),
    )


def _spec(
    path: str, text: str, word: Word, values: Mapping[str, str], *, is_json: bool
) -> PackageSpec | None:
    """The package that the program receives: the shell removes the text after an unquoted < or >."""
    written = word.text[: word.redirect]
    requirement = substituted(written, values)
    line = line_at(text, word.start)
    is_literal = requirement == word.text and not is_json
    return read_spec(requirement, path, word.start, word.end, line, is_literal=is_literal)


def system_installs(step: Instruction) -> list[SystemInstall]:
    installed = []
    for command in step.commands:
        argv = command.texts
        for tool, verb in _SYSTEM_TOOLS:
            if verb in argv and tool in argv[: argv.index(verb)]:
                behind = command.words[argv.index(verb) + 1 :]
                packages = _packages(behind)
                end = packages[-1].end if packages else command.words[-1].end
                name = tool.removesuffix("-get")
                installed.append(SystemInstall(instruction=step, tool=name, packages=packages, end=end))
                break
    return installed


def _packages(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    kept = []
    skips = False
    for word in argv:
        if skips:
            skips = False
        elif word.text in _APT_VALUES:
            skips = True
        elif not word.text.startswith("-") and not re.match(r"^\d?[<>]", word.text):
            kept.append(word)
    return tuple(kept)
