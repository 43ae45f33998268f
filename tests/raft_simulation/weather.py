"""Fault rates: a climate bounds what may go wrong, and each seed draws its own weather from it.

Ordinary seeds draw the climate as well. Each climate exposes some mistakes:
what shows in one of them may never show in another.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

SMALLEST = 1  # append_bytes: every entry travels alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    climate: str
    nodes: int  # voters at the beginning; two more stand by
    drop: float  # of messages
    duplicate: float
    reorder: float  # of messages: overtake any number of others
    late: float  # of messages: held back for up to `latest` events
    latest: int
    crash: float  # per event
    partition: float
    strike: float  # how soon a leader is cut off or crashed: 1 is within 30 events, 0 never
    stall: float  # how fast the clock of a struck leader still runs
    change: float  # membership changes, transfers and compactions, per event
    election: int  # ticks; few of them make many elections
    append_bytes: int  # few of them make one message of each entry
    slow_disk: float  # how often a sync takes a while
    asks: float  # by clients, per event
    reads: float  # of what clients ask
    paces: tuple[float, ...]  # of clocks

    def cleared(self) -> "Weather":
        """The same cluster on a fine day."""
        return replace(
            self,
            drop=0.0,
            duplicate=0.0,
            reorder=0.0,
            late=0.0,
            crash=0.0,
            partition=0.0,
            strike=0.0,
            change=0.0,
            election=10,
            append_bytes=1 << 20,
            slow_disk=0.0,
            asks=0.0,
        )


_ORDINARY: Mapping[str, Sequence[object]] = {
    "nodes": (3, 3, 5),
    "drop": (0.0, 0.02, 0.1, 0.25),
    "duplicate": (0.0, 0.05),
    "reorder": (0.0, 0.1, 0.3),
    "late": (0.0, 0.0, 0.02),
    "latest": (300,),
    "crash": (0.0, 0.002, 0.01, 0.03),
    "partition": (0.0, 0.004, 0.015),
    "strike": (0.0, 0.0, 0.1),
    "stall": (1.0, 0.2),
    "change": (0.0, 0.005, 0.03),
    "election": (10, 5, 3),
    "append_bytes": (1 << 20, 1 << 20, SMALLEST),
    "slow_disk": (0.0, 0.2, 0.7),
    "asks": (0.05,),
    "reads": (0.4,),
    "paces": ((0.15, 0.7, 1.0, 1.0, 1.4),),
}

CLIMATES: Mapping[str, Mapping[str, Sequence[object]]] = {
    "changeable": {},
    # New leaders are lost with entries that few others have, and come back (paper figure 8).
    "figure eight": {
        "paces": ((0.7, 1.0, 1.4),),
        "nodes": (3,),
        "drop": (0.0, 0.02),
        "crash": (0.0, 0.002),
        "partition": (0.0,),
        "strike": (0.2, 0.5, 1.0),
        "change": (0.0,),
        "election": (3, 5),
        "append_bytes": (SMALLEST,),
        "slow_disk": (0.0, 0.2),
    },
    # Leaders are cut off from all nodes but not from their clients, and their clocks are slow.
    "lonely leaders": {
        "nodes": (3, 3, 5),
        "drop": (0.0, 0.02),
        "crash": (0.0,),
        "partition": (0.0, 0.01),
        "strike": (0.1, 0.3),
        "stall": (0.05,),
        "change": (0.0, 0.005),
        "election": (3, 5),
        "slow_disk": (0.0, 0.2),
        "asks": (0.03, 0.08),
        "paces": ((0.7, 1.0, 1.4),),
    },
    # What was said in one term arrives in another, at a node that leads again and is lost again.
    "late post": {
        "nodes": (3, 3, 5),
        "drop": (0.0, 0.05),
        "duplicate": (0.1, 0.3),
        "late": (0.02, 0.1),
        "latest": (600,),
        "crash": (0.0,),
        "partition": (0.0,),
        "strike": (0.1, 0.3),
        "stall": (0.05,),
        "change": (0.0,),
        "election": (3,),
        "slow_disk": (0.0, 0.2),
        "asks": (0.15,),
        "reads": (0.6,),
        "paces": ((0.7, 1.0, 1.4),),
    },
    # Logs are thrown away as soon as they are applied, while messages overtake each other.
    "spring cleaning": {
        "reorder": (0.3,),
        "crash": (0.0, 0.01),
        "partition": (0.0,),
        "strike": (0.0,),
        "change": (0.08,),
    },
    # Who takes part changes all the time, while leaders come and go.
    "moving house": {
        "crash": (0.0, 0.01),
        "partition": (0.004, 0.015),
        "strike": (0.1, 0.5),
        "change": (0.03, 0.08),
        "election": (3, 5),
    },
    # A cluster of one or two that grows and shrinks.
    "small beginnings": {
        "nodes": (1, 1, 2),
        "drop": (0.0, 0.1),
        "crash": (0.01, 0.04),
        "partition": (0.0, 0.015),
        "change": (0.03, 0.08),
        "election": (3, 5),
        "slow_disk": (0.2, 0.7),
    },
    # Nothing is ever down for long, and no disk is ever done.
    "power cuts": {
        "crash": (0.01, 0.04),
        "partition": (0.0, 0.004),
        "slow_disk": (0.5, 0.9),
        "append_bytes": (1 << 20, SMALLEST),
    },
}


def draw(rng: random.Random, climate: str | None = None) -> Weather:
    """The same seed gives the same weather; a climate that is not given is drawn, too."""
    climate = climate or rng.choice(sorted(CLIMATES))
    ranges = {**_ORDINARY, **CLIMATES[climate]}
    drawn = {name: rng.choice(choices) for name, choices in ranges.items()}
    return Weather(climate=climate, **drawn)  # type: ignore[arg-type]  # each field's choices are of its type
