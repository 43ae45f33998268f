"""When do the first K of N gradients arrive, and what of the rest is lost? (backup) Round by round.

A round ends with the K-th arrival. Whoever is late hears of it at once, also in
the middle of a step, and begins another share; what was abandoned goes back to
the shares to be done. With costs of zero this is what worker/virtual.py does,
to the nanosecond. Real compute is only left between forward and backward.
"""

import numpy as np

from paceline.simulate.costs import in_ns
from paceline.simulate.durations import all_steps, starts_ns
from paceline.simulate.prediction import Outline, Trace
from paceline.simulate.profile import Profile
from paceline.sync.assignment import FirstCome


def first_arrivals(profile: Profile, *, spare: int, steps: int, seed: int) -> Outline:
    """All shares, of which every round applies all but `spare` of those under way."""
    rounds, starts = _Rounds(profile, spare, steps, seed), starts_ns(profile)
    total, size = steps * profile.num_workers, profile.parameter_bytes
    while len(rounds.ranks) < total:
        rounds.one()
    active_ns = int((np.array(rounds.ended_ns) - starts).sum())
    return Outline(
        total_ns=rounds.at_ns[-1] - int(starts.min()),
        compute_ns=rounds.compute_ns,
        wait_ns=active_ns - rounds.compute_ns,
        steps=tuple(rounds.clocks),
        samples=steps * profile.global_batch,
        syncs=rounds.count,
        bytes_each_way=size * total,
        bytes_in_vain=size * rounds.abandoned,
        staleness={0: total},
        abandoned=rounds.abandoned,
        trace=Trace(np.array(rounds.ranks), np.array(rounds.at_ns)),
    )


class _Rounds:
    """Who computes what, since when, and when it will arrive."""

    def __init__(self, profile: Profile, spare: int, steps: int, seed: int) -> None:
        workers, costs, size = profile.num_workers, profile.costs, profile.parameter_bytes
        assert 0 <= spare < workers, "at least one gradient of a round must count"
        self._needed = workers - spare
        self._shares = FirstCome(steps * workers)
        self._streams = [iter(s) for s in all_steps(profile, seed, expected=steps + steps // 4)]
        self._push_ns = in_ns(costs.push.transfer_s(size))
        self._back_ns = in_ns(costs.pull.transfer_s(size) + profile.all_wake_s)
        # To hear that one is late, and to say so: two messages that carry nothing.
        self._hear_ns = in_ns(costs.pull.latency_s + costs.wake_up_s)
        self._ask_ns = in_ns(costs.push.latency_s)
        self._apply_ns, self._answer_ns = in_ns(costs.apply_s), in_ns(costs.answer_s)
        starts: list[int] = starts_ns(profile).tolist()
        self._coming = sorted(range(workers), key=starts.__getitem__)  # they have not joined yet
        self._computing: list[int] = []  # in the order in which they began
        self._begun_ns = starts.copy()
        self._takes_ns = [next(stream) for stream in self._streams]
        self._doing = [0] * workers
        self._free_ns = 0  # when the server has answered
        self.clocks = [0] * workers
        self.ended_ns = starts.copy()  # the last gradient of each worker, applied or abandoned
        self.compute_ns = self.abandoned = self.count = 0
        self.ranks: list[int] = []
        self.at_ns: list[int] = []

    def one(self) -> None:
        """From one update to the next."""
        first = self._arrivals()[: self._needed]
        counted = frozenset(first)
        late = [rank for rank in self._computing if rank not in counted]
        self._free_ns = max(self._free_ns, self._arrival_ns(first[-1])) + self._apply_ns
        self.count += 1
        self.ranks += sorted(first, key=self._doing.__getitem__)
        self.at_ns += [self._free_ns] * len(first)
        for rank in first:
            self._end(rank, self._takes_ns[rank], self._free_ns)
        for rank in late:
            self._shares.give_back(self._doing[rank])
        going = {r for r in sorted(first, key=lambda r: (self.clocks[r], r)) if self._goes_on(r)}
        for rank in first:
            self.clocks[rank] += 1
        told_ns = self._free_ns + self._hear_ns
        for rank in late:
            self._end(rank, min(self._takes_ns[rank], told_ns - self._begun_ns[rank]), told_ns)
            self._free_ns = max(self._free_ns, told_ns + self._ask_ns)
            if self._goes_on(rank):
                going.add(rank)
        self.abandoned += len(late)
        # Whoever ends the round goes on at once; the late hear of it before those who waited for it.
        self._computing = [rank for rank in (first[-1], *late, *first[:-1]) if rank in going]

    def _arrivals(self) -> list[int]:
        """Those who compute, by arrival; whoever comes before the round ends takes part in it."""
        hoped_for = [*self._computing, *([] if self._shares.is_exhausted() else self._coming)]
        ends_ns = sorted(map(self._arrival_ns, hoped_for))[: self._needed][-1]
        for rank in [r for r in self._coming if self._begun_ns[r] <= ends_ns]:
            self._coming.remove(rank)
            if (position := self._shares.next(rank, 0)) is not None:
                self._doing[rank] = position
                self._computing.append(rank)
        return sorted(self._computing, key=self._arrival_ns)

    def _arrival_ns(self, rank: int) -> int:
        return self._begun_ns[rank] + self._takes_ns[rank] + self._push_ns

    def _end(self, rank: int, computed_ns: int, at_ns: int) -> None:
        self.compute_ns += computed_ns
        self.ended_ns[rank] = at_ns

    def _goes_on(self, rank: int) -> bool:
        """The server answers this worker: with another share, or that none is left."""
        position = self._shares.next(rank, self.clocks[rank])
        if position is None:
            return False
        self._free_ns += self._answer_ns
        self._begun_ns[rank] = self._free_ns + self._back_ns
        self._takes_ns[rank] = next(self._streams[rank])
        self._doing[rank] = position
        return True
