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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Costs of a round's messages and of the server's work, in nanoseconds."""

    push_ns: int
    apply_ns: int
    answer_ns: int
    back_ns: int  # from an answer until its worker computes
    # Two messages without payload: the notice to a late worker, and its next request.
    notice_ns: int
    request_ns: int


def round_times(profile: Profile) -> RoundTimes:
    costs = profile.costs
    size = profile.parameter_bytes
    return RoundTimes(
        push_ns=in_ns(costs.push.transfer_s(size)),
        apply_ns=in_ns(costs.apply_s),
        answer_ns=in_ns(costs.answer_s),
        back_ns=in_ns(costs.pull.transfer_s(size) + profile.all_wake_s),
        notice_ns=in_ns(costs.pull.latency_s + costs.wake_up_s),
        request_ns=in_ns(costs.push.latency_s),
    )


@dataclass(slots=True, kw_only=True)
class BackupState:
    """Which workers compute, since when and for how long; and the results of the rounds so far."""

    begun_ns: list[int]  # by rank, as are the next two
    takes_ns: list[int]
    clocks: list[int]  # gradients that counted
    computing: list[int] = field(default_factory=list)  # in the order in which they began
    free_ns: int = 0  # when the server has answered
    compute_ns: int = 0
    abandoned: int = 0
    ranks: list[int] = field(default_factory=list)  # of the gradients that counted
    at_ns: list[int] = field(default_factory=list)  # when each round ended
    counted: list[int] = field(default_factory=list)  # gradients of each round


class FullRounds:
    """Rounds of the first `needed` gradients; `streams` are the durations of each worker's next steps."""

    def __init__(
        self, state: BackupState, times: RoundTimes, needed: int, streams: list[Iterator[int]]
    ) -> None:
        self._state = state
        self._times = times
        self._needed = needed
        self._streams = streams
        self._workers = len(state.clocks)
        self._progress = [clock * self._workers + rank for rank, clock in enumerate(state.clocks)]
        # Workers whose gradients counted least often are answered first; ties by rank.
        self._by_progress = sorted(range(self._workers), key=self._progress.__getitem__)

    def run(self, answered: list[int], count: int) -> list[int]:
        """Simulate `count` rounds; `answered` is the order of answers before them, the result after them."""
        # Local names: a simulation spends its time in this loop.
        now = self._state
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
        """Late workers are notified and begin another share; the time of the last answer."""
        now = self._state
        times = self._times
        notified_ns = free_ns + times.notice_ns
        for rank in late:
            if (unspent_ns := done_ns[rank] - notified_ns) > 0:
                now.compute_ns -= unspent_ns
            free_ns = max(free_ns, notified_ns + times.request_ns) + times.answer_ns
            now.begun_ns[rank] = free_ns + times.back_ns
            self._progress[rank] -= self._workers  # relative to the workers that counted
        self._by_progress.sort(key=self._progress.__getitem__)
        return free_ns


def first_arrivals(profile: Profile, *, spare: int, steps: int, seed: int) -> Outline:
    """Simulate all shares; every round applies all but `spare` of those under way."""
    rounds = BackupRounds(profile, spare, steps, seed)
    starts = starts_ns(profile)
    total = steps * profile.num_workers
    size = profile.parameter_bytes
    while not rounds.is_over():
        rounds.run_one()
        rounds.run_full()
    state = rounds.state
    active_ns = int((np.array(rounds.ended_ns) - starts).sum())
    return Outline(
        total_ns=state.at_ns[-1] - int(starts.min()),
        compute_ns=state.compute_ns,
        wait_ns=active_ns - state.compute_ns,
        steps=tuple(state.clocks),
        samples=steps * profile.global_batch,
        syncs=len(state.at_ns),
        bytes_each_way=size * total,
        bytes_in_vain=size * state.abandoned,
        staleness={0: total},
        abandoned=state.abandoned,
        trace=Trace(np.fromiter(state.ranks, np.int64, total), np.repeat(state.at_ns, state.counted)),
    )


