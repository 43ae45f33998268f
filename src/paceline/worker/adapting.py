"""How do the workers of a generation decide on a way, and deal out shards by it, in mode adaptive?

As in every elastic run they write numbers before a meeting and read all of them after it; now and then also
how long each one's latest steps took. All come to the same decision by the rules of sync/adapt.py, at the
same commit. What is remembered changes only with a commit, so whoever has committed the same remembers the
same, and whoever is healed gets it with the state.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from paceline.plan.plan import OnSlow, Plan
from paceline.sync.adapt import Decision, next_decision
from paceline.sync.hindsight import KEPT
from paceline.sync.setting import Adapted, Terms, Way
from paceline.sync.shard_terms import AdaptiveShares, Memory, ShardTerms
from paceline.transport.generation_board import GenerationBoard
from paceline.transport.generation_window import GenerationWindow
from paceline.worker.sharing import AgreedShares, OwnBest, Voice

_DECIDED, _SECONDS = "decided", "seconds"


class AdaptedShares(AgreedShares):
    """One worker's part in the sharing of one generation."""

    def __init__(
        self,
        board: GenerationBoard,
        window: GenerationWindow,
        *,
        plan: Plan,
        generation: int,
        names: Sequence[str],  # by rank
        newcomers: Collection[str],  # they have no speed yet
        carried: dict[str, Tensor],  # from the generation before
        rank: int,
        best: OwnBest,
        wants_leave: Callable[[], bool],
        voice: Voice,
    ) -> None:
        assert plan.elastic is not None, "the run is elastic"
        terms = ShardTerms(
            allowed=plan.strategy.adaptive,
            batch_sizes=(1,) * len(names),
            period=plan.strategy.sync_every,
            shards=plan.num_workers,
            names=tuple(names),
            are_equal=len(set(plan.batch_sizes)) == 1,
        )
        self._adaptive = AdaptiveShares(terms, memory_of(carried), newcomers)
        self._plan, self._window, self._generation = plan, window, generation
        self._latest: deque[float] = deque(maxlen=KEPT)  # seconds for a shard, of our latest steps
        self._this_step: list[float] = []  # of this step or round
        self._is_warm = False
        super().__init__(
            board,
            names=names,
            rank=rank,
            shards=plan.num_workers,
            on_slow=OnSlow.TOLERATE if plan.elastic.on_slow is OnSlow.REBALANCE else plan.elastic.on_slow,
            best=best,
            wants_leave=wants_leave,
            voice=voice,
        )

    @property
    def way(self) -> Way:
        """Of the next step, or round."""
        return self._adaptive.way

    @property
    def counts(self) -> tuple[int, ...]:
        return self._adaptive.counts

    def took(self, shard_ns: int) -> None:
        """One of our shards took so long, for one step."""
        self._this_step.append(shard_ns / 1e9)

    def before_meeting(self, step: int, shard_ns: int | None) -> None:
        self._keep()
        if self._is_due(step):
            self._window.write(self._latest)
            self._latest.clear()
        steps = self._end(step) - step
        super().before_meeting(step, None if shard_ns is None else shard_ns // steps)

    def after_meeting(self, step: int) -> None:
        super().after_meeting(step)
        if not self._is_due(step):
            return
        done, was = self._end(step), self.way  # before the way may change
        decision = self._adaptive.heard(self._window.read())
        if decision is not None and decision.reason is not None and self._speaks:
            self._tell_decision(decision, done, was)

    def snapshot(self) -> dict[str, Tensor]:
        return _saved(self._adaptive.memory)

    def _keep(self) -> None:
        """Of a step at which all meet the mean of our shards; of local steps each one."""
        times, self._this_step = self._this_step, []
        if times and self._is_warm:  # the first step of a generation takes longer
            self._latest += times if self.way is Way.LOCAL_STEPS else [sum(times) / len(times)]
        self._is_warm = True

    def _end(self, step: int) -> int:
        """Steps that are committed after the meeting for `step`."""
        every = self._plan.strategy.sync_every if self.way is Way.LOCAL_STEPS else 1
        return min(step + every, self._plan.steps)

    def _is_due(self, step: int) -> bool:
        done = self._end(step)
        return len(self._names) > 1 and next_decision(step) <= done < self._plan.steps

    def _tell_decision(self, decision: Decision, done: int, was: Way) -> None:
        now = decision.state.setting
        adapted = Adapted(step=done, was=was, now=now, reason=decision.reason or "")
        counts = ",".join(map(str, self.counts))
        self._voice.event(
            "adapted",
            **{**adapted.fields(), "shares": counts},
            workers=",".join(self._names),
            generation=self._generation,
        )
        ways = was.value if now.way is was else f"{was.value} → {now.way.value}"
        self._voice.note(f"after step {done}: {ways}, because {adapted.reason}")


def way_in(plan: Plan, carried: dict[str, Tensor]) -> Way:
    """The one that a generation begins with."""
    memory = memory_of(carried)
    if memory is not None:
        return memory.way
    terms = Terms(
        allowed=plan.strategy.adaptive, batch_sizes=plan.batch_sizes, period=plan.strategy.sync_every
    )
    return terms.ways[0]


def memory_of(carried: dict[str, Tensor]) -> Memory | None:
    """None: nothing was committed yet."""
    if _DECIDED not in carried:
        return None
    way, wish, is_dealt = carried[_DECIDED].tolist()
    ways = list(Way)
    seconds = {f"worker-{int(number)}": own_s for number, own_s in carried[_SECONDS].tolist()}
    return Memory(
        way=ways[way],
        wish=None if wish < 0 else ways[wish],
        is_dealt=bool(is_dealt),
        seconds=seconds or None,
    )


def _saved(memory: Memory) -> dict[str, Tensor]:
    ways = list(Way)
    wish = -1 if memory.wish is None else ways.index(memory.wish)
    rows = [(float(name.rpartition("-")[2]), own_s) for name, own_s in (memory.seconds or {}).items()]
    return {
        _DECIDED: torch.tensor([ways.index(memory.way), wish, int(memory.is_dealt)]),
        _SECONDS: torch.tensor(rows, dtype=torch.float64).reshape(-1, 2),
    }
