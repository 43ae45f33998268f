"""Search spaces: parses `--search lr=log:1e-3..1.0` into ranges and lists, and draws from them. Pure.

`KEY=LOW..HIGH` is a range, `KEY=log:LOW..HIGH` one whose orders of magnitude are equally likely, `KEY=A,B,C`
a list; values that hold commas are separated by `|`. Whole numbers stay whole. KEY is any setting of a run,
or `task_option.NAME`. Values are not validated here: every bound and every listed value goes through
`plan.resolve`, as if it had been given on the command line.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.values import (
    Raw,
    RawSetting,
    Unreadable,
    read_duration,
    read_integer,
    read_number,
    show_value,
)
from paceline.core.errors import Problem
from paceline.core.humanize import did_you_mean
from paceline.sync.rng import draw_u64, draw_uniform

OPTION = "task_option"  # prefix of a task's option
# Folder and launcher of a run are not searched: the search itself decides them.
NOT_SEARCHED = frozenset(
    {
        "name",
        "run_dir",
        "save_dir",
        "launcher",
        "address",
        "placement",
        "restarts",
        "export",
        "alerts",
        "metrics_port",
        "metrics_token_file",
        "gradient_norm_every",
        "checkpoint_store",
    }
)
_WHOLE = frozenset({Kind.INTEGER, Kind.BATCH_SIZE, Kind.STALENESS, Kind.STEPS_OR_EPOCH})
_RANGED = _WHOLE | {Kind.NUMBER, Kind.DURATION, Kind.OPTIONS}
_RANGE = re.compile(r"(log:)?\s*([^,|]*?[0-9a-z.])\s*\.\.\s*([^,|]+)", re.IGNORECASE)
_EXAMPLE = "write --search lr=log:0.001..1, --search batch_size=8..64 or --search mode=ssgd,localsgd"


@dataclass(frozen=True, slots=True)
class Listed:
    """One of these values, as given."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`, both included where they are whole."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    unit: str = ""  # `s` for a duration

    def text(self, number: float) -> str:
        """Short decimal text, never outside of the range."""
        if self.is_whole:
            return str(round(number))
        rounded = min(self.high, max(self.low, float(f"{number:.6g}")))
        return f"{rounded!r}{self.unit}"


Domain = Listed | Range


@dataclass(frozen=True, slots=True)
class Search:
    key: str
    option: str  # of the task; empty: a setting of the run
    domain: Domain

    @property
    def name(self) -> str:
        return f"{OPTION}.{self.option}" if self.option else self.key

    def setting(self, text: str) -> RawSetting:
        raw: Raw = {self.option: text} if self.option else text
        return RawSetting(key=self.key, raw=raw, where=f"--search {self.name}={text}")

    def ends(self) -> tuple[str, ...]:
        """Values to validate: every listed value, both ends of a range."""
        match self.domain:
            case Listed(values):
                return values
            case Range() as range_:
                return (range_.text(range_.low), range_.text(range_.high))


def read_searches(texts: Sequence[str]) -> tuple[tuple[Search, ...], list[Problem]]:
    """The searches that can be parsed, and the problems of the others."""
    by_name: dict[str, Search] = {}
    problems: list[Problem] = []
    for text in texts:
        try:
            search = _read(text)
        except _SearchSyntaxError as error:
            problems.append(error.problem)
            continue
        if search.name in by_name:
            message = f"{search.name} is searched twice"
            problems.append(Problem(message, "keep one of the two", f"--search {text}"))
        by_name[search.name] = search
    return tuple(by_name.values()), problems


class _SearchSyntaxError(Exception):
    def __init__(self, text: str, message: str, hint: str = _EXAMPLE) -> None:
        super().__init__(message)
        self.problem = Problem(message, hint, f"--search {text}")


def _read(text: str) -> Search:
    name, equals, rest = text.partition("=")
    name = name.strip().replace("-", "_")
    rest = rest.strip()
    if not equals or not name or not rest:
        raise _SearchSyntaxError(text, f"--search got {show_value(text)}, which is not KEY=VALUES")
    key, dot, option = name.partition(".")
    if key in (OPTION, "task_options"):
        if not option:
            raise _SearchSyntaxError(
                text, "task_option needs the name of an option", "write --search task_option.hidden=8,16"
            )
        return Search("task_options", option, _domain(text, rest, Kind.OPTIONS))
    if dot or key not in KEYS:
        known = [name for name in KEYS if name not in NOT_SEARCHED]
        where = f"`paceline train --help-all` lists all settings; an option of the task is {OPTION}.NAME"
        hint = did_you_mean(name, known, otherwise=where)
        raise _SearchSyntaxError(text, f"there is no setting {show_value(name)} to search", hint)
    if key in NOT_SEARCHED:
        raise _SearchSyntaxError(text, f"{key} cannot be searched: it sets where or how a run starts")
    return Search(key, "", _domain(text, rest, KEYS[key].kind))


