"""Shard balancing for elastic runs: how many logical shards each worker of a generation computes.

The work of a step is V shards, however many workers are alive. A shard's samples,
random numbers and position in the sum belong to the shard, so the number of
workers changes who computes it and when, never the result. Three rules assign
contiguous runs of shards to workers:

- `shards_of`: equal counts.
- `SharesBySpeed` (`--on-slow rebalance`): counts by measured seconds per shard.
- `AdaptiveShares` (mode adaptive): a policy of sync/adaptive_policy.py with its
  counts. The result depends on the policies and on the steps at which they changed,
  not on who computed which shards. Speeds outlive a generation: lost workers are
  dropped, and a newcomer starts with the median speed.

Pure: workers that observe the same numbers make the same assignment.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.sync.adaptive_policy import Decision, State, Window, decide, first_state
from paceline.sync.adaptive_setting import AdaptiveSetting, AdaptiveTerms, SyncPolicy, balance_units

# Shards are dealt out anew only when a step would become clearly shorter, and not
# right after the last time: speeds that come and go lead to nothing. A worker that
# is so slow that it gets none is tried with one shard now and then, less and less
# often, so that it can come back. What comes out of a step depends on the
# shards, never on who did them. Pure.

WORTH = 0.15  # the part by which a step must become shorter; of many workers one is worth less
RESTING_STEPS = 4  # after a change
NEWEST = 5  # times of a worker that count
FIRST_TRY = 16  # steps until a worker without shards is tried; doubled after each trial
RARELY = 256  # maximum of that


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The shards were dealt out anew."""

    counts: tuple[int, ...]  # by worker
    reason: str


def shards_between(rank: int, counts: Sequence[int]) -> range:
    """Neighbouring shards, so many as the worker has, behind those of the ranks before it."""
    first = sum(counts[:rank])
    return range(first, first + counts[rank])


