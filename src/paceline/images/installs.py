"""What do the commands of a stage install? Python packages by pip or uv, system packages by apt or apk."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.images.dockerfile import Instruction
from paceline.images.requirements import Asked, read_asked
from paceline.images.shell import Command, Word, substituted
from paceline.images.text import line_at

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
    ]
}
_PIP = re.compile(r"^(?:.*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"^(?:.*/)?python(?:3(?:\.\d+)?)?$")
_APT_VALUES = {"-o", "-t", "-c", "--target-release", "--option"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipInstall:
    instruction: Instruction
    command: Command
    program: tuple[Word, ...]  # `pip`, `python3 -m pip`, `uv pip`
    behind: int  # where a further option may be put: behind the word `install`
    end: int  # where a further package may be put: behind the last word
    options: Mapping[str, tuple[str, ...]]
    flags: frozenset[str]
    asked: tuple[Asked, ...]

    @property
    def is_uv(self) -> bool:
        return self.program[0].text.endswith("uv")

    def values(self, *names: str) -> list[str]:
        return [value for name in names for value in self.options.get(name, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInstall:
    instruction: Instruction
    tool: str  # apt, apk or dnf
    packages: tuple[Word, ...]
    end: int  # behind the last package


def pip_installs(path: str, text: str, step: Instruction, values: Mapping[str, str]) -> list[PipInstall]:
    found = []
    for command in step.commands:
        begins = _pip_words(command.texts)
        if begins is not None:
            found.append(_pip_install(path, text, step, values, command, begins))
    return found


def _pip_words(words: tuple[str, ...]) -> tuple[int, int] | None:
    """Where the program begins and how many words it takes up to and with `install`."""
    for at, word in enumerate(words):
        behind = words[at + 1 :]
        if word.endswith("uv") and behind[:2] == ("pip", "install"):
            return at, 3
        if _PIP.match(word) and "install" in behind[:4]:
            return at, behind.index("install") + 2
        if _PYTHON.match(word) and behind[:2] == ("-m", "pip") and "install" in behind[2:5]:
            return at, behind.index("install") + 2
    return None


def _pip_install(
    path: str,
    text: str,
    step: Instruction,
    values: Mapping[str, str],
    command: Command,
    begins: tuple[int, int],
) -> PipInstall:
    at, count = begins
    options: dict[str, tuple[str, ...]] = {}
    flags: set[str] = set()
    asked: list[Asked] = []
    rest = list(command.words[at + count :])
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.text.partition("=")
        if word.text.startswith("-") and name in _WITH_VALUE:
            said = value if is_joined else (rest.pop(0).text if rest else "")
            key = _WITH_VALUE[name].removesuffix("s") if name.startswith("--re") else _WITH_VALUE[name]
            options[key] = (*options.get(key, ()), substituted(said, values))
        elif word.text.startswith("-"):
            flags.add(word.text)
        elif not re.match(r"^\d?[<>]", word.text):
            found = _asked(path, text, word, values)
            asked += [found] if found is not None else []
    install = command.words[at + count - 1]
    return PipInstall(
        instruction=step,
        command=command,
        program=command.words[at : at + count - 1],
        behind=install.end,
        end=command.words[-1].end,
        options=options,
        flags=frozenset(flags),
        asked=tuple(asked),
    )


def _asked(path: str, text: str, word: Word, values: Mapping[str, str]) -> Asked | None:
    said = substituted(word.text, values)
    line = line_at(text, word.start)
    return read_asked(said, path, word.start, word.end, line, is_literal=said == word.text)


def system_installs(step: Instruction) -> list[SystemInstall]:
    found = []
    for command in step.commands:
        words = command.texts
        for tool, verb in (("apt-get", "install"), ("apt", "install"), ("apk", "add"), ("dnf", "install")):
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
