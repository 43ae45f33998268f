"""How do the workers of a generation share out its shards, notice a slow one, and let one go?

Before the meeting of a step everybody writes how long one of its shards took,
and whether it was asked to leave; after it everybody reads all rows and comes to
the same decisions, so nobody has to be asked. The first of them says so aloud.
Where steps are short that is done at some of the meetings only; at which ones
follows from what all have read, too.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import PeerLostError
from paceline.plan.plan import OnSlow, Plan
from paceline.sync.adaptive_policy import WINDOW_STEPS, Decision, next_decision
from paceline.sync.adaptive_setting import Adapted, AdaptiveTerms, SyncPolicy
from paceline.sync.shard_balancing import (
    AdaptiveMemory,
    AdaptiveShares,
    Rebalanced,
    ShardTerms,
    SharesBySpeed,
    shards_between,
)
from paceline.sync.slow_workers import SlowWorkers, SpeedChange
from paceline.transport.generation_world import BoardRow, GenerationBoard, GenerationWindow

EXCHANGE_S = 0.01  # more often than this rows are not exchanged: it would cost a short step a few per cent
MAX_STEPS_BETWEEN_EXCHANGES = 100  # meetings at most between two exchanges

_ANSWERS = {
    OnSlow.TOLERATE: "nothing is done about it (--on-slow tolerate)",
    OnSlow.REBALANCE: "shards are dealt out by speed",
    OnSlow.REPLACE: "it is replaced if that lasts",
}


class DecisionListener(Protocol):
    """Where decisions are told."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None:
        """Of whoever starts the workers."""
        ...


class NoListener:
    """A voice where nothing is decided about who does what."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None: ...


@dataclass(slots=True)
class BestSpeed:
    """How fast this process ever was; it lives longer than a generation."""

    ns: int = 0
    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=3))

    def take(self, shard_ns: int) -> None:
        self._newest.append(shard_ns)
        if len(self._newest) == self._newest.maxlen:
            usual_ns = median_low(self._newest)  # a single lucky one is no pace
            self.ns = min(self.ns or usual_ns, usual_ns)


class AgreedShares:
    """One worker's part in the sharing of one generation."""

    def __init__(
        self,
        board: GenerationBoard,
        *,
        names: Sequence[str],  # by rank
        rank: int,
        shards: int,
        on_slow: OnSlow,
        best: BestSpeed,
        wants_leave: Callable[[], bool],
        voice: DecisionListener,
    ) -> None:
        self._board, self._names, self._rank, self._on_slow = board, names, rank, on_slow
        self._best, self._wants_leave, self._voice = best, wants_leave, voice
        self._slow, self._shares = SlowWorkers(len(names)), SharesBySpeed(shards, len(names))
        self._leaving: list[int] = []
        self._took_ns: list[int] = []  # for one of our shards, since rows were exchanged
        self._every = self._left = 1  # meetings from one exchange to the next, and until that

    @property
    def has_left(self) -> bool:
        """Did everybody hear that we go?"""
        return self._rank in self._leaving

    @property
    def counts(self) -> tuple[int, ...]:
        """Shards of the next step, by rank."""
        return self._shares.counts

    def mine(self) -> range:
        return shards_between(self._rank, self.counts)

    def before_meeting(self, step: int, shard_ns: int | None) -> None:
        if shard_ns is not None:
            self._took_ns.append(shard_ns)
        self._left -= 1
        if self._left:
            return
        usual_ns = median_low(self._took_ns) if self._took_ns else 0
        if usual_ns:
            self._best.take(usual_ns)
        self._took_ns.clear()
        self._board.write(BoardRow(usual_ns, self._best.ns, int(self._wants_leave())))

    def after_meeting(self, step: int) -> None:
        if self._left:
            return
        rows = self._board.read()
        self._leaving = leaving_ranks(rows)
        seconds = [row.shard_ns / 1e9 if row.shard_ns else None for row in rows]
        step_s = max(count * (own_s or 0.0) for count, own_s in zip(self.counts, seconds, strict=True))
        bests_s = [row.best_ns / 1e9 or float("inf") for row in rows]
        for found in self._slow.heard(seconds, bests_s, step_s * self._every):
            self._tell(found, step)
        self._every = self._left = steps_between_exchanges(step_s)
        if self._on_slow is OnSlow.REBALANCE:
            dealt = self._shares.heard(seconds)
            if dealt is not None and self._speaks:
                self._tell_shares(dealt, step)
        if self._on_slow is OnSlow.REPLACE:
            for worker, pace in self._slow.worth_replacing():
                if self._speaks:
                    self._voice.ask_to_replace(self._names[worker], f"it takes {pace.in_words()}")

    def check(self) -> None:
        if self._leaving:
            who = ", ".join(self._names[rank] for rank in self._leaving)
            raise PeerLostError(f"{who} left, as it was asked to", "the run goes on in the next generation")

    @property
    def _speaks(self) -> bool:
        return self._rank == 0

    def _tell(self, found: SpeedChange, step: int) -> None:
        if not self._speaks:
            return
        name, pace = self._names[found.worker], found.pace
        words = "is slow" if found.is_slow else "is no longer slow"
        reason = f"{name} {words}: it takes {pace.in_words()}"
        if found.is_slow:
            reason += f"; {_ANSWERS[self._on_slow]}"
        self._voice.event(
            "slow_worker",
            worker=name,
            is_slow=found.is_slow,
            score=round(pace.score, 3),
            shard_ms=round(pace.now_s * 1e3, 3),
            peers_ms=round(pace.peers_s * 1e3, 3),
            best_ms=round(pace.best_s * 1e3, 3),
            step=step,
            reason=reason,
        )
        self._voice.note(reason)

    def _tell_shares(self, dealt: Rebalanced, step: int) -> None:
        counts = ",".join(map(str, dealt.counts))
        workers = ",".join(self._names)
        self._voice.event("shards_dealt", step=step, counts=counts, workers=workers, reason=dealt.reason)


