"""In which way was each step of an elastic run of mode adaptive made, as far as it counts?

Workers say which way a generation begins with, and one of them says when it changes. What a generation
decided behind its last step that counts was decided by somebody who is gone, and never happened. So the
ways of a run are those of its lineage, and in a way with rounds a generation can only begin where a round
does. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.events.lineage import Stretch, lineage_of
from paceline.events.read import PlainEvent
from paceline.sync.setting import Way


@dataclass(frozen=True, slots=True)
class Stint:
    """From this moment on this worker made steps that count if they are in the range."""

    who: str
    from_ns: int
    steps: range


@dataclass(frozen=True, slots=True)
class Ways:
    switches: tuple[tuple[int, Way], ...]  # from which step on, in order; neighbours differ
    stints: tuple[Stint, ...]

    def is_whole(self, finished: int, *, every: int, total: int) -> bool:
        """Can a run have committed so many steps, or is that in the middle of a round?"""
        before = [(step, way) for step, way in self.switches if step < finished]
        if not before or before[-1][1] is not Way.LOCAL_STEPS:
            return True
        return finished == total or (finished - before[-1][0]) % every == 0

    def counts(self, who: str, start_ns: int, step: int) -> bool:
        """Is a step that this worker began then one that counts?"""
        mine = [stint for stint in self.stints if stint.who == who and stint.from_ns <= start_ns]
        return bool(mine) and step in max(mine, key=lambda stint: stint.from_ns).steps


def ways_of(events: Sequence[PlainEvent], steps: int) -> Ways:
    """Of a run that has so many steps in the end."""
    resumed = [(number, event) for number, event in enumerate(events) if event.kind == "run_resumed"]
    begins = [(0, 0), *((number, _int(event, "version")) for number, event in resumed)]
    ends = [*begins[1:], (len(events), steps)]
    said: list[tuple[int, Way]] = []
    stints: list[Stint] = []
    for (here, first), (there, end) in zip(begins, ends, strict=True):
        session = events[here:there]
        stretches = lineage_of(session, steps=end, first=first).stretches
        said += _said(session, stretches)
        stints += _stints(session, stretches)
    switches: list[tuple[int, Way]] = []
    for step, way in said:
        if not switches or switches[-1][1] is not way:
            switches.append((step, way))
    return Ways(tuple(switches), tuple(stints))


def _said(events: Sequence[PlainEvent], stretches: Sequence[Stretch]) -> Iterator[tuple[int, Way]]:
    for stretch in stretches:
        entered = (e for e in events if e.kind == "generation_entered" and _number(e) == stretch.generation)
        yield stretch.first, Way(str(next(entered).fields["way"]))
        decided = [e for e in events if e.kind == "adapted" and _number(e) == stretch.generation]
        for event in sorted(decided, key=lambda event: _int(event, "step")):
            if stretch.first < _int(event, "step") < stretch.end:
                yield _int(event, "step"), Way(str(event.fields["to"]))


def _stints(events: Sequence[PlainEvent], stretches: Sequence[Stretch]) -> Iterator[Stint]:
    made = {stretch.generation: range(stretch.first, stretch.end) for stretch in stretches}
    for event in events:
        if event.kind == "generation_entered":
            yield Stint(event.who, event.at_ns, made.get(_number(event), range(0)))


def _number(event: PlainEvent) -> int:
    return _int(event, "number" if event.kind == "generation_entered" else "generation")


def _int(event: PlainEvent, name: str) -> int:
    return int(str(event.fields[name]))
