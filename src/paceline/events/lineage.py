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

from paceline.events.read import History, PlainEvent
from paceline.sync.adaptive_setting import SyncPolicy


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps [first, end) of the run that one generation committed and that count."""

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
    """`steps`: at the end of the run. `first`: at its start. `is_whole`: whether a commit can end there."""
    entered: dict[int, list[PlainEvent]] = {}
    for event in events:
        if event.kind == "generation_entered":
            entered.setdefault(_int(event, "number"), []).append(event)
    problems: list[str] = []
    starts = [
        (number, _common_start(number, entries, problems)) for number, entries in sorted(entered.items())
    ]
    stretches: list[Stretch] = []
    for number, start in starts:
        if stretches and start < stretches[-1].first:
            if not _are_all_new(events, number):
                before = stretches[-1]
                message = (
                    f"generation {number} started at step {start}, but {before.generation} had started at"
                )
                problems.append(f"{message} {before.first}")
            stretches = [stretch for stretch in stretches if stretch.first < start]
        if stretches:
            stretches[-1] = replace(stretches[-1], end=start)
        workers = tuple(str(entered[number][0].fields["workers"]).split(","))
        stretches.append(Stretch(number, start, steps, workers))
    if starts and starts[0][1] != first:
        problems.append(f"the first generation started at step {starts[0][1]}, not at {first}")
    if starts and first < stretches[0].first:
        problems.append(f"no generation is recorded for the steps from {first} to {stretches[0].first}")
    problems += [
        f"generation {number} started at step {start}, in the middle of a round"
        for number, start in starts
        if not is_whole(start)
    ]
    if not is_whole(steps):
        problems.append(f"the run ended at step {steps}, in the middle of a round")
    problems += _lost_steps(events)
    return Lineage(tuple(stretches), tuple(problems))


def _common_start(number: int, entered: Sequence[PlainEvent], problems: list[str]) -> int:
    committed = {_int(event, "committed") for event in entered}
    if len(committed) > 1:
        problems.append(
            f"the workers of generation {number} entered it at different steps: {sorted(committed)}"
        )
    states = {str(event.fields.get("state")) for event in entered}
    if len(states) > 1:
        problems.append(
            f"the workers of generation {number} entered it with different parameters: {sorted(states)}"
        )
    return max(committed)


def _are_all_new(events: Sequence[PlainEvent], number: int) -> bool:
    """Whether every worker of this generation is a new process."""
    is_new: dict[str, bool] = {}
    flags: list[bool] = []
    for event in events:
        if event.kind == "worker_started":
            is_new[event.who] = True
        elif event.kind == "generation_entered":
            if _int(event, "number") == number:
                flags.append(is_new.get(event.who, False))
            is_new[event.who] = False
    return all(flags)


def _lost_steps(events: Sequence[PlainEvent]) -> list[str]:
    """A surviving worker must find the steps that it had committed in the next generation."""
    problems = []
    last_committed = dict[str, tuple[int, int]]()
    for event in events:
        if event.kind == "generation_lost":
            last_committed[event.who] = (_int(event, "number"), _int(event, "committed"))
        elif event.kind == "worker_started":
            last_committed.pop(event.who, None)  # another process under the same name
        elif event.kind == "generation_entered" and event.who in last_committed:
            number, committed = last_committed.pop(event.who)
            now = _int(event, "committed")
            if now < committed:
                message = f"{event.who} had committed {committed} steps in generation {number}"
                problems.append(f"{message}, and was rolled back to {now} in {event.fields['number']}")
    return problems


def committed_at_end(
    history: History, *, shards: int, in_rounds: bool = False, falls_back: bool = False
) -> int:
    """Steps that the run had committed when it ended; rounds with `in_rounds`.

    When all workers were lost at once, the next generation began at a checkpoint, and the run may have ended
    before it reached the step of the lost workers again: their rows do not count. `falls_back`: every new
    generation begins at a checkpoint.
    """
    resumed = [number for number, event in enumerate(history.plain) if event.kind == "run_resumed"]
    session = history.plain[resumed[-1] :] if resumed else history.plain
    entered: dict[int, list[PlainEvent]] = {}
    for event in session:
        if event.kind == "generation_entered":
            entered.setdefault(_int(event, "number"), []).append(event)
    newest = max(entered, default=0)
    restarts = [number for number in entered if number > min(entered) and _are_all_new(session, number)]
    since = newest if falls_back else max(restarts, default=0)
    since_ns = min((event.at_ns for event in entered.get(since, [])), default=0)
    committed = max((_int(event, "committed") for event in entered.get(newest, [])), default=0)
    rows = (row for rows in history.steps.values() for row in rows if row.synced and row.start_ns >= since_ns)
    done = (row.version if in_rounds else row.position // shards for row in rows)
    return max(committed, 1 + max(done, default=-1))


def _int(event: PlainEvent, name: str) -> int:
    return int(str(event.fields[name]))


@dataclass(frozen=True, slots=True)
class PolicyStint:
    """From `from_ns` on, the steps of this worker count if they are in the range."""

    who: str
    from_ns: int
    steps: range


@dataclass(frozen=True, slots=True)
class PolicyHistory:
    switches: tuple[tuple[int, SyncPolicy], ...]  # (first step, policy), in order; neighbours differ
    stints: tuple[PolicyStint, ...]

    def is_whole(self, finished: int, *, every: int, total: int) -> bool:
        """Whether a run can have committed `finished` steps: not in the middle of a round."""
        earlier = [(step, policy) for step, policy in self.switches if step < finished]
        if not earlier or earlier[-1][1] is not SyncPolicy.LOCAL_STEPS:
            return True
        return finished == total or (finished - earlier[-1][0]) % every == 0

    def counts(self, participant: str, start_ns: int, step: int) -> bool:
        """Whether a step that this worker began at `start_ns` counts."""
        own_stints = [
            stint for stint in self.stints if stint.who == participant and stint.from_ns <= start_ns
        ]
        return bool(own_stints) and step in max(own_stints, key=lambda stint: stint.from_ns).steps


def policies_of(events: Sequence[PlainEvent], steps: int) -> PolicyHistory:
    """The policies of a run; `steps`: at its end."""
    resumed = [(number, event) for number, event in enumerate(events) if event.kind == "run_resumed"]
    begins = [(0, 0), *((number, _int(event, "version")) for number, event in resumed)]
    ends = [*begins[1:], (len(events), steps)]
    changes: list[tuple[int, SyncPolicy]] = []
    stints: list[PolicyStint] = []
    for (begin, first), (end_index, end) in zip(begins, ends, strict=True):
        session = events[begin:end_index]
        stretches = lineage_of(session, steps=end, first=first).stretches
        changes += _policy_changes(session, stretches)
        stints += _policy_stints(session, stretches)
    switches: list[tuple[int, SyncPolicy]] = []
    for step, policy in changes:
        if not switches or switches[-1][1] is not policy:
            switches.append((step, policy))
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
    ranges = {stretch.generation: range(stretch.first, stretch.end) for stretch in stretches}
    for event in events:
        if event.kind == "generation_entered":
            yield PolicyStint(event.who, event.at_ns, ranges.get(_number(event), range(0)))


def _number(event: PlainEvent) -> int:
    return _int(event, "number" if event.kind == "generation_entered" else "generation")
