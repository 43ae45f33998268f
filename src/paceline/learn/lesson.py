"""What is a part of the exercise made of? A prediction, something to do, findings, and questions."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.learn.facts import Facts


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must have been done or seen; where it was not, `hint` says what to do."""

    ok: bool
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The right answer is this number, as exactly as what the learner saw allows."""

    value: float
    give: float


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """The right answer is this option."""

    key: str


Answer = Near | One
Options = tuple[tuple[str, str], ...]  # key, text; none: a number is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Asked before anything is run. It cannot be wrong: it is only set beside what was seen."""

    text: str
    seen: Callable[[Facts], str]  # raises NotSeenError
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Asked after; the right answer is read from the learner's own runs."""

    text: str
    right: Callable[[Facts], Answer]  # raises NotSeenError
    hint: str  # where to look, not what is there
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    title: str
    minutes: int
    page: str  # of docs/learn
    see: str  # what there will be to see
    prediction: Prediction
    runs: tuple[str, ...]  # names of the runs that it looks at
    new_runs: tuple[str, ...]  # those that are made here, after the prediction
    check: Callable[[Facts], list[Finding]]  # raises NotSeenError
    questions: tuple[Question, ...]
    moral: str  # one sentence to take home
    has_rules: bool = False  # the learner writes rules here, which are tried on the runs
    is_compared: bool = False  # a comparison is made here, after the prediction
