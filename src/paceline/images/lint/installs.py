"""The packages that a stage's commands install: Python's by pip, uv or poetry, the system's by apt or apk."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name

from paceline.images.lint.dependency_files import Asked, read_asked
from paceline.images.lint.dockerfile import Command, Instruction, Word, substituted
from paceline.images.lint.project import line_at

# Options of `pip install` that take a word of their own; the others are flags.
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
    behind: int  # where a further option may be put: behind the word `install`
    end: int  # where a further package may be put: behind the last word
    options: Mapping[str, tuple[str, ...]]
    flags: frozenset[str]
    asked: tuple[Asked, ...]
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
        """Its words stand where the text has them, and a further one may be written beside them."""
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
    """`pip uninstall`: what was installed before, by the base or by a step, is gone."""

    instruction: Instruction
    names: frozenset[str]


def pip_installs(path: str, text: str, step: Instruction, values: Mapping[str, str]) -> list[PipInstall]:
    """The commands of pip and uv pip alone."""
    found = [one for one in installs(path, text, step, values) if isinstance(one, PipInstall)]
    return [one for one in found if one.is_pip]


def installs(
    path: str, text: str, step: Instruction, values: Mapping[str, str]
) -> list[PipInstall | Removal]:
    """Everything that installs or removes Python packages, in order."""
    found: list[PipInstall | Removal] = []
    conditional = conditional_commands(step)
    for command in step.commands:
        begins = _pip_words(command.texts)
        removed = _removed(command.texts)
        if begins is not None:
            one = _pip_install(path, text, step, values, command, begins)
            found.append(replace(one, is_conditional=id(command) in conditional))
        elif removed:
            found.append(Removal(step, removed))
    return found


def conditional_commands(step: Instruction) -> set[int]:
    """The ids of commands that a step may leave out, by the shell's words around them."""
    found: set[int] = set()
    depth, is_tested = 0, False
    for command in step.commands:
        first = command.texts[0]
        if first in ("if", "case", "for", "while", "until"):
            depth += 1
        if depth > 0 or is_tested:
            found.add(id(command))
        if first in ("fi", "esac", "done") or command.texts[-1] in ("fi", "esac", "done"):
            depth = max(depth - 1, 0)
        is_tested = first in ("[", "[[", "test") or (is_tested and depth == 0)
    return found


def _removed(words: tuple[str, ...]) -> frozenset[str]:
    if "uninstall" not in words or not any(_PIP.match(word) for word in words[: words.index("uninstall")]):
        return frozenset()
    behind = words[words.index("uninstall") + 1 :]
    return frozenset(str(canonicalize_name(word)) for word in behind if not word.startswith("-"))


def _pip_words(words: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Where the program begins, how many words it takes up to and with its verb, and which tool it is."""
    for at, word in enumerate(words):
        behind = words[at + 1 :]
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
    asked: list[Asked] = []
    is_sync = command.words[at + count - 1].text == "sync"
    rest = list(command.words[at + count :])
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.text.partition("=")
        short = word.text[:2]
        if word.text.startswith("-") and name in _WITH_VALUE:
            said = value if is_joined else (rest.pop(0).text if rest else "")
            key = _WITH_VALUE[name].removesuffix("s") if name.startswith("--re") else _WITH_VALUE[name]
            options[key] = (*options.get(key, ()), substituted(said, values))
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
            found = _asked(path, text, word, values, is_json=step.is_json)
            asked += [found] if found is not None else []
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
        asked=tuple(asked),
    )


def _asked(path: str, text: str, word: Word, values: Mapping[str, str], *, is_json: bool) -> Asked | None:
    """The package that the program gets to see: the shell takes what is behind an unquoted < or > away."""
    written = word.text[: word.redirect]
    said = substituted(written, values)
    line = line_at(text, word.start)
    is_literal = said == word.text and not is_json
    return read_asked(said, path, word.start, word.end, line, is_literal=is_literal)


def system_installs(step: Instruction) -> list[SystemInstall]:
    found = []
    for command in step.commands:
        words = command.texts
        for tool, verb in _SYSTEM_TOOLS:
            if verb in words and tool in words[: words.index(verb)]:
                behind = command.words[words.index(verb) + 1 :]
                packages = _packages(behind)
                end = packages[-1].end if packages else command.words[-1].end
                name = tool.removesuffix("-get")
                found.append(SystemInstall(instruction=step, tool=name, packages=packages, end=end))
                break
    return found


def _packages(words: tuple[Word, ...]) -> tuple[Word, ...]:
    kept, skips = [], False
    for word in words:
        if skips:
            skips = False
        elif word.text in _APT_VALUES:
            skips = True
        elif not word.text.startswith("-") and not re.match(r"^\d?[<>]", word.text):
            kept.append(word)
    return tuple(kept)