def _domain(text: str, rest: str, kind: Kind) -> Domain:
    match = _RANGE.fullmatch(rest)
    if match is not None and kind in _RANGED:
        return _range(text, kind, is_log=match[1] is not None, ends=(match[2], match[3]))
    if rest.lower().startswith("log:"):
        raise _SearchSyntaxError(
            text, f"{show_value(rest)} is not a range of numbers", "write log:0.001..1, for example"
        )
    values = [part.strip() for part in rest.split("|" if "|" in rest else ",")]
    if "" in values:
        raise _SearchSyntaxError(text, f"{show_value(rest)} lists a value that is empty", "write KEY=A,B,C")
    if len(set(values)) < len(values):
        raise _SearchSyntaxError(text, f"{show_value(rest)} lists a value twice", "keep one of the two")
    return Listed(tuple(values))


def _range(text: str, kind: Kind, *, is_log: bool, ends: tuple[str, str]) -> Range:
    is_whole = kind in _WHOLE or (kind is Kind.OPTIONS and all(re.fullmatch(r"[+-]?\d+", e) for e in ends))
    parse: Callable[[str], float] = read_integer if is_whole else read_number
    if kind is Kind.DURATION:
        parse = read_duration
    try:
        low, high = (float(parse(end.strip())) for end in ends)
    except Unreadable as error:
        raise _SearchSyntaxError(text, f"an end of {'..'.join(ends)} cannot be read: {error.why}") from error
    if not low < high or not math.isfinite(high - low):
        raise _SearchSyntaxError(
            text, f"the range {'..'.join(ends)} is not increasing", "write the smaller number first"
        )
    if is_log and low <= 0:
        raise _SearchSyntaxError(
            text,
            f"a log range starts at {ends[0]}, but it must start above 0",
            "write log:0.001..1, for example",
        )
    return Range(low, high, is_log, is_whole, "s" if kind is Kind.DURATION else "")


# A space of listed values is enumerated: every combination once, in an order given by the seed. With a range,
# every trial draws from its own random stream, and repeated draws are skipped. So the first trials of a
# longer search are the trials of a shorter one.

Drawn = tuple[str, ...]  # a text for each search, in their order

MAX_CORNERS = 256
# Random streams of one seed.
_STREAM_LIST = 0
_STREAM_RANGE = 1
_MAX_COMBINATIONS = 100_000
_MAX_MISSES = 1000  # repeated draws in a row: the space is (almost) exhausted


def draws(searches: Sequence[Search], seed: int) -> Iterator[Drawn]:
    """Distinct draws; ends when the space is exhausted."""
    lists = [search.domain.values for search in searches if isinstance(search.domain, Listed)]
    size = math.prod(len(values) for values in lists)
    if len(lists) == len(searches) and size <= _MAX_COMBINATIONS:
        for index in sorted(range(size), key=lambda index: draw_u64(seed, _STREAM_LIST, index)):
            yield _combination(lists, index)
        return
    seen: set[Drawn] = set()
    misses = 0
    for number in itertools.count():
        drawn = tuple(
            value_at(search.domain, draw_uniform(seed, _STREAM_RANGE, number, position))
            for position, search in enumerate(searches)
        )
        misses = misses + 1 if drawn in seen else 0
        if misses > _MAX_MISSES:
            return
        if not misses:
            seen.add(drawn)
            yield drawn


def value_at(domain: Domain, share: float) -> str:
    """The value below which this share of all draws falls; `share` is in [0, 1)."""
    match domain:
        case Listed(values):
            return values[int(share * len(values))]
        case Range(low, high, is_log, is_whole):
            end = high + 1 if is_whole else high
            number = low * (end / low) ** share if is_log else low + (end - low) * share
            return domain.text(min(high, math.floor(number)) if is_whole else number)


def corners(searches: Sequence[Search]) -> list[Drawn]:
    """Combinations of ends and listed values: all, or, where these are too many, each value at least once."""
    ends = [search.ends() for search in searches]
    if math.prod(len(values) for values in ends) <= MAX_CORNERS:
        return list(itertools.product(*ends))
    most_values = max(len(values) for values in ends)
    rows = [tuple(values[min(n, len(values) - 1)] for values in ends) for n in range(most_values)]
    first = rows[0]
    alone = [
        (*first[:position], value, *first[position + 1 :])
        for position, values in enumerate(ends)
        for value in values
    ]
    return list(dict.fromkeys([*rows, *alone]))


def _combination(lists: Sequence[tuple[str, ...]], index: int) -> Drawn:
    drawn = []
    for values in lists:
        index, position = divmod(index, len(values))
        drawn.append(values[position])
    return tuple(drawn)
