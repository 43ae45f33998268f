"""How do so many bytes come from a store that may break off? Asked for again from there, later each time.

A try that brings bytes starts the count anew: a line that is bad but alive is
used as long as it takes. Only tries that bring nothing are counted.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from paceline.clock import Clock, SystemClock
from paceline.datasets.errors import (
    BrokenLineError,
    NoSuchFileError,
    no_data_set,
    no_index,
    no_ranges,
    no_shard,
    too_short,
    unreachable,
)
from paceline.datasets.index import INDEX, Block, Index, decode
from paceline.datasets.store import Store

T = TypeVar("T")
TRIES = 5
FIRST_WAIT_S = 0.25  # then twice as long each time: 3.75 s in all


def read_block(store: Store, block: Block, clock: Clock | None = None) -> bytes:
    """All bytes of the block, as they came; whether they are the right ones is for others to say."""
    pieces: list[bytes] = []
    missing = block.size
    while missing:
        start = block.start + block.size - missing
        try:
            piece = tried(store, partial(store.read, block.file, start, missing), clock)
        except NoSuchFileError as error:
            raise no_shard(store.url, block.file) from error
        if len(piece) > missing:
            raise no_ranges(store.url)
        if not piece:
            raise too_short(store.url, block.file, end=block.start + block.size)
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def read_index(store: Store, clock: Clock | None = None) -> Index:
    raw = b""
    try:
        while piece := tried(store, partial(store.read, INDEX, len(raw), None), clock):
            raw += piece
    except NoSuchFileError as error:
        raise no_data_set(store.url) from error
    try:
        return decode(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise no_index(store.url) from error


def tried(store: Store, ask: Callable[[], T], clock: Clock | None = None) -> T:
    """What it answers, though the line may break a few times."""
    clock = clock or SystemClock()
    for number in range(TRIES - 1):
        try:
            return ask()
        except BrokenLineError:
            clock.sleep(FIRST_WAIT_S * 2**number)
    try:
        return ask()
    except BrokenLineError as error:
        raise unreachable(store.url, error) from error
