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

    def pick(self, choices: tuple[str, ...]) -> str:
        return choices[self.number() % len(choices)]

    def number(self) -> int:
        if not self._drawn:
            self._drawn = self._generator.integers(0, 1 << 30, size=4096).tolist()
        return self._drawn.pop()


def toy_text(seed: int, length: int) -> str:
    """So many characters of sentences; the same for the same seed."""
    rng = _Rng(seed)
    parts = list[str]()
    size = 0
    while size < length:
        parts.append(_sentence(rng))
        size += len(parts[-1])
    return "".join(parts)[:length]


def _sentence(rng: _Rng) -> str:
    plural = rng.number() % 2 == 0
    noun = rng.pick(_NOUNS)
    verb = rng.pick(_VERBS)
    subject = f"the {rng.pick(_ADJECTIVES)} {noun}{'s' * plural}"
    other = f"{rng.pick(('a', 'the', 'every'))} {rng.pick(_NOUNS)}"
    match rng.number() % 3:
        case 0:
            return f"{_opened(subject)} {_agreeing(verb, plural)} {other}.\n"
        case 1:
            return f"{_opened(subject)} {_agreeing(verb, plural)} {other} {rng.pick(_PLACES)}.\n"
        case _:
            auxiliary = "Do" if plural else "Does"
            they = "they" if plural else "it"
            answer = rng.pick(("Yes", "No"))
            refusal = "" if answer == "Yes" else " not"
            return f"{auxiliary} {subject} {verb} {other}? {answer}, {they} {auxiliary.lower()}{refusal}.\n"


def _opened(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


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
        message = f"charlm reads UTF-8 text, but {file!r} is not UTF-8: byte {error.start} is invalid"
        hint = f"if it is a text, convert it first: iconv -f LATIN1 -t UTF-8 {shlex.quote(file)} > input.txt"
        raise problem(message, hint) from error
    if "\0" in text:
        message = (
            f"charlm reads text, but {file!r} is binary: byte {len(text.partition(chr(0))[0].encode())} is 0"
        )
        raise problem(message, f"name a text file: {_COMMAND}")
    return text


def check_length(name: str, length: int, context: int) -> None:
    fewest = 10 * (context + 1)  # so that a tenth holds one window
    if length >= fewest:
        return
    fits = length // 10 - 1
    less = f"use a shorter context: --task-option context={fits}" if fits > 0 else "try the toy text: " + TOY
    if not length:
        raise problem(f"{name} is empty, so charlm has no data to train on", f"name a text file, or {less}")
    message = f"{name} has {length} characters, but a context of {context} needs {fewest} or more"
    raise problem(message, f"name a longer file, or {less}")


def problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])
