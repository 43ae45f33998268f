"""Dockerfile parser: stages, instructions and shell commands, each with its place in the text.

BuildKit's own parser (package `dockerfile`) splits the file, so that here documents, flags and continued
lines are what a build takes them for. Only the values of ARG and ENV are substituted here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.errors import ConfigError, ImageOptionError, MissingPackageError, Problem
from paceline.images.lint.project import offset_of

# No shell is imitated: words, quotes, continued lines and what separates commands are all that is needed to
# find a `pip install` and to change one word of it.

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?([-+])([^}]*))?\}|(\w+))")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\r?\n)*")
_DROPPED_COMMENT = re.compile(r"(?<=\n)[ \t]*#[^\n]*\n")
_BREAKS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n")


class Word(NamedTuple):
    text: str  # without quotes, variables as written
    start: int
    end: int
    redirect: int | None = None  # index in `text` of an unquoted < or > inside the word


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


def commands_in(text: str, start: int, end: int) -> list[Command]:
    """The commands between two offsets of a text."""
    commands: list[Command] = []
    argv: list[Word] = []
    at = start
    while at < end:
        skipped = _blank(text, at, end)
        if skipped > at:
            at = skipped
            continue
        mark = next((mark for mark in _BREAKS if text.startswith(mark, at)), None)
        if mark is not None:
            if argv:
                commands.append(Command(tuple(argv)))
            argv = []
            at = at + len(mark)
        elif text[at] == "#":  # a comment of the shell's, in a here document
            stop = text.find("\n", at, end)
            at = end if stop < 0 else stop
        else:
            word = _word(text, at, end)
            argv.append(word)
            at = word.end
    return [*commands, Command(tuple(argv))] if argv else commands


def _blank(text: str, at: int, end: int) -> int:
    """Behind blanks and continued lines; comment lines between continued lines are dropped by Docker."""
    if text[at] in " \t\r":
        return at + 1
    continued = _CONTINUED.match(text, at, end)
    if continued is None:
        return at
    at = continued.end()
    comment = _DROPPED_COMMENT.match(text, at, end)
    while comment is not None:
        at = comment.end()
        comment = _DROPPED_COMMENT.match(text, at, end)
    return at


def _word(text: str, start: int, end: int) -> Word:
    taken: list[str] = []
    at = start
    depth = 0
    redirect: int | None = None
    while at < end:
        sign = text[at]
        if sign in "<>" and depth == 0 and redirect is None and not "".join(taken).isdigit() and taken:
            redirect = len("".join(taken))
        if depth == 0 and (sign in " \t\r\n;|()" or _CONTINUED.match(text, at, end)):
            break
        if depth == 0 and sign == "&" and (not taken or taken[-1] not in "<>"):
            break
        if sign in "'\"":
            stop = _closing(text, at, end)
            taken.append(text[at + 1 : stop])
            at = stop + 1
            continue
        if text.startswith("$(", at):
            depth += 1
            taken.append("$(")
            at += 2
            continue
        depth -= sign == ")"
        if sign == "\\" and at + 1 < end:
            at += 1
        taken.append(text[at])
        at += 1
    return Word("".join(taken), start, max(at, start + 1), redirect)


def _closing(text: str, start: int, end: int) -> int:
    quote = text[start]
    at = start + 1
    while at < end and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return min(at, end)


def substituted(text: str, values: Mapping[str, str]) -> str:
    """`$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}`; what is not known stays as it is written."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[4]
        known = values.get(name)
        match match[2]:
            case "-":
                return known or match[3]
            case "+":
                return match[3] if known else ""
            case _:
                return match[0] if known is None else known

    return _VARIABLE.sub(value, text)


