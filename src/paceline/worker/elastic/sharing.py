"""Shard assignment in a generation: by speed, with detection of slow workers and orderly leaving.

Before the barrier of a step each worker writes how long one of its shards took, and whether it was asked to
leave. After the barrier each worker reads all rows and comes to the same decisions, so no further message is
needed; rank 0 reports them. Where steps are short, rows are exchanged at some of the barriers only; at which
ones also follows from the rows that all have read.
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
from paceline.transport.generation.ports import Board, BoardRow, Window

EXCHANGE_S = 0.01  # more often than this rows are not exchanged: it would cost a short step a few per cent
MAX_STEPS_BETWEEN_EXCHANGES = 100  # barriers at most between two exchanges

_ANSWERS = {
    OnSlow.TOLERATE: "nothing is done about it (--on-slow tolerate)",
    OnSlow.REBALANCE: "shards are assigned by speed",
    OnSlow.REPLACE: "it is replaced if it stays slow",
}


class DecisionListener(Protocol):
    """Receiver of decisions."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None:
        """Request the supervisor to replace the worker."""
        ...


class NoListener:
    """Listener of modes without decisions about shards."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None: ...


@dataclass(slots=True)
class BestSpeed:
    """Best speed of this process so far, kept across generations."""

    ns: int = 0
    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=3))

    def take(self, shard_ns: int) -> None:
        self._newest.append(shard_ns)
        if len(self._newest) == self._newest.maxlen:
            median_ns = median_low(self._newest)  # a single lucky one is no pace
            self.ns = min(self.ns or median_ns, median_ns)


class AgreedShares:
    """One worker's part in the sharing of one generation."""

    def __init__(
        self,
        board: Board,
        *,
        names: Sequence[str],  # by rank
        rank: int,
        shards: int,
        on_slow: OnSlow,
        best: BestSpeed,
        wants_leave: Callable[[], bool],
        listener: DecisionListener,
    ) -> None:
        self._board = board
        self._names = names
        self._rank = rank
        self._on_slow = on_slow
        self._best = best
        self._wants_leave = wants_leave
        self._listener = listener
        self._slow = SlowWorkers(len(names))
        self._shares = SharesBySpeed(shards, len(names))
        self._leaving: list[int] = []
        self._took_ns: list[int] = []  # durations of this worker's shards since the last exchange of rows
        self._every = self._left = 1  # barriers from one exchange to the next, and until the next

    @property
    def has_left(self) -> bool:
        """Whether all workers have read that this one leaves."""
        return self._rank in self._leaving

    @property
    def counts(self) -> tuple[int, ...]:
        """Shards of the next step, by rank."""
        return self._shares.counts

    def own_shards(self) -> range:
        return shards_between(self._rank, self.counts)

    def before_barrier(self, step: int, shard_ns: int | None) -> None:
        if shard_ns is not None:
            self._took_ns.append(shard_ns)
        self._left -= 1
        if self._left:
            return
        median_ns = median_low(self._took_ns) if self._took_ns else 0
        if median_ns:
            self._best.take(median_ns)
        self._took_ns.clear()
        self._board.write(BoardRow(median_ns, self._best.ns, int(self._wants_leave())))

    def after_barrier(self, step: int) -> None:
        if self._left:
            return
        rows = self._board.read()
        self._leaving = leaving_ranks(rows)
        seconds = [row.shard_ns / 1e9 if row.shard_ns else None for row in rows]
        step_s = max(count * (own_s or 0.0) for count, own_s in zip(self.counts, seconds, strict=True))
        bests_s = [row.best_ns / 1e9 or float("inf") for row in rows]
        for change in self._slow.observe(seconds, bests_s, step_s * self._every):
            self._report_speed(change, step)
        self._every = self._left = steps_between_exchanges(step_s)
        if self._on_slow is OnSlow.REBALANCE:
            rebalanced = self._shares.observe(seconds)
            if rebalanced is not None and self._reports:
                self._report_shares(rebalanced, step)
        if self._on_slow is OnSlow.REPLACE:
            for worker, pace in self._slow.worth_replacing():
                if self._reports:
                    self._listener.ask_to_replace(self._names[worker], f"it takes {pace.describe()}")

    def check(self) -> None:
        if self._leaving:
            names = ", ".join(self._names[rank] for rank in self._leaving)
            raise PeerLostError(f"{names} left on request", "the run continues in the next generation")

    @property
    def _reports(self) -> bool:
        return self._rank == 0

    def _report_speed(self, change: SpeedChange, step: int) -> None:
        if not self._reports:
            return
        name = self._names[change.worker]
        pace = change.pace
        state = "is slow" if change.is_slow else "is no longer slow"
        reason = f"{name} {state}: it takes {pace.describe()}"
        if change.is_slow:
            reason += f"; {_ANSWERS[self._on_slow]}"
        self._listener.event(
            "slow_worker",
            worker=name,
            is_slow=change.is_slow,
            score=round(pace.score, 3),
            shard_ms=round(pace.now_s * 1e3, 3),
            peers_ms=round(pace.peers_s * 1e3, 3),
            best_ms=round(pace.best_s * 1e3, 3),
            step=step,
            reason=reason,
        )
        self._listener.note(reason)

    def _report_shares(self, rebalanced: Rebalanced, step: int) -> None:
        counts = ",".join(map(str, rebalanced.counts))
        workers = ",".join(self._names)
        self._listener.event(
            "shards_dealt", step=step, counts=counts, workers=workers, reason=rebalanced.reason
        )