def equal_counts(shards: int, workers: int) -> tuple[int, ...]:
    return tuple((rank + 1) * shards // workers - rank * shards // workers for rank in range(workers))


class SharesBySpeed:
    """Everybody who heard the same has dealt the same."""

    def __init__(self, shards: int, workers: int) -> None:
        self._shards = shards
        self._workers = workers
        self.counts = equal_counts(shards, workers)  # for the next step
        self._settled = self.counts  # without those that are only tried
        self._times: list[list[float]] = [[] for _ in range(workers)]
        self._rested = 0
        self._tried_in = [FIRST_TRY] * workers  # steps until a worker without shards is tried
        self._pause = [FIRST_TRY] * workers

    def heard(self, seconds: Sequence[float | None]) -> Rebalanced | None:
        """One step: seconds for a shard, by worker; None: it had none."""
        for worker, own_s in enumerate(seconds):
            if own_s is not None:
                self._take(worker, own_s)
        self._rested += 1
        dealt = None
        if self._rested >= RESTING_STEPS and all(self._times):
            dealt = self._deal()
        self.counts = self._with_trials()
        return dealt

    def _take(self, worker: int, seconds: float) -> None:
        if self._settled[worker] == 0:  # it was tried: what was before counts no more
            self._times[worker].clear()
        self._times[worker] = [*self._times[worker], seconds][-NEWEST:]

    def _deal(self) -> Rebalanced | None:
        usual_s = [median(times) for times in self._times]
        counts = balance_units(self._shards, usual_s, least=0)
        before_s = _step_s(self._settled, usual_s)
        after_s = _step_s(counts, usual_s)
        if after_s > before_s * (1 - min(WORTH, 0.6 / self._workers)):
            return None
        for worker, (was, now) in enumerate(zip(self._settled, counts, strict=True)):
            if was and now:
                self._pause[worker] = FIRST_TRY
            if now == 0:
                self._tried_in[worker] = self._pause[worker]
        self._settled = counts
        self._rested = 0
        by_worker = ", ".join(f"{own_s * 1e3:.1f}" for own_s in usual_s)
        reason = (
            f"a shard takes {by_worker} ms by worker: a step takes {after_s * 1e3:.1f} ms"
            f" instead of {before_s * 1e3:.1f} ms"
        )
        return Rebalanced(counts, reason)

    def _with_trials(self) -> tuple[int, ...]:
        """One shard for whoever is due to be tried, from whoever has most."""
        counts = list(self._settled)
        for worker in range(self._workers):
            if self._settled[worker]:
                continue
            self._tried_in[worker] -= 1
            if self._tried_in[worker] > 0:
                continue
            self._pause[worker] = min(RARELY, 2 * self._pause[worker])
            self._tried_in[worker] = self._pause[worker]
            counts[counts.index(max(counts))] -= 1
            counts[worker] += 1
        return tuple(counts)


def _step_s(counts: Sequence[int], seconds: Sequence[float]) -> float:
    return max(count * own_s for count, own_s in zip(counts, seconds, strict=True))


FEWEST = 3  # times that everybody must have shown, for a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTerms(AdaptiveTerms):
    """Of one generation. `batch_sizes` has a 1 for each of its workers: all is counted in shards."""

    shards: int
    names: tuple[str, ...]  # of the workers, by rank
    are_equal: bool  # do all shards have as many samples?

    def has_equal_shares(self) -> bool:
        return self.are_equal

    def name_of(self, worker: int) -> str:
        return self.names[worker]

    def as_planned(self, way: SyncPolicy) -> AdaptiveSetting:
        return self._of(way, equal_counts(self.shards, len(self.names)))

    def by_speed(self, way: SyncPolicy, seconds: Sequence[float]) -> AdaptiveSetting:
        if way is SyncPolicy.SSGD:
            return self.as_planned(way)
        return self._of(
            way, balance_units(self.shards, seconds)
        )  # at least one each: who has none shows no speed

    def counts(self, setting: AdaptiveSetting) -> tuple[int, ...]:
        """Shards by worker."""
        each = self.period if setting.way is SyncPolicy.LOCAL_STEPS else 1
        return tuple(share // each for share in setting.shares)

    def _of(self, way: SyncPolicy, counts: Sequence[int]) -> AdaptiveSetting:
        """In a round a shard is as many steps."""
        each = self.period if way is SyncPolicy.LOCAL_STEPS else 1
        return AdaptiveSetting(way, tuple(count * each for count in counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveMemory:
    """What a generation leaves to the next: equal at all who have committed the same steps."""

    way: SyncPolicy
    wish: SyncPolicy | None = None
    is_dealt: bool = False  # by speed
    seconds: Mapping[str, float] | None = None  # for a shard, by worker, in the last window


class AdaptiveShares:
    """Everybody who heard the same has decided the same."""

    def __init__(
        self, terms: ShardTerms, memory: AdaptiveMemory | None, newcomers: Collection[str] = ()
    ) -> None:
        self._terms = terms
        self._state = first_state(terms) if memory is None else _remembered(terms, memory, newcomers)
        self.memory = AdaptiveMemory(way=self.way) if memory is None else memory

    @property
    def way(self) -> SyncPolicy:
        return self._state.setting.way

    @property
    def counts(self) -> tuple[int, ...]:
        """Shards by worker."""
        return self._terms.counts(self._state.setting)

    def heard(self, window: Window) -> Decision | None:
        """Everybody's latest steps, in seconds for a shard; None: they say too little."""
        if min(map(len, window)) < FEWEST:
            return None
        decision = decide(self._state, window, self._terms)
        self._state = state = decision.state
        self.memory = AdaptiveMemory(
            way=self.way,
            wish=state.wish(),
            is_dealt=state.setting != self._terms.as_planned(self.way),
            seconds=dict(zip(self._terms.names, state.seconds, strict=True)),
        )
        return decision


def _remembered(terms: ShardTerms, memory: AdaptiveMemory, newcomers: Collection[str]) -> State:
    """The shards are dealt out again among those who are there now."""
    known = {
        name: own_s
        for name, own_s in (memory.seconds or {}).items()
        if name in terms.names and name not in newcomers
    }
    if not known:
        return State(terms.as_planned(memory.way), (), lambda: memory.wish)
    usual_s = median(known.values())
    seconds = tuple(known.get(name, usual_s) for name in terms.names)
    setting = terms.by_speed(memory.way, seconds) if memory.is_dealt else terms.as_planned(memory.way)
    return State(setting, seconds, lambda: memory.wish)


# The work of a step is V shards, whoever lives; worker r of W does a run of
# neighbouring ones, as equal as can be. A shard's samples, dice and place in the
# sum belong to the shard, so the number of workers changes who does it and when,
# never what comes out.


def shards_of(rank: int, *, workers: int, shards: int) -> range:
    assert 0 <= rank < workers <= shards, f"worker {rank} of {workers} has no share of {shards} shards"
    return range(rank * shards // workers, (rank + 1) * shards // workers)
