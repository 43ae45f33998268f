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

WORTH = 0.15  # fraction by which a step must become shorter; less with many workers, where one counts less
RESTING_STEPS = 4  # between two changes
NEWEST = 5  # latest times of a worker that count
FIRST_TRY = 16  # steps until a worker without shards is tried; doubled after each trial
RARELY = 256  # maximum of that


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The shards were assigned again."""

    counts: tuple[int, ...]  # by worker
    reason: str


def shards_between(rank: int, counts: Sequence[int]) -> range:
    """The worker's shards: contiguous, after those of the lower ranks."""
    first = sum(counts[:rank])
    return range(first, first + counts[rank])


def shards_of(rank: int, *, workers: int, shards: int) -> range:
    """The worker's shards when all workers have as equal counts as possible."""
    assert 0 <= rank < workers <= shards, f"worker {rank} of {workers} has no share of {shards} shards"
    return range(rank * shards // workers, (rank + 1) * shards // workers)


def equal_counts(shards: int, workers: int) -> tuple[int, ...]:
    return tuple((rank + 1) * shards // workers - rank * shards // workers for rank in range(workers))


class SharesBySpeed:
    """Assigns shards by speed.

    A new assignment is made only when a step becomes clearly shorter, and not right
    after the last one, so speeds that fluctuate change nothing. A worker that is too
    slow to get a shard is tried with one at growing intervals, so that it can return.
    """

    def __init__(self, shards: int, workers: int) -> None:
        self._shards = shards
        self._workers = workers
        self.counts = equal_counts(shards, workers)  # for the next step
        self._settled = self.counts  # without trials
        self._times: list[list[float]] = [[] for _ in range(workers)]
        self._rested = 0
        self._tried_in = [FIRST_TRY] * workers  # steps until a worker without shards is tried
        self._pause = [FIRST_TRY] * workers

    def observe(self, seconds: Sequence[float | None]) -> Rebalanced | None:
        """One step: seconds per shard, by worker; None: it had none."""
        for worker, own_s in enumerate(seconds):
            if own_s is not None:
                self._record(worker, own_s)
        self._rested += 1
        rebalanced = None
        if self._rested >= RESTING_STEPS and all(self._times):
            rebalanced = self._rebalance()
        self.counts = self._with_trials()
        return rebalanced

    def _record(self, worker: int, seconds: float) -> None:
        if self._settled[worker] == 0:  # this was a trial: earlier times no longer count
            self._times[worker].clear()
        self._times[worker] = [*self._times[worker], seconds][-NEWEST:]

    def _rebalance(self) -> Rebalanced | None:
        shard_s = [median(times) for times in self._times]
        counts = balance_units(self._shards, shard_s, minimum=0)
        before_s = _step_s(self._settled, shard_s)
        after_s = _step_s(counts, shard_s)
        if after_s > before_s * (1 - min(WORTH, 0.6 / self._workers)):
            return None
        for worker, (was, now) in enumerate(zip(self._settled, counts, strict=True)):
            if was and now:
                self._pause[worker] = FIRST_TRY
            if now == 0:
                self._tried_in[worker] = self._pause[worker]
        self._settled = counts
        self._rested = 0
        by_worker = ", ".join(f"{own_s * 1e3:.1f}" for own_s in shard_s)
        reason = (
            f"a shard takes {by_worker} ms by worker: a step takes {after_s * 1e3:.1f} ms"
            f" instead of {before_s * 1e3:.1f} ms"
        )
        return Rebalanced(counts, reason)

    def _with_trials(self) -> tuple[int, ...]:
        """The settled counts, with one shard moved from the largest count to each worker due for a trial."""
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


FEWEST = 3  # times of every worker that a decision needs


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTerms(AdaptiveTerms):
    """The terms of one generation. `batch_sizes` has a 1 per worker: the unit of work is a shard."""

    shards: int
    names: tuple[str, ...]  # of the workers, by rank
    are_equal: bool  # whether all shards have the same number of samples

    def has_equal_shares(self) -> bool:
        return self.are_equal

    def name_of(self, worker: int) -> str:
        return self.names[worker]

    def as_planned(self, policy: SyncPolicy) -> AdaptiveSetting:
        return self._setting(policy, equal_counts(self.shards, len(self.names)))

    def by_speed(self, policy: SyncPolicy, seconds: Sequence[float]) -> AdaptiveSetting:
        if policy is SyncPolicy.SSGD:
            return self.as_planned(policy)
        # At least one shard each: a worker without shards has no measured speed.
        return self._setting(policy, balance_units(self.shards, seconds))

    def counts(self, setting: AdaptiveSetting) -> tuple[int, ...]:
        """Shards by worker."""
        return tuple(share // self._steps_each(setting.policy) for share in setting.shares)

    def _setting(self, policy: SyncPolicy, counts: Sequence[int]) -> AdaptiveSetting:
        return AdaptiveSetting(policy, tuple(count * self._steps_each(policy) for count in counts))

    def _steps_each(self, policy: SyncPolicy) -> int:
        """Steps of one shard between two averagings."""
        return self.period if policy is SyncPolicy.LOCAL_STEPS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveMemory:
    """State that a generation passes to the next; equal at all workers that committed the same steps."""

    policy: SyncPolicy
    preferred: SyncPolicy | None = None
    is_by_speed: bool = False  # whether shares are assigned by speed
    seconds: Mapping[str, float] | None = None  # per shard, by worker, in the last window


class AdaptiveShares:
    """The adaptive assignment of one generation."""

    def __init__(
        self, terms: ShardTerms, memory: AdaptiveMemory | None, newcomers: Collection[str] = ()
    ) -> None:
        self._terms = terms
        self._state = first_state(terms) if memory is None else _restored(terms, memory, newcomers)
        self.memory = AdaptiveMemory(policy=self.policy) if memory is None else memory

    @property
    def policy(self) -> SyncPolicy:
        return self._state.setting.policy

    @property
    def counts(self) -> tuple[int, ...]:
        """Shards by worker."""
        return self._terms.counts(self._state.setting)

    def observe(self, window: Window) -> Decision | None:
        """All workers' latest steps, in seconds per shard; None: too few for a decision."""
        if min(map(len, window)) < FEWEST:
            return None
        decision = decide(self._state, window, self._terms)
        self._state = state = decision.state
        self.memory = AdaptiveMemory(
            policy=self.policy,
            preferred=state.preferred(),
            is_by_speed=state.setting != self._terms.as_planned(self.policy),
            seconds=dict(zip(self._terms.names, state.seconds, strict=True)),
        )
        return decision


def _restored(terms: ShardTerms, memory: AdaptiveMemory, newcomers: Collection[str]) -> State:
    """The state of the previous generation, with the shards assigned to the present workers."""
    known = {
        name: own_s
        for name, own_s in (memory.seconds or {}).items()
        if name in terms.names and name not in newcomers
    }
    if not known:
        return State(terms.as_planned(memory.policy), (), lambda: memory.preferred)
    median_s = median(known.values())
    seconds = tuple(known.get(name, median_s) for name in terms.names)
    setting = terms.as_planned(memory.policy)
    if memory.is_by_speed:
        setting = terms.by_speed(memory.policy, seconds)
    return State(setting, seconds, lambda: memory.preferred)
