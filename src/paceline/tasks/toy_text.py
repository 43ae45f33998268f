"""A text to learn from when there is none: simple sentences by a small grammar, made from the seed.

There is something to learn at every distance: spelling within words, which word
may follow which, whether subject and verb agree, and that a question is
answered about the thing it asked for.
"""

import numpy as np

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


class _Dice:
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
    dice, parts, size = _Dice(seed), list[str](), 0
    while size < length:
        parts.append(_sentence(dice))
        size += len(parts[-1])
    return "".join(parts)[:length]


def _sentence(dice: _Dice) -> str:
    plural = dice.number() % 2 == 0
    noun, verb = dice.pick(_NOUNS), dice.pick(_VERBS)
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
