"""When do the first K of N gradients arrive, and what of the rest is lost? (backup) Round by round.

A round ends with the K-th arrival. Whoever is late hears of it at once, also in
the middle of a step, and begins another share; what was abandoned goes back to
the shares to be done. With costs of zero this is what worker/virtual.py does,
to the nanosecond. Real compute is only left between forward and backward.
"""

import numpy as np

from paceline.simulate.durations import all_steps, starts_ns
from paceline.simulate.full_rounds import FullRounds, Standing, round_times
from paceline.simulate.prediction import Outline, Trace
from paceline.simulate.profile import Profile
from paceline.sync.assignment import FirstCome


def first_arrivals(profile: Profile, *, spare: int, steps: int, seed: int) -> Outline:
    """All shares, of which every round applies all but `spare` of those under way."""
    rounds, starts = Rounds(profile, spare, steps, seed), starts_ns(profile)
    total, size = steps * profile.num_workers, profile.parameter_bytes
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


class Rounds:
    """Who computes what, since when, and when it will arrive."""

    def __init__(self, profile: Profile, spare: int, steps: int, seed: int) -> None:
        workers = profile.num_workers
        assert 0 <= spare < workers, "at least one gradient of a round must count"
        self._needed, self._total, self._times = workers - spare, steps * workers, round_times(profile)
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
        now, workers = self.standing, len(self._doing)
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
        now, times = self.standing, self._times
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