def steps_between_exchanges(step_s: float) -> int:
    """Steps between two exchanges of rows, given the duration of a step."""
    return min(MAX_STEPS_BETWEEN_EXCHANGES, max(1, int(EXCHANGE_S / step_s))) if step_s > 0 else 1


def leaving_ranks(rows: Sequence[BoardRow]) -> list[int]:
    """The ranks requested to leave; a rank with the state stays until others have it too."""
    leaving = [rank for rank, row in enumerate(rows) if row.leaves]
    return leaving[1:] if len(leaving) == len(rows) else leaving


# Mode adaptive: at some barriers workers also exchange how long their latest steps took. All come to the same
# decision by the rules of sync/adaptive_policy.py, at the same commit. The memory of decisions changes only
# with a commit: workers with the same commits have the same memory. A healed worker copies it with the state.

_DECIDED = "decided"
_SECONDS = "seconds"


class AdaptiveSharing(AgreedShares):
    """One worker's part in the sharing of one generation."""

    def __init__(
        self,
        board: Board,
        window: Window,
        *,
        plan: Plan,
        generation: int,
        names: Sequence[str],  # by rank
        newcomers: Collection[str],  # they have no speed yet
        carried: dict[str, Tensor],  # from the generation before
        rank: int,
        best: BestSpeed,
        wants_leave: Callable[[], bool],
        listener: DecisionListener,
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
        self._plan = plan
        self._window = window
        self._generation = generation
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
            listener=listener,
        )

    @property
    def policy(self) -> SyncPolicy:
        """Policy of the next step or round."""
        return self._adaptive.policy

    @property
    def counts(self) -> tuple[int, ...]:
        return self._adaptive.counts

    def record_shard(self, shard_ns: int) -> None:
        """Record how long one of this worker's shards took, for one step."""
        self._this_step.append(shard_ns / 1e9)

    def before_barrier(self, step: int, shard_ns: int | None) -> None:
        self._keep()
        if self._is_due(step):
            self._window.write(self._latest)
            self._latest.clear()
        steps = self._end(step) - step
        super().before_barrier(step, None if shard_ns is None else shard_ns // steps)

    def after_barrier(self, step: int) -> None:
        super().after_barrier(step)
        if not self._is_due(step):
            return
        # before the policy may change
        done = self._end(step)
        was = self.policy
        decision = self._adaptive.observe(self._window.read())
        if decision is not None and decision.reason is not None and self._reports:
            self._report_decision(decision, done, was)

    def snapshot(self) -> dict[str, Tensor]:
        return _saved(self._adaptive.memory)

    def _keep(self) -> None:
        """Keep the mean of this worker's shards for a synchronous step, and each of its local steps."""
        times = self._this_step
        self._this_step = []
        if times and self._is_warm:  # the first step of a generation takes longer
            self._latest += times if self.policy is SyncPolicy.LOCAL_STEPS else [sum(times) / len(times)]
        self._is_warm = True

    def _end(self, step: int) -> int:
        """Steps that are committed after the barrier of `step`."""
        every = self._plan.strategy.sync_every if self.policy is SyncPolicy.LOCAL_STEPS else 1
        return min(step + every, self._plan.steps)

    def _is_due(self, step: int) -> bool:
        done = self._end(step)
        return len(self._names) > 1 and next_decision(step) <= done < self._plan.steps

    def _report_decision(self, decision: Decision, done: int, was: SyncPolicy) -> None:
        now = decision.state.setting
        adapted = Adapted(step=done, was=was, now=now, reason=decision.reason or "")
        counts = ",".join(map(str, self.counts))
        self._listener.event(
            "adapted",
            **{**adapted.fields(), "shares": counts},
            workers=",".join(self._names),
            generation=self._generation,
        )
        policies = was.value if now.policy is was else f"{was.value} → {now.policy.value}"
        self._listener.note(f"after step {done}: {policies}, because {adapted.reason}")


def initial_policy(plan: Plan, carried: dict[str, Tensor]) -> SyncPolicy:
    """The one that a generation begins with."""
    memory = memory_of(carried)
    if memory is not None:
        return memory.policy
    terms = AdaptiveTerms(
        allowed=plan.strategy.adaptive, batch_sizes=plan.batch_sizes, period=plan.strategy.sync_every
    )
    return terms.policies[0]


def memory_of(carried: dict[str, Tensor]) -> AdaptiveMemory | None:
    """None: nothing was committed yet."""
    if _DECIDED not in carried:
        return None
    policy_index, preferred_index, is_by_speed = carried[_DECIDED].tolist()
    policies = list(SyncPolicy)
    seconds = {f"worker-{int(number)}": own_s for number, own_s in carried[_SECONDS].tolist()}
    return AdaptiveMemory(
        policy=policies[policy_index],
        preferred=None if preferred_index < 0 else policies[preferred_index],
        is_by_speed=bool(is_by_speed),
        seconds=seconds or None,
    )


def _saved(memory: AdaptiveMemory) -> dict[str, Tensor]:
    policies = list(SyncPolicy)
    preferred_index = -1 if memory.preferred is None else policies.index(memory.preferred)
    rows = [(float(name.rpartition("-")[2]), own_s) for name, own_s in (memory.seconds or {}).items()]
    return {
        _DECIDED: torch.tensor([policies.index(memory.policy), preferred_index, int(memory.is_by_speed)]),
        _SECONDS: torch.tensor(rows, dtype=torch.float64).reshape(-1, 2),
    }
