"""What is a known failure, and what is a sign of one? The words that all rows of the table are written in."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from paceline.kube.diagnosis.snapshot import Object


class FailureClass(Enum):
    """Whose failure it is, and so who pays for another attempt."""

    CONFIG = "config"  # what was asked for cannot work: nobody pays, because it is not tried again
    INFRA = "infra"  # the cluster's: the infra budget
    APP = "app"  # the program's own: the app budget
    WAIT = "wait"  # none yet: the job waits for something that may come
    FIXABLE = "fixable"  # works with one change, if that was allowed
    NONE = "none"  # no failure of the job
    UNKNOWN = "unknown"  # something failed, and no rule knows it: treated like the program's own


class Remedy(Enum):
    STOP = "stop"  # remove the job, say why
    RESUBMIT = "resubmit"  # the whole gang again
    FIX = "fix"  # the whole gang again, with one change
    WAIT = "wait"
    REPEAT = "repeat"  # the same call to the API again; the job is not touched
    RECONNECT = "reconnect"
    NOTHING = "nothing"  # only say it


class Weight(IntEnum):
    """Which of several signs is the cause? The heaviest, and among these the earliest."""

    NOTE = 0  # seen, but stops nothing
    HINT = 1  # a warning or a handled exception: counts when a program failed and nothing else says why
    CONSEQUENCE = 2  # what survivors of another's death say
    WAITING = 3
    MASK = 4  # true, but hides a cause if one can be seen
    CAUSE = 5


class Doubt(Enum):
    """Whether words that fit also decide the action. If not, the job is neither retried nor removed.

    A wrong set-up shows before the first steps, and a fault of the cluster at any time. Progress before the
    words therefore tells two causes apart that are reported alike.
    """

    NONE = "none"
    UNTIL_PROGRESS = "until progress"  # they fit a wrong set-up as well, until the program has made progress
    AFTER_PROGRESS = "after progress"  # a wrong set-up, unless the program has made progress before
    ALWAYS = "always"  # they fit failures that need other actions


class Source(Enum):
    API = "api"
    CLUSTER = "cluster"  # events, conditions, states of containers
    LOG = "log"


EVERYWHERE = frozenset(Source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row of the table. `cause` and `command` have {places} for what a sign found out."""

    number: int
    name: str
    what: str
    kind: FailureClass
    cause: str
    why: str
    command: str
    remedy: Remedy
    weight: Weight = Weight.CAUSE
    patience_s: float | None = 0.0  # how long it is watched before acting; None: for as long as it takes
    observations: int = 1  # or seen this often, whichever comes first
    most: int | None = None  # attempts against this failure in all; None: as the budget says
    counted: bool = True  # whether another attempt costs something
    excludes_node: bool = False  # the next attempt stays away from the node
    change: str = ""  # what a fix changes, and the name under which it is allowed
    doubt: Doubt = Doubt.NONE


@dataclass(frozen=True, slots=True)
class Sign:
    """A failure was recognised: by what, where and when."""

    failure: Failure
    evidence: tuple[str, ...]
    at_s: float | None = None
    pod: Object = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    weight: Weight | None = None  # other than the failure's
    seen: int = 1
    is_doubtful: bool = False  # it names the cause, and does not decide the action

    @property
    def heaviness(self) -> Weight:
        return self.failure.weight if self.weight is None else self.weight


@dataclass(frozen=True, slots=True)
class Text:
    """Words by which a failure is recognised; named groups fill the {places}."""

    failure: Failure
    words: re.Pattern[str]
    sources: frozenset[Source] = EVERYWHERE
    # In a log, a warning may be survived: it counts only as the end of a program, or when nothing else does.
    soft: bool = False
    weight: Weight | None = None  # other than the failure's
    doubt: Doubt = Doubt.NONE
    choose: Callable[[Mapping[str, str]], Failure] | None = None  # the row, where the values found decide it


def text(
    failure: Failure,
    words: str,
    *sources: Source,
    soft: bool = False,
    weight: Weight | None = None,
    doubt: Doubt | None = None,
    choose: Callable[[Mapping[str, str]], Failure] | None = None,
) -> Text:
    pattern = re.compile(words, re.IGNORECASE | re.MULTILINE)
    doubted = failure.doubt if doubt is None else doubt
    return Text(failure, pattern, frozenset(sources) or EVERYWHERE, soft, weight, doubted, choose)
