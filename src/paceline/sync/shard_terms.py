"""On what do adaptive workers of an elastic run agree? On a way, and on how many shards each of them does.

The unit of work is a shard, and speeds are seconds for one. Whoever does which shards, the result is the
same: it depends on the ways alone, and on the steps at which they changed. What is remembered of speeds
outlives a generation: the dead are left out, and whoever comes is taken to be as fast as the middle one.
Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.sync.adapt import Decision, State, decide, first_state
from paceline.sync.deal import deal
from paceline.sync.hindsight import Window
from paceline.sync.setting import Setting, Terms, Way
from paceline.sync.shares_by_speed import equal_counts

FEWEST = 3  # times that everybody must have shown, for a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTerms(Terms):
    """Of one generation. `batch_sizes` has a 1 for each of its workers: all is counted in shards."""

    shards: int
    names: tuple[str, ...]  # of the workers, by rank
    are_equal: bool  # do all shards have as many samples?

    def has_equal_shares(self) -> bool:
        return self.are_equal

    def name_of(self, worker: int) -> str:
        return self.names[worker]

    def as_planned(self, way: Way) -> Setting:
        return self._of(way, equal_counts(self.shards, len(self.names)))

    def by_speed(self, way: Way, seconds: Sequence[float]) -> Setting:
        if way is Way.SSGD:
            return self.as_planned(way)
        return self._of(way, deal(self.shards, seconds))  # at least one each: who has none shows no speed

    def counts(self, setting: Setting) -> tuple[int, ...]:
        """Shards by worker."""
        each = self.period if setting.way is Way.LOCAL_STEPS else 1
        return tuple(share // each for share in setting.shares)

    def _of(self, way: Way, counts: Sequence[int]) -> Setting:
        """In a round a shard is as many steps."""
        each = self.period if way is Way.LOCAL_STEPS else 1
        return Setting(way, tuple(count * each for count in counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a generation leaves to the next: equal at all who have committed the same steps."""

    way: Way
    wish: Way | None = None
    is_dealt: bool = False  # by speed
    seconds: Mapping[str, float] | None = None  # for a shard, by worker, in the last window


class AdaptiveShares:
    """Everybody who heard the same has decided the same."""

    def __init__(self, terms: ShardTerms, memory: Memory | None, newcomers: Collection[str] = ()) -> None:
        self._terms = terms
        self._state = first_state(terms) if memory is None else _remembered(terms, memory, newcomers)
        self.memory = Memory(way=self.way) if memory is None else memory

    @property
    def way(self) -> Way:
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
        self.memory = Memory(
            way=self.way,
            wish=state.wish(),
            is_dealt=state.setting != self._terms.as_planned(self.way),
            seconds=dict(zip(self._terms.names, state.seconds, strict=True)),
        )
        return decision


def _remembered(terms: ShardTerms, memory: Memory, newcomers: Collection[str]) -> State:
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
