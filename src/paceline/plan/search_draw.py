"""Which values does trial number n try? Drawn from the seed alone, so that nobody has to remember them. Pure.

A space of listed values is dealt out like a deck of cards: every combination
once, in an order that is the seed's. Where a range takes part, every trial has
its own dice, and what was drawn before is not drawn again. So the first trials
of a longer search are the trials of a shorter one.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from paceline.plan.search_space import Domain, Listed, Range, Search
from paceline.sync.dice import draw_u64, draw_uniform

Drawn = tuple[str, ...]  # a text for each search, in their order

MOST_CORNERS = 256
_DECK, _DICE = 0, 1  # two generators of one seed
_MOST_CARDS = 100_000
_MOST_MISSES = 1000  # draws in a row that were there before: the space has no others, or hardly any


def draws(searches: Sequence[Search], seed: int) -> Iterator[Drawn]:
    """All different; ends when there is nothing else to draw."""
    lists = [search.domain.values for search in searches if isinstance(search.domain, Listed)]
    size = math.prod(len(values) for values in lists)
    if len(lists) == len(searches) and size <= _MOST_CARDS:
        for card in sorted(range(size), key=lambda card: draw_u64(seed, _DECK, card)):
            yield _combination(lists, card)
        return
    seen: set[Drawn] = set()
    misses = 0
    for number in itertools.count():
        drawn = tuple(
            value_at(search.domain, draw_uniform(seed, _DICE, number, place))
            for place, search in enumerate(searches)
        )
        misses = misses + 1 if drawn in seen else 0
        if misses > _MOST_MISSES:
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
    if math.prod(len(values) for values in ends) <= MOST_CORNERS:
        return list(itertools.product(*ends))
    longest = max(len(values) for values in ends)
    rows = [tuple(values[min(n, len(values) - 1)] for values in ends) for n in range(longest)]
    first = rows[0]
    alone = [
        (*first[:place], value, *first[place + 1 :]) for place, values in enumerate(ends) for value in values
    ]
    return list(dict.fromkeys([*rows, *alone]))


def _combination(lists: Sequence[tuple[str, ...]], card: int) -> Drawn:
    drawn = []
    for values in lists:
        card, place = divmod(card, len(values))
        drawn.append(values[place])
    return tuple(drawn)