class BackupRounds:
    """Simulates rounds one at a time, with the assignment of shares."""

    def __init__(self, profile: Profile, spare: int, steps: int, seed: int) -> None:
        workers = profile.num_workers
        assert 0 <= spare < workers, "at least one gradient of a round must count"
        self._needed = workers - spare
        self._total = steps * workers
        self._times = round_times(profile)
        self._shares = FirstCome(self._total)
        self._streams = [iter(s) for s in all_steps(profile, seed, expected=steps + steps // 4)]
        starts: list[int] = starts_ns(profile).tolist()
        self._not_joined = sorted(range(workers), key=starts.__getitem__)
        self._doing = [0] * workers
        self.ended_ns = starts.copy()  # the last gradient of each worker, applied or abandoned
        first_ns = [next(stream) for stream in self._streams]
        self.state = BackupState(begun_ns=starts.copy(), takes_ns=first_ns, clocks=[0] * workers)

    def is_over(self) -> bool:
        return len(self.state.ranks) == self._total

    def run_full(self) -> None:
        """Simulate all following rounds in which all workers take part and find another share."""
        now = self.state
        workers = len(self._doing)
        left = self._total - len(now.ranks) - workers  # not assigned yet
        if len(now.computing) < workers or left < self._needed:
            return
        rounds = FullRounds(now, self._times, self._needed, self._streams)
        answered = sorted(range(workers), key=self._doing.__getitem__)
        answered = rounds.run(answered, left // self._needed)
        # Only their order matters, so the shares under way and those left can be renumbered.
        self._shares = FirstCome(workers + left % self._needed)
        for rank in answered:
            self._take(rank)

    def run_one(self) -> None:
        """Simulate from one update to the next."""
        now = self.state
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
        going = {r for r in sorted(first, key=lambda r: (now.clocks[r], r)) if self._answer(r)}
        for rank in first:
            now.clocks[rank] += 1
        notified_ns = now.free_ns + times.notice_ns
        for rank in late:
            self._end(rank, min(now.takes_ns[rank], notified_ns - now.begun_ns[rank]), notified_ns)
            now.free_ns = max(now.free_ns, notified_ns + times.request_ns)
            if self._answer(rank):
                going.add(rank)
        now.abandoned += len(late)
        # The worker that ends the round continues at once; late ones are notified before waiting ones.
        now.computing = [rank for rank in (first[-1], *late, *first[:-1]) if rank in going]

    def _arrivals(self) -> list[int]:
        """The computing workers, by arrival; one that joins before the end of the round takes part."""
        now = self.state
        expected = list(now.computing)
        if not self._shares.is_exhausted():
            expected += self._not_joined
        ends_ns = sorted(map(self._arrival_ns, expected))[: self._needed][-1]
        for rank in [r for r in self._not_joined if now.begun_ns[r] <= ends_ns]:
            self._not_joined.remove(rank)
            if self._take(rank):
                now.computing.append(rank)
        return sorted(now.computing, key=self._arrival_ns)

    def _arrival_ns(self, rank: int) -> int:
        return self.state.begun_ns[rank] + self.state.takes_ns[rank] + self._times.push_ns

    def _end(self, rank: int, computed_ns: int, at_ns: int) -> None:
        self.state.compute_ns += computed_ns
        self.ended_ns[rank] = at_ns

    def _answer(self, rank: int) -> bool:
        """The server answers this worker; whether with another share."""
        if not self._take(rank):
            return False
        now = self.state
        now.free_ns += self._times.answer_ns
        now.begun_ns[rank] = now.free_ns + self._times.back_ns
        now.takes_ns[rank] = next(self._streams[rank])
        return True

    def _take(self, rank: int) -> bool:
        """Assign another share; whether one was left."""
        position = self._shares.next(rank, self.state.clocks[rank])
        if position is not None:
            self._doing[rank] = position
        return position is not None
