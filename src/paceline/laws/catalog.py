"""Which laws are there, and which of them speak of a given mode?"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.laws import (
    adaptive,
    asynchronous,
    bounded,
    coders,
    compressed,
    elastic,
    evaluated,
    federated,
    gossip,
    harness,
    local,
    outer,
    pairs,
    performance,
    processes,
    robust,
    spare,
    stale,
    synchronous,
    universal,
)
from paceline.laws.law import Law
from paceline.plan.catalog import MODES

LAWS: tuple[Law, ...] = (
    *universal.LAWS,
    *synchronous.LAWS,
    *spare.LAWS,
    *asynchronous.LAWS,
    *bounded.LAWS,
    *stale.LAWS,
    *local.LAWS,
    *outer.LAWS,
    *robust.LAWS,
    *harness.LAWS,
    *evaluated.LAWS,
    *elastic.LAWS,
    *federated.LAWS,
    *coders.LAWS,
    *compressed.LAWS,
    *gossip.LAWS,
    *pairs.LAWS,
    *adaptive.LAWS,
    *performance.LAWS,
    *processes.LAWS,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One law, to be checked for one mode."""

    id: str
    mode: str
    law: Law
    subject: str | None = None  # the mode on trial, where it is another one that is like `mode`


def cases(mode: str | None) -> Iterator[Case]:
    """The laws of one mode, or of all; what needs processes comes last."""
    for law in sorted(LAWS, key=lambda law: law.starts_processes):
        for one in law.modes if law.per_mode else law.modes[:1]:
            if mode in (None, one):
                yield Case(f"{law.id}.{one}" if law.per_mode else law.id, one, law)
        for other in MODES.values():  # a mode that is meant to be like another one obeys its laws
            if other.like in (law.modes if law.per_mode else law.modes[:1]) and mode in (None, other.name):
                yield Case(f"{law.id}.{other.name}", other.like, law, subject=other.name)
