"""How do rounds of the first K of N go while everybody takes part, and enough is left to do? A tight loop.

Then everybody begins one share in each round, whether the last one counted or
was abandoned, and shares go out in the order of the answers: so this order
stands for their numbers. simulate/first_arrivals.py says what happens at both
ends of a run, where that is not so; a test holds the two together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import add

from paceline.simulate.costs import in_ns
from paceline.simulate.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """What the messages of a round and the server's work cost, in nanoseconds."""

    push_ns: int
    apply_ns: int
    answer_ns: int
    back_ns: int  # from an answer until its worker computes
    # To hear that one is late, and to say so: two messages that carry nothing.
    hear_ns: int
    ask_ns: int


def round_times(profile: Profile) -> RoundTimes:
    costs, size = profile.costs, profile.parameter_bytes
    return RoundTimes(
        push_ns=in_ns(costs.push.transfer_s(size)),
        apply_ns=in_ns(costs.apply_s),
        answer_ns=in_ns(costs.answer_s),
        back_ns=in_ns(costs.pull.transfer_s(size) + profile.all_wake_s),
        hear_ns=in_ns(costs.pull.latency_s + costs.wake_up_s),
        ask_ns=in_ns(costs.push.latency_s),
    )


@dataclass(slots=True, kw_only=True)
class Standing:
    """Who computes, since when and for how long; and what came of the rounds so far."""

    begun_ns: list[int]  # by rank, as are the next two
    takes_ns: list[int]
    clocks: list[int]  # gradients that counted
    computing: list[int] = field(default_factory=list)  # in the order in which they began
    free_ns: int = 0  # when the server has answered
    compute_ns: int = 0
    abandoned: int = 0
    ranks: list[int] = field(default_factory=list)  # whose gradients counted
    at_ns: list[int] = field(default_factory=list)  # when each round ended
    counted: list[int] = field(default_factory=list)  # gradients of each round


class FullRounds:
    """The first `needed` gradients make a round; `streams` say how long each worker's further steps take."""

    def __init__(
        self, standing: Standing, times: RoundTimes, needed: int, streams: list[Iterator[int]]
    ) -> None:
        self._standing, self._times, self._needed, self._streams = standing, times, needed, streams
        self._workers = len(standing.clocks)
        self._progress = [clock * self._workers + rank for rank, clock in enumerate(standing.clocks)]
        # Whoever counted least often is answered first; ties by rank.
        self._by_progress = sorted(range(self._workers), key=self._progress.__getitem__)

    def run(self, answered: list[int], count: int) -> list[int]:
        """So many rounds. In which order all were `answered` before them, and in which after them."""
        # The names are local because this loop is what a simulation spends its time in.
        now, times, needed, by_progress = self._standing, self._times, self._needed, self._by_progress
        computing, begun_ns, ranks, at_ns = now.computing, now.begun_ns, now.ranks, now.at_ns
        push_ns, apply_ns, free_ns, takes_ns = times.push_ns, times.apply_ns, now.free_ns, tuple(now.takes_ns)
        answers_ns = needed * times.answer_ns
        until_begun_ns = [times.answer_ns * n + times.back_ns for n in range(1, needed + 1)]
        for following_ns in islice(zip(*self._streams, strict=True), count):
            done_ns = list(map(add, begun_ns, takes_ns))
            order = sorted(computing, key=done_ns.__getitem__)
            last, late = order[needed - 1], order[needed:]
            arrived_ns = done_ns[last] + push_ns
            free_ns = (arrived_ns if arrived_ns > free_ns else free_ns) + apply_ns
            at_ns.append(free_ns)
            now.compute_ns += sum(takes_ns)
            if len(late) > 1:
                late = [rank for rank in computing if rank in late]
            ranks += [rank for rank in answered if rank not in late] if late else answered
            answered = [rank for rank in by_progress if rank not in late] if late else by_progress
            for rank, wait_ns in zip(answered, until_begun_ns, strict=True):
                begun_ns[rank] = free_ns + wait_ns
            free_ns += answers_ns
            if late:
                answered += late
                free_ns = self._abandon(late, done_ns, free_ns)
            computing = [last, *late, *order[: needed - 1]]
            takes_ns = following_ns
        now.computing, now.takes_ns, now.free_ns = computing, list(takes_ns), free_ns
        now.counted += [needed] * count
        now.abandoned += (self._workers - needed) * count
        now.clocks[:] = [progress // self._workers + count for progress in self._progress]
        return answered

    def _abandon(self, late: list[int], done_ns: list[int], free_ns: int) -> int:
        """The late hear that the round has ended, and begin another share; when the last was answered."""
        now, times = self._standing, self._times
        told_ns = free_ns + times.hear_ns
        for rank in late:
            if (unspent_ns := done_ns[rank] - told_ns) > 0:
                now.compute_ns -= unspent_ns
            free_ns = max(free_ns, told_ns + times.ask_ns) + times.answer_ns
            now.begun_ns[rank] = free_ns + times.back_ns
            self._progress[rank] -= self._workers  # compared to those who counted
        self._by_progress.sort(key=self._progress.__getitem__)
        return free_ns
