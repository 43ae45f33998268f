"""Lineage of an elastic run: which generation committed which steps, under which policy.

Each worker logs how many steps its replica had committed when it entered a generation and when
the generation was lost. The steps between belong to that generation. A step that only a lost
worker had committed is lost with it, and the next generation computes it again, from the same
state. When all workers are lost at once, the next generation starts from a checkpoint, and the
steps after it are computed again. In modes with rounds whole rounds are committed, so a generation
can only begin at a round boundary.

Mode adaptive switches between policies: the workers log the policy that a generation begins with,
and one of them logs each switch. A switch behind the last step of a generation that counts was
decided by lost workers, and never took effect; so the policies of a run follow from its lineage.
Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.events.read import PlainEvent
from paceline.sync.adaptive_setting import SyncPolicy


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps [first, end) of the run that count, made by one generation."""

    generation: int
    first: int
    end: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    stretches: tuple[Stretch, ...]
    problems: tuple[str, ...]


def lineage_of(
    events: Sequence[PlainEvent],
    *,
    steps: int,
    first: int = 0,
    is_whole: Callable[[int], bool] = lambda _: True,
) -> Lineage:
    """`steps` the run has in the end; `first` it began with. `is_whole`: may so many be committed?"""
    entered: dict[int, list[PlainEvent]] = {}
    for event in events:
        if event.kind == "generation_entered":
            entered.setdefault(_int(event, "number"), []).append(event)
    problems: list[str] = []
    begun = [(number, _agreed(number, found, problems)) for number, found in sorted(entered.items())]
    stretches: list[Stretch] = []
    for number, start in begun:
        if stretches and start < stretches[-1].first:
            if not _are_all_new(events, number):
                before = stretches[-1]
                what = f"generation {number} began at step {start}, but {before.generation} had begun at"
                problems.append(f"{what} {before.first}")
            stretches = [stretch for stretch in stretches if stretch.first < start]
        if stretches:
            stretches[-1] = replace(stretches[-1], end=start)
        workers = tuple(str(entered[number][0].fields["workers"]).split(","))
        stretches.append(Stretch(number, start, steps, workers))
    if begun and begun[0][1] != first:
        problems.append(f"the first generation began at step {begun[0][1]}, and not at {first}")
    if begun and first < stretches[0].first:
        problems.append(f"nobody says who made the steps from {first} to {stretches[0].first}")
    problems += [
        f"generation {number} began at step {start}, in the middle of a round"
        for number, start in begun
        if not is_whole(start)
    ]
    if not is_whole(steps):
        problems.append(f"the run ended at step {steps}, in the middle of a round")
    problems += _lost_steps(events)
    return Lineage(tuple(stretches), tuple(problems))


def _agreed(number: int, entered: Sequence[PlainEvent], problems: list[str]) -> int:
    said = {_int(event, "committed") for event in entered}
    if len(said) > 1:
        problems.append(f"the workers of generation {number} entered it at different steps: {sorted(said)}")
    states = {str(event.fields.get("state")) for event in entered}
    if len(states) > 1:
        problems.append(
            f"the workers of generation {number} entered it with different bits: {sorted(states)}"
        )
    return max(said)


def _are_all_new(events: Sequence[PlainEvent], number: int) -> bool:
    """Was every worker of this generation started after whatever it did before?"""
    is_new: dict[str, bool] = {}
    found: list[bool] = []
    for event in events:
        if event.kind == "worker_started":
            is_new[event.who] = True
        elif event.kind == "generation_entered":
            if _int(event, "number") == number:
                found.append(is_new.get(event.who, False))
            is_new[event.who] = False
    return all(found)