_SHELL_PROGRAM = re.compile(r"(?:^|/)(?:ba|da|z|k)?sh$")
_RUNS_TEXT = re.compile(r"^-[a-z]*c$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    word: str  # in capitals: RUN, COPY, …
    flags: tuple[str, ...]
    values: tuple[str, ...]
    first: int
    last: int
    commands: tuple[Command, ...] = ()  # of RUN; in the exec form the words have no positions
    is_json: bool = False

    def flag(self, name: str) -> str | None:
        values = [flag.partition("=")[2] for flag in self.flags if flag.startswith(f"--{name}=")]
        return values[0] if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One FROM and what follows it. `parent` is the number of the stage that it begins with, if it does."""

    number: int
    name: str | None
    base: str  # with the values of ARG in it
    base_written: str
    parent: int | None
    origin: Instruction
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    path: str
    text: str
    stages: tuple[Stage, ...]
    arguments: tuple[Instruction, ...]  # ARGs before the first FROM

    def chain(self, stage: Stage) -> list[Stage]:
        """The stages that this one is built on, the first one first, and itself."""
        above = [] if stage.parent is None else self.chain(self.stages[stage.parent])
        return [*above, stage]

    def variables(self, stage: Stage, before_line: int | None = None) -> dict[str, str]:
        """Values of ARG and ENV in a stage, up to a line."""
        values: dict[str, str] = {}
        from_env: set[str] = set()
        outside = _defaults(self.arguments)
        for other_stage in self.chain(stage):
            for step in other_stage.instructions:
                if before_line is not None and other_stage is stage and step.first >= before_line:
                    break
                if step.word == "ARG":
                    for name, value in argument_values(step).items():
                        if name not in from_env:  # ENV always wins over ARG
                            values[name] = substituted(value or outside.get(name, ""), values)
                elif step.word == "ENV":
                    assigned = {name: substituted(v, values) for name, v in env_values(step).items()}
                    values |= assigned
                    from_env |= assigned.keys()
        return {name: value for name, value in values.items() if value}


def read_dockerfile(path: str, text: str) -> Dockerfile:
    instructions = _instructions(path, text)
    if not any(step.word == "FROM" for step in instructions):
        raise _unreadable(path, "there is no FROM in it")
    stages: list[Stage] = []
    before: list[Instruction] = []
    for step in instructions:
        if step.word == "FROM":
            stages.append(_stage(step, stages, _defaults(tuple(before))))
        elif stages:
            stages[-1].instructions.append(step)
        else:
            before.append(step)
    return Dockerfile(path=path, text=text, stages=tuple(stages), arguments=tuple(before))


def _instructions(path: str, text: str) -> list[Instruction]:
    try:
        import dockerfile
    except ImportError as missing:
        raise MissingPackageError(
            "Dockerfiles are read with the package `dockerfile`, which is not installed",
            "pip install 'paceline[image]'",
        ) from missing
    if "\0" in text:
        raise _unreadable(path, "there is a NUL character in it")  # the parser would stop there in silence
    try:
        parsed = dockerfile.parse_string(text.removeprefix("\ufeff"))
    except dockerfile.GoParseError as error:
        raise _unreadable(path, str(error)) from error
    return [_instruction(text, logical_line) for logical_line in parsed]


def _unreadable(path: str, reason: str) -> ConfigError:
    hint = "write a Dockerfile that `docker build` can read, or name another with --dockerfile"
    return ImageOptionError([Problem(f"{path} cannot be read: {reason}", hint, path)])


def _instruction(text: str, parsed: object) -> Instruction:
    word = parsed.cmd.upper()  # type: ignore[attr-defined]  # a C type
    first = parsed.start_line  # type: ignore[attr-defined]  # a C type
    last = parsed.end_line  # type: ignore[attr-defined]  # a C type
    is_json = parsed.json  # type: ignore[attr-defined]  # a C type
    flags = tuple(parsed.flags)  # type: ignore[attr-defined]  # a C type
    values = tuple(parsed.value)  # type: ignore[attr-defined]  # a C type
    commands: tuple[Command, ...] = ()
    if word == "RUN" and not is_json:
        start = offset_of(text, first)
        end = offset_of(text, last + 1)
        commands = _without_head(commands_in(text, start, end), len(flags))
    elif word == "RUN":
        commands = _exec_commands(values, offset_of(text, first))
    return Instruction(
        word=word, flags=flags, values=values, first=first, last=last, commands=commands, is_json=is_json
    )


def _exec_commands(values: tuple[str, ...], at: int) -> tuple[Command, ...]:
    """`["bash", "-c", "a && b"]` runs a script; any other exec form is one command without a shell."""
    is_script = len(values) >= 3 and _SHELL_PROGRAM.search(values[0]) and _RUNS_TEXT.match(values[1])
    if not is_script:
        return (Command(tuple(Word(value, at, at) for value in values)),) if values else ()
    script = values[2]
    return tuple(
        Command(tuple(word._replace(start=at, end=at) for word in command.words))
        for command in commands_in(script, 0, len(script))
    )


def _without_head(commands: list[Command], flags: int) -> tuple[Command, ...]:
    """Without the word RUN and its flags, which the parser has read already."""
    if not commands:
        return ()
    head = Command(commands[0].words[1 + flags :])
    return (*((head,) if head.words else ()), *commands[1:])


def _stage(origin: Instruction, earlier: list[Stage], values: dict[str, str]) -> Stage:
    written = origin.values[0] if origin.values else ""
    base = substituted(written, values)
    named = len(origin.values) >= 3 and origin.values[1].lower() == "as"
    same = [step.number for step in earlier if step.name is not None and step.name == base.lower()]
    return Stage(
        number=len(earlier),
        name=origin.values[2].lower() if named else None,
        base=base,
        base_written=written,
        parent=same[-1] if same else None,
        origin=origin,
    )


def _defaults(arguments: tuple[Instruction, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for instruction in arguments:
        if instruction.word == "ARG":
            for name, value in argument_values(instruction).items():
                values[name] = substituted(value, values)
    return {name: value for name, value in values.items() if value}


def argument_values(step: Instruction) -> dict[str, str]:
    """`ARG A=1 B` sets A to 1, and leaves B to the builder: empty here."""
    split = [pair.partition("=") for pair in step.values]
    return {name: unquoted(value) for name, _, value in split}


def env_values(step: Instruction) -> dict[str, str]:
    return {name: unquoted(v) for name, v in zip(step.values[::2], step.values[1::2], strict=False)}


def unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text
