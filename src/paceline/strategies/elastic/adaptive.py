"""Elastic adaptive mode: switches between synchronous steps and local rounds over logical shards.

Either the gradients of a step are averaged (synchronous.py), or shards train alone for a round and their
parameters are averaged (rounds.py). The sharing rule chooses the policy, which changes only at a commit.
From ssgd to local steps every shard copies the common optimizer state; on the way back the shards' states
are replaced by their mean. The result depends on the policies, not on the number of workers: its bits are
those of plain `adaptive` with one worker per shard and the same policies at the same steps.
"""

from typing import ClassVar, Protocol

from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.elastic.rounds import ShardedRounds
from paceline.strategies.elastic.synchronous import Sharded, ShardSharing
from paceline.strategies.port import Begun, Links, Outcome, OwnState, Replica
from paceline.sync.adaptive_setting import SyncPolicy


class AdaptiveSharing(ShardSharing, Protocol):
    """Who does which shards, and in which way. Everybody who is there comes to the same answers."""

    @property
    def way(self) -> SyncPolicy:
        """Of the next step, or round."""
        ...

    def took(self, shard_ns: int) -> None:
        """One of our shards took so long, for one step."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """What is remembered of decisions, as of the last commit."""
        ...


class _Together(Sharded):
    def go_on(self, committed: int) -> None:
        """From what was committed in another way."""
        self.committed = committed
        self._mine = self._sharing.mine()
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)

    def step_aside(self) -> None:
        """Gradients are written to their own place again."""
        self._arena.place_gradients(self._own)
        self._arena.bind_gradients()


class _Alone(ShardedRounds):
    def go_on(self, replica: Replica, committed: int) -> None:
        """From what was committed in another way: every shard goes on with the same."""
        self.restore({})
        self.prepare(replica, Clock(committed))
        self._mine = self._sharing.mine()
        self._live = None

    def common_own_state(self) -> bytes:
        """The mean of what the shards keep for themselves."""
        return self._own.average_own_states(self.kept(), [1.0] * len(self._kept), with_numbers=True)[0]

    def _next_end(self) -> int:
        """A round begins wherever it was decided on, and is then as long as every other."""
        return min(self.committed + self._plan.strategy.sync_every, self._plan.steps)


class ShardedAdaptive:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, sharing: AdaptiveSharing) -> None:
        self._sharing = sharing
        self._clock = links.clock
        self._together = _Together(plan, links, sharing)
        self._alone = _Alone(plan, links, sharing)
        self._way = sharing.way  # that we are at
        self._began_ns = 0

    @property
    def committed(self) -> int:
        return self._active.committed

    @property
    def steps_done(self) -> int:
        return self.committed

    @property
    def gradients(self) -> int:
        return self._together.gradients + self._alone.gradients

    @property
    def _is_alone(self) -> bool:
        return self._way is SyncPolicy.LOCAL_STEPS

    @property
    def _active(self) -> Sharded | ShardedRounds:
        return self._alone if self._is_alone else self._together

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self._together.prepare(replica, clock)
        if self._is_alone:
            self._alone.prepare(replica, clock)

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        begun = self._active.begin_step(step)
        self._began_ns = self._clock.now_ns()
        if isinstance(begun, Outcome):
            self._follow_the_decision()
        return begun

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._sharing.took(self._clock.now_ns() - self._began_ns)
        outcome = self._active.finish_step(step, wants_stop=wants_stop)
        if outcome.synced:
            self._follow_the_decision()
        return outcome

    def undo(self) -> None:
        self._active.undo()

    def settle(self) -> None:
        if self._is_alone:
            self._alone.settle()

    def snapshot(self) -> dict[str, Tensor]:
        return {**self._sharing.snapshot(), **self._active.snapshot()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        known = self._sharing.snapshot()  # it was told before
        self._alone.restore({name: tensor for name, tensor in saved.items() if name not in known})

    def close(self) -> None:
        self._together.close()

    def _follow_the_decision(self) -> None:
        """Something was committed. Nothing is waited for here, so nothing can come between."""
        was_alone = self._is_alone
        committed = self.committed
        self._way = self._sharing.way
        if self._is_alone and not was_alone:
            self._together.step_aside()
            self._alone.go_on(self._replica, committed)
        elif was_alone and not self._is_alone:
            assert isinstance(self._replica, OwnState), "shards changed places in it"
            self._replica.restore_own_state(self._alone.common_own_state())
            self._replica.count_steps(committed)
            self._together.go_on(committed)