def steps_between_exchanges(step_s: float) -> int:
    """From one exchange of rows to the next, if a step takes so long."""
    return min(MAX_STEPS_BETWEEN_EXCHANGES, max(1, int(EXCHANGE_S / step_s))) if step_s > 0 else 1


def leaving_ranks(rows: Sequence[BoardRow]) -> list[int]:
    """Those who were asked to; but somebody stays who has the state, until others have it too."""
    asked = [rank for rank, row in enumerate(rows) if row.leaves]
    return asked[1:] if len(asked) == len(rows) else asked


# As in every elastic run they write numbers before a meeting and read all of them after it; now and then also
# how long each one's latest steps took. All come to the same decision by the rules of sync/adapt.py, at the
# same commit. What is remembered changes only with a commit, so whoever has committed the same remembers the
# same, and whoever is healed gets it with the state.

_DECIDED, _SECONDS = "decided", "seconds"


class AdaptiveSharing(AgreedShares):
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
        best: BestSpeed,
        wants_leave: Callable[[], bool],
        voice: DecisionListener,
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
        self._latest: deque[float] = deque(maxlen=WINDOW_STEPS)  # seconds for a shard, of our latest steps
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
    def way(self) -> SyncPolicy:
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
            self._latest += times if self.way is SyncPolicy.LOCAL_STEPS else [sum(times) / len(times)]
        self._is_warm = True

    def _end(self, step: int) -> int:
        """Steps that are committed after the meeting for `step`."""
        every = self._plan.strategy.sync_every if self.way is SyncPolicy.LOCAL_STEPS else 1
        return min(step + every, self._plan.steps)

    def _is_due(self, step: int) -> bool:
        done = self._end(step)
        return len(self._names) > 1 and next_decision(step) <= done < self._plan.steps

    def _tell_decision(self, decision: Decision, done: int, was: SyncPolicy) -> None:
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


def initial_policy(plan: Plan, carried: dict[str, Tensor]) -> SyncPolicy:
    """The one that a generation begins with."""
    memory = memory_of(carried)
    if memory is not None:
        return memory.way
    terms = AdaptiveTerms(
        allowed=plan.strategy.adaptive, batch_sizes=plan.batch_sizes, period=plan.strategy.sync_every
    )
    return terms.ways[0]


def memory_of(carried: dict[str, Tensor]) -> AdaptiveMemory | None:
    """None: nothing was committed yet."""
    if _DECIDED not in carried:
        return None
    way, wish, is_dealt = carried[_DECIDED].tolist()
    ways = list(SyncPolicy)
    seconds = {f"worker-{int(number)}": own_s for number, own_s in carried[_SECONDS].tolist()}
    return AdaptiveMemory(
        way=ways[way],
        wish=None if wish < 0 else ways[wish],
        is_dealt=bool(is_dealt),
        seconds=seconds or None,
    )


def _saved(memory: AdaptiveMemory) -> dict[str, Tensor]:
    ways = list(SyncPolicy)
    wish = -1 if memory.wish is None else ways.index(memory.wish)
    rows = [(float(name.rpartition("-")[2]), own_s) for name, own_s in (memory.seconds or {}).items()]
    return {
        _DECIDED: torch.tensor([ways.index(memory.way), wish, int(memory.is_dealt)]),
        _SECONDS: torch.tensor(rows, dtype=torch.float64).reshape(-1, 2),
    }