def _lost_steps(events: Sequence[PlainEvent]) -> list[str]:
    """A worker that went on must find what it had committed in the next generation."""
    problems, had = [], dict[str, tuple[int, int]]()
    for event in events:
        if event.kind == "generation_lost":
            had[event.who] = (_int(event, "number"), _int(event, "committed"))
        elif event.kind == "worker_started":
            had.pop(event.who, None)  # another process under the same name
        elif event.kind == "generation_entered" and event.who in had:
            number, committed = had.pop(event.who)
            now = _int(event, "committed")
            if now < committed:
                what = f"{event.who} had committed {committed} steps in generation {number}"
                problems.append(f"{what}, and was taken back to {now} in {event.fields['number']}")
    return problems


def _int(event: PlainEvent, name: str) -> int:
    return int(str(event.fields[name]))


# Workers say which way a generation begins with, and one of them says when it changes. What a generation
# decided behind its last step that counts was decided by somebody who is gone, and never happened. So the
# ways of a run are those of its lineage, and in a way with rounds a generation can only begin where a round
# does. Pure.


@dataclass(frozen=True, slots=True)
class PolicyStint:
    """From this moment on this worker made steps that count if they are in the range."""

    who: str
    from_ns: int
    steps: range


@dataclass(frozen=True, slots=True)
class PolicyHistory:
    switches: tuple[tuple[int, SyncPolicy], ...]  # from which step on, in order; neighbours differ
    stints: tuple[PolicyStint, ...]

    def is_whole(self, finished: int, *, every: int, total: int) -> bool:
        """Can a run have committed so many steps, or is that in the middle of a round?"""
        before = [(step, way) for step, way in self.switches if step < finished]
        if not before or before[-1][1] is not SyncPolicy.LOCAL_STEPS:
            return True
        return finished == total or (finished - before[-1][0]) % every == 0

    def counts(self, who: str, start_ns: int, step: int) -> bool:
        """Is a step that this worker began then one that counts?"""
        mine = [stint for stint in self.stints if stint.who == who and stint.from_ns <= start_ns]
        return bool(mine) and step in max(mine, key=lambda stint: stint.from_ns).steps


def policies_of(events: Sequence[PlainEvent], steps: int) -> PolicyHistory:
    """Of a run that has so many steps in the end."""
    resumed = [(number, event) for number, event in enumerate(events) if event.kind == "run_resumed"]
    begins = [(0, 0), *((number, _int(event, "version")) for number, event in resumed)]
    ends = [*begins[1:], (len(events), steps)]
    said: list[tuple[int, SyncPolicy]] = []
    stints: list[PolicyStint] = []
    for (here, first), (there, end) in zip(begins, ends, strict=True):
        session = events[here:there]
        stretches = lineage_of(session, steps=end, first=first).stretches
        said += _policy_changes(session, stretches)
        stints += _policy_stints(session, stretches)
    switches: list[tuple[int, SyncPolicy]] = []
    for step, way in said:
        if not switches or switches[-1][1] is not way:
            switches.append((step, way))
    return PolicyHistory(tuple(switches), tuple(stints))


def _policy_changes(
    events: Sequence[PlainEvent], stretches: Sequence[Stretch]
) -> Iterator[tuple[int, SyncPolicy]]:
    for stretch in stretches:
        entered = (e for e in events if e.kind == "generation_entered" and _number(e) == stretch.generation)
        yield stretch.first, SyncPolicy(str(next(entered).fields["way"]))
        decided = [e for e in events if e.kind == "adapted" and _number(e) == stretch.generation]
        for event in sorted(decided, key=lambda event: _int(event, "step")):
            if stretch.first < _int(event, "step") < stretch.end:
                yield _int(event, "step"), SyncPolicy(str(event.fields["to"]))


def _policy_stints(events: Sequence[PlainEvent], stretches: Sequence[Stretch]) -> Iterator[PolicyStint]:
    made = {stretch.generation: range(stretch.first, stretch.end) for stretch in stretches}
    for event in events:
        if event.kind == "generation_entered":
            yield PolicyStint(event.who, event.at_ns, made.get(_number(event), range(0)))


def _number(event: PlainEvent) -> int:
    return _int(event, "number" if event.kind == "generation_entered" else "generation")
