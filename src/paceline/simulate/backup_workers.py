"""Simulator of backup workers (mode backup): the first K of N gradients make a round.

A round ends with the K-th arrival. Late workers are notified at once, also in the
middle of a step, and begin another share; the abandoned share is returned. With
zero costs it equals worker/entry/virtual.py, to the nanosecond. Real compute stops
only between forward and backward.

`BackupRounds` simulates any round. `FullRounds` is a fast path for rounds in which
all workers take part and find another share: then every worker begins one share per
round, whether the last one counted or was abandoned, and shares are assigned in the
order of the answers, so this order stands for their numbers. That does not hold at
both ends of a run, which `BackupRounds` handles; a test compares the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import add

import numpy as np

from paceline.simulate.durations import all_steps, starts_ns
from paceline.simulate.prediction import Outline, Trace
from paceline.simulate.profile import Profile, in_ns
from paceline.sync.assignment import FirstCome

# Then everybody begins one share in each round, whether the last one counted or
# was abandoned, and shares go out in the order of the answers: so this order
# stands for their numbers. simulate/first_arrivals.py says what happens at both
# ends of a run, where that is not so; a test holds the two together.


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
    costs = profile.costs
    size = profile.parameter_bytes
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
        self._standing = standing
        self._times = times
        self._needed = needed
        self._streams = streams
        self._workers = len(standing.clocks)
        self._progress = [clock * self._workers + rank for rank, clock in enumerate(standing.clocks)]
        # Whoever counted least often is answered first; ties by rank.
        self._by_progress = sorted(range(self._workers), key=self._progress.__getitem__)

    def run(self, answered: list[int], count: int) -> list[int]:
        """So many rounds. In which order all were `answered` before them, and in which after them."""
        # The names are local because this loop is what a simulation spends its time in.
        now = self._standing
        times = self._times
        needed = self._needed
        by_progress = self._by_progress
        computing = now.computing
        begun_ns = now.begun_ns
        ranks = now.ranks
        at_ns = now.at_ns
        push_ns = times.push_ns
        apply_ns = times.apply_ns
        free_ns = now.free_ns
        takes_ns = tuple(now.takes_ns)
        answers_ns = needed * times.answer_ns
        until_begun_ns = [times.answer_ns * n + times.back_ns for n in range(1, needed + 1)]
        for following_ns in islice(zip(*self._streams, strict=True), count):
            done_ns = list(map(add, begun_ns, takes_ns))
            order = sorted(computing, key=done_ns.__getitem__)
            last = order[needed - 1]
            late = order[needed:]
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
        now.computing = computing
        now.takes_ns = list(takes_ns)
        now.free_ns = free_ns
        now.counted += [needed] * count
        now.abandoned += (self._workers - needed) * count
        now.clocks[:] = [progress // self._workers + count for progress in self._progress]
        return answered

    def _abandon(self, late: list[int], done_ns: list[int], free_ns: int) -> int:
        """The late hear that the round has ended, and begin another share; when the last was answered."""
        now = self._standing
        times = self._times
        told_ns = free_ns + times.hear_ns
        for rank in late:
            if (unspent_ns := done_ns[rank] - told_ns) > 0:
                now.compute_ns -= unspent_ns
            free_ns = max(free_ns, told_ns + times.ask_ns) + times.answer_ns
            now.begun_ns[rank] = free_ns + times.back_ns
            self._progress[rank] -= self._workers  # compared to those who counted
        self._by_progress.sort(key=self._progress.__getitem__)
        return free_ns


def first_arrivals(profile: Profile, *, spare: int, steps: int, seed: int) -> Outline:
    """All shares, of which every round applies all but `spare` of those under way."""
    rounds = BackupRounds(profile, spare, steps, seed)
    starts = starts_ns(profile)
    total = steps * profile.num_workers
    size = profile.parameter_bytes
    while not rounds.is_over():
        rounds.make_one()
        rounds.make_full_ones()
    found = rounds.standing
    active_ns = int((np.array(rounds.ended_ns) - starts).sum())
    return Outline(
        total_ns=found.at_ns[-1] - int(starts.min()),
        compute_ns=found.compute_ns,
        wait_ns=active_ns - found.compute_ns,
        steps=tuple(found.clocks),
        samples=steps * profile.global_batch,
        syncs=len(found.at_ns),
        bytes_each_way=size * total,
        bytes_in_vain=size * found.abandoned,
        staleness={0: total},
        abandoned=found.abandoned,
        trace=Trace(np.fromiter(found.ranks, np.int64, total), np.repeat(found.at_ns, found.counted)),
    )


class BackupRounds:
    """Who computes what, since when, and when it will arrive."""

    def __init__(self, profile: Profile, spare: int, steps: int, seed: int) -> None:
        workers = profile.num_workers
        assert 0 <= spare < workers, "at least one gradient of a round must count"
        self._needed = workers - spare
        self._total = steps * workers
        self._times = round_times(profile)
        self._shares = FirstCome(self._total)
        self._streams = [iter(s) for s in all_steps(profile, seed, expected=steps + steps // 4)]
        starts: list[int] = starts_ns(profile).tolist()
        self._coming = sorted(range(workers), key=starts.__getitem__)  # they have not joined yet
        self._doing = [0] * workers
        self.ended_ns = starts.copy()  # the last gradient of each worker, applied or abandoned
        first_ns = [next(stream) for stream in self._streams]
        self.standing = Standing(begun_ns=starts.copy(), takes_ns=first_ns, clocks=[0] * workers)

    def is_over(self) -> bool:
        return len(self.standing.ranks) == self._total

    def make_full_ones(self) -> None:
        """As many as there are in which all take part and find another share."""
        now = self.standing
        workers = len(self._doing)
        left = self._total - len(now.ranks) - workers  # not handed out yet
        if len(now.computing) < workers or left < self._needed:
            return
        rounds = FullRounds(now, self._times, self._needed, self._streams)
        answered = sorted(range(workers), key=self._doing.__getitem__)
        answered = rounds.run(answered, left // self._needed)
        # Only their order matters, so what is under way and what is left can be numbered anew.
        self._shares = FirstCome(workers + left % self._needed)
        for rank in answered:
            self._take(rank)

    def make_one(self) -> None:
        """From one update to the next."""
        now = self.standing
        times = self._times
        first = self._arrivals()[: self._needed]
        counted = frozenset(first)
        late = [rank for rank in now.computing if rank not in counted]
        now.free_ns = max(now.free_ns, self._arrival_ns(first[-1])) + times.apply_ns
        now.ranks += sorted(first, key=self._doing.__getitem__)
        now.at_ns.append(now.free_ns)
        now.counted.append(len(first))
        for rank in first:
            self._end(rank, now.takes_ns[rank], now.free_ns)
        for rank in late:
            self._shares.give_back(self._doing[rank])
        going = {r for r in sorted(first, key=lambda r: (now.clocks[r], r)) if self._goes_on(r)}
        for rank in first:
            now.clocks[rank] += 1
        told_ns = now.free_ns + times.hear_ns
        for rank in late:
            self._end(rank, min(now.takes_ns[rank], told_ns - now.begun_ns[rank]), told_ns)
            now.free_ns = max(now.free_ns, told_ns + times.ask_ns)
            if self._goes_on(rank):
                going.add(rank)
        now.abandoned += len(late)
        # Whoever ends the round goes on at once; the late hear of it before those who waited for it.
        now.computing = [rank for rank in (first[-1], *late, *first[:-1]) if rank in going]

    def _arrivals(self) -> list[int]:
        """Those who compute, by arrival; whoever comes before the round ends takes part in it."""
        now = self.standing
        hoped_for = [*now.computing, *([] if self._shares.is_exhausted() else self._coming)]
        ends_ns = sorted(map(self._arrival_ns, hoped_for))[: self._needed][-1]
        for rank in [r for r in self._coming if now.begun_ns[r] <= ends_ns]:
            self._coming.remove(rank)
            if self._take(rank):
                now.computing.append(rank)
        return sorted(now.computing, key=self._arrival_ns)

    def _arrival_ns(self, rank: int) -> int:
        return self.standing.begun_ns[rank] + self.standing.takes_ns[rank] + self._times.push_ns

    def _end(self, rank: int, computed_ns: int, at_ns: int) -> None:
        self.standing.compute_ns += computed_ns
        self.ended_ns[rank] = at_ns

    def _goes_on(self, rank: int) -> bool:
        """The server answers this worker: with another share, or that none is left."""
        if not self._take(rank):
            return False
        now = self.standing
        now.free_ns += self._times.answer_ns
        now.begun_ns[rank] = now.free_ns + self._times.back_ns
        now.takes_ns[rank] = next(self._streams[rank])
        return True

    def _take(self, rank: int) -> bool:
        """Another share, if one is left."""
        position = self._shares.next(rank, self.standing.clocks[rank])
        if position is not None:
            self._doing[rank] = position
        return position is not None
