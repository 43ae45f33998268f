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
    """Which worker computes which shards, under which policy; the same result on all workers."""

    @property
    def policy(self) -> SyncPolicy:
        """The policy of the next step, or round."""
        ...

    def record_shard(self, shard_ns: int) -> None:
        """The time of one step of one of this worker's shards."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """The state of the decisions, as of the last commit."""
        ...


class _Synchronous(Sharded):
    def resume_at(self, committed: int) -> None:
        """Continue from what was committed under another policy."""
        self.committed = committed
        self._own_shards = self._sharing.own_shards()
        for buffer, before in zip(self._buffers, self._before, strict=True):
            before.copy_(buffer)

    def release_slots(self) -> None:
        """Write gradients to the arena's own vector again."""
        self._arena.place_gradients(self._own)
        self._arena.bind_gradients()


class _Local(ShardedRounds):
    def resume_at(self, replica: Replica, committed: int) -> None:
        """Continue from what was committed under another policy: every shard starts with the same state."""
        self.restore({})
        self.prepare(replica, Clock(committed))
        self._own_shards = self._sharing.own_shards()
        self._live = None

    def common_own_state(self) -> bytes:
        """The mean of the shards' own states."""
        return self._own.average_own_states(self.kept(), [1.0] * len(self._kept), with_numbers=True)[0]

    def _next_end(self) -> int:
        """A round begins at the decision, and is as long as every other."""
        return min(self.committed + self._plan.strategy.sync_every, self._plan.steps)


class ShardedAdaptive:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links, sharing: AdaptiveSharing) -> None:
        self._sharing = sharing
        self._clock = links.clock
        self._synchronous = _Synchronous(plan, links, sharing)
        self._local = _Local(plan, links, sharing)
        self._policy = sharing.policy  # policy of the current step or round
        self._began_ns = 0

    @property
    def committed(self) -> int:
        return self._active.committed

    @property
    def steps_done(self) -> int:
        return self.committed

    @property
    def gradients(self) -> int:
        return self._synchronous.gradients + self._local.gradients

    @property
    def _is_local(self) -> bool:
        return self._policy is SyncPolicy.LOCAL_STEPS

    @property
    def _active(self) -> Sharded | ShardedRounds:
        return self._local if self._is_local else self._synchronous

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self._synchronous.prepare(replica, clock)
        if self._is_local:
            self._local.prepare(replica, clock)
        replica.arena.absent_are_zero = True

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        start = self._active.begin_step(step)
        self._began_ns = self._clock.now_ns()
        if isinstance(start, Outcome):
            self._apply_decision()
        return start

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._sharing.record_shard(self._clock.now_ns() - self._began_ns)
        outcome = self._active.finish_step(step, wants_stop=wants_stop)
        if outcome.synced:
            self._apply_decision()
        return outcome

    def undo(self) -> None:
        self._active.undo()

    def settle(self) -> None:
        if self._is_local:
            self._local.settle()

    def snapshot(self) -> dict[str, Tensor]:
        return {**self._sharing.snapshot(), **self._active.snapshot()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        of_sharing = self._sharing.snapshot()  # the sharing rule was restored before
        self._local.restore({name: tensor for name, tensor in saved.items() if name not in of_sharing})

    def close(self) -> None:
        self._synchronous.close()

    def _apply_decision(self) -> None:
        """Switch the policy after a commit. Nothing here waits, so no failure can interrupt it."""
        was_local = self._is_local
        committed = self.committed
        self._policy = self._sharing.policy
        if self._is_local and not was_local:
            self._synchronous.release_slots()
            self._local.resume_at(self._replica, committed)
        elif was_local and not self._is_local:
            assert isinstance(self._replica, OwnState), "shards changed places in it"
            self._replica.restore_own_state(self._local.common_own_state())
            self._replica.count_steps(committed)
            self._synchronous.resume_at(committed)
