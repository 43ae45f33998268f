"""How do the workers of a generation share out its shards, notice a slow one, and let one go?

Before the meeting of a step everybody writes how long one of its shards took,
and whether it was asked to leave; after it everybody reads all rows and comes to
the same decisions, so nobody has to be asked. The first of them says so aloud.
Where steps are short that is done at some of the meetings only; at which ones
follows from what all have read, too.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Protocol

from paceline.errors import PeerLostError
from paceline.plan.plan import OnSlow
from paceline.sync.shares_by_speed import Dealt, SharesBySpeed, shards_between
from paceline.sync.slow_workers import Found, SlowWorkers
from paceline.transport.generation_board import GenerationBoard, Row

LISTEN_S = 0.01  # more often than this rows are not exchanged: it would cost a short step a few per cent
RARELY = 100  # meetings at most between two exchanges

_ANSWERS = {
    OnSlow.TOLERATE: "nothing is done about it (--on-slow tolerate)",
    OnSlow.REBALANCE: "shards are dealt out by speed",
    OnSlow.REPLACE: "it is replaced if that lasts",
}


class Voice(Protocol):
    """Where decisions are told."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None:
        """Of whoever starts the workers."""
        ...


class Silent:
    """A voice where nothing is decided about who does what."""

    def event(self, kind: str, **fields: str | int | float) -> None: ...

    def note(self, text: str) -> None: ...

    def ask_to_replace(self, worker: str, reason: str) -> None: ...


@dataclass(slots=True)
class OwnBest:
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
        best: OwnBest,
        wants_leave: Callable[[], bool],
        voice: Voice,
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
        self._board.write(Row(usual_ns, self._best.ns, int(self._wants_leave())))

    def after_meeting(self, step: int) -> None:
        if self._left:
            return
        rows = self._board.read()
        self._leaving = who_leaves(rows)
        seconds = [row.shard_ns / 1e9 if row.shard_ns else None for row in rows]
        step_s = max(count * (own_s or 0.0) for count, own_s in zip(self.counts, seconds, strict=True))
        bests_s = [row.best_ns / 1e9 or float("inf") for row in rows]
        for found in self._slow.heard(seconds, bests_s, step_s * self._every):
            self._tell(found, step)
        self._every = self._left = meetings_between(step_s)
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

    def _tell(self, found: Found, step: int) -> None:
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

    def _tell_shares(self, dealt: Dealt, step: int) -> None:
        counts = ",".join(map(str, dealt.counts))
        workers = ",".join(self._names)
        self._voice.event("shards_dealt", step=step, counts=counts, workers=workers, reason=dealt.reason)


def meetings_between(step_s: float) -> int:
    """From one exchange of rows to the next, if a step takes so long."""
    return min(RARELY, max(1, int(LISTEN_S / step_s))) if step_s > 0 else 1


def who_leaves(rows: Sequence[Row]) -> list[int]:
    """Those who were asked to; but somebody stays who has the state, until others have it too."""
    asked = [rank for rank, row in enumerate(rows) if row.leaves]
    return asked[1:] if len(asked) == len(rows) else asked
