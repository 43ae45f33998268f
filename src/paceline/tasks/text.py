"""Text of charlm: any file or a built-in toy text, and the numbers of its characters."""

import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError, Problem, TaskDataError

# There is something to learn at every distance: spelling within words, which word
# may follow which, whether subject and verb agree, and that a question is
# answered about the thing it asked for.

_NOUNS = (
    "worker",
    "server",
    "gradient",
    "river",
    "teacher",
    "garden",
    "letter",
    "winter",
    "captain",
    "lantern",
)
_ADJECTIVES = ("slow", "quick", "silent", "golden", "honest", "heavy", "narrow", "early")
_VERBS = ("carry", "follow", "answer", "remember", "gather", "admire", "mention", "borrow")
_PLACES = ("in the morning", "behind the hill", "at the harbour", "without a word", "for the others")


class _Rng:
    """Choices from one seeded generator, drawn in bulk because one at a time is slow."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng((seed, 0x7E47))
        self._drawn: list[int] = []

    def pick(self, words: tuple[str, ...]) -> str:
        return words[self.number() % len(words)]

    def number(self) -> int:
        if not self._drawn:
            self._drawn = self._generator.integers(0, 1 << 30, size=4096).tolist()
        return self._drawn.pop()


def toy_text(seed: int, length: int) -> str:
    """So many characters of sentences; the same for the same seed."""
    dice = _Rng(seed)
    parts = list[str]()
    size = 0
    while size < length:
        parts.append(_sentence(dice))
        size += len(parts[-1])
    return "".join(parts)[:length]


def _sentence(dice: _Rng) -> str:
    plural = dice.number() % 2 == 0
    noun = dice.pick(_NOUNS)
    verb = dice.pick(_VERBS)
    subject = f"the {dice.pick(_ADJECTIVES)} {noun}{'s' * plural}"
    other = f"{dice.pick(('a', 'the', 'every'))} {dice.pick(_NOUNS)}"
    match dice.number() % 3:
        case 0:
            return f"{_opened(subject)} {_agreeing(verb, plural)} {other}.\n"
        case 1:
            return f"{_opened(subject)} {_agreeing(verb, plural)} {other} {dice.pick(_PLACES)}.\n"
        case _:
            asked = "Do" if plural else "Does"
            they = "they" if plural else "it"
            answer = dice.pick(("Yes", "No"))
            refusal = "" if answer == "Yes" else " not"
            return f"{asked} {subject} {verb} {other}? {answer}, {they} {asked.lower()}{refusal}.\n"


def _opened(words: str) -> str:
    return words[0].upper() + words[1:]


def _agreeing(verb: str, plural: bool) -> str:
    if plural:
        return verb
    return f"{verb[:-1]}ies" if verb[-1] == "y" and verb[-2] not in "aeiou" else f"{verb}s"


TOY_CHARACTERS = 1 << 16
TOY = "paceline train --task charlm"
PART = "text"  # of a data set in shards
CODE = "code"
_COMMAND = f"{TOY} --task-option file=input.txt"


def text_of(seed: int, file: str | None) -> str:
    return toy_text(seed, TOY_CHARACTERS) if file is None else read_text(file)


def encode(text: str) -> tuple[NDArray[np.int64], str]:
    """The text as numbers, and the characters in the order of these numbers."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    known, codes = np.unique(points, return_inverse=True)
    return codes.astype(np.int64), "".join(map(chr, known.tolist()))


def read_text(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise problem(f"charlm cannot read {file!r}: {why}", f"name a text file: {_COMMAND}") from error
    except UnicodeDecodeError as error:
        what = f"charlm reads UTF-8 text, but {file!r} is none: byte {error.start} is no part of a character"
        hint = f"if it is a text, convert it first: iconv -f LATIN1 -t UTF-8 {shlex.quote(file)} > input.txt"
        raise problem(what, hint) from error
    if "\0" in text:
        what = f"charlm reads text, but {file!r} is none: byte {len(text.partition(chr(0))[0].encode())} is 0"
        raise problem(what, f"name a text file: {_COMMAND}")
    return text


def check_length(name: str, length: int, context: int) -> None:
    fewest = 10 * (context + 1)  # so that a tenth holds one window
    if length >= fewest:
        return
    fits = length // 10 - 1
    less = f"look back less far: --task-option context={fits}" if fits > 0 else "try the toy text: " + TOY
    if not length:
        raise problem(f"charlm has nothing to learn from: {name} is empty", f"name a text file, or {less}")
    what = f"{name} has {length} characters, but a context of {context} takes {fewest} or more"
    raise problem(what, f"name a longer file, or {less}")


def problem(what: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(what, hint)])
