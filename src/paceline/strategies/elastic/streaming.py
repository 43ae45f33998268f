"""Elastic Streaming DiLoCo over logical shards: commits are complete although fragments are pending.

At no time do all shards have common parameters. So every worker holds each
shard's own parameters, as last published, besides the common state: θ, its
velocity, and the means that are pending. A round ends at every step that averages
a fragment. What a mean does to θ is the same for every shard, so it is computed
ahead, and each shard applies it at the step at which it is due. The bits are those
of the plain mode with one worker per shard.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import count

import torch
from torch import Tensor

from paceline.core.ids import Clock
from paceline.strategies.elastic.rounds import ShardedRounds
from paceline.strategies.means import outer_step
from paceline.strategies.port import Replica
from paceline.sync.averaging import split_fragments, starts_after
from paceline.transport.ports import NO_TRAFFIC, Traffic

_THETA = "theta"
_VELOCITY = "velocity"
_MEANS = "means"
_BUFFERS = "buffers"
_DUE = "due"
_FOLLOW = "follow"
_NEVER = 0  # before the first finished step
_SIZE = 8  # bytes of a number


class _Follow(IntEnum):
    """Action of every shard on a fragment's θ at the start of a round."""

    NOTHING = 0
    MIXED = 1  # mix it in: θ moved at the end of the previous round
    WHOLE = 2  # copy it: the run had ended there, and was resumed


@dataclass(slots=True)
class _Fragment:
    """A slice of the parameters."""

    number: int
    start: int
    end: int
    theta: Tensor
    velocity: Tensor
    mean: Tensor  # pending if `due` is set
    due: int  # the finished step after which the mean is applied
    follow: _Follow
    next_theta: Tensor  # θ after the pending mean
    next_velocity: Tensor

    @property
    def is_pending(self) -> bool:
        return self.due != _NEVER


class ShardedStreaming(ShardedRounds):
    def prepare(self, replica: Replica, clock: Clock) -> None:
        saved = self._saved
        layout = replica.arena.layout
        state = replica.arena.state
        size = layout.buffers_start
        self._size = size
        zeros = torch.zeros_like(state[:size])
        self._vectors = {
            _THETA: torch.empty_like(zeros).copy_(saved.get(_THETA, state[:size])),
            _VELOCITY: torch.empty_like(zeros).copy_(saved.get(_VELOCITY, zeros)),
            _MEANS: torch.empty_like(zeros).copy_(saved.get(_MEANS, zeros)),
        }
        buffers = state[size : layout.tail_start]
        self._shared_buffers = torch.empty_like(buffers).copy_(saved.get(_BUFFERS, buffers))
        bounds = split_fragments(size, self._plan.strategy.fragments)
        due = [_NEVER] * len(bounds)
        follow: list[int] = [_Follow.NOTHING] * len(bounds)
        self._has_new_buffers = False
        if saved:
            due = saved[_DUE].tolist()
            *follow, new_buffers = saved[_FOLLOW].tolist()
            self._has_new_buffers = bool(new_buffers)
        self._fragments = [
            self._fragment(number, start_end, due[number], _Follow(follow[number]))
            for number, start_end in enumerate(bounds)
        ]
        super().prepare(replica, clock)
        self._compute_next_thetas()

    def _fragment(self, number: int, bounds: tuple[int, int], due: int, follow: _Follow) -> _Fragment:
        start, end = bounds
        theta, velocity, mean = (self._vectors[name][start:end] for name in (_THETA, _VELOCITY, _MEANS))
        return _Fragment(
            number, start, end, theta, velocity, mean, due, follow, theta.clone(), velocity.clone()
        )

    def settle(self) -> None:
        """Between two rounds: load the first shard's parameters and own state."""
        self._load_shard(0)

    def snapshot(self) -> dict[str, Tensor]:
        follow = [int(fragment.follow) for fragment in self._fragments]
        return {
            **super().snapshot(),
            **self._vectors,
            _BUFFERS: self._shared_buffers,
            _DUE: torch.tensor([fragment.due for fragment in self._fragments]),
            _FOLLOW: torch.tensor([*follow, int(self._has_new_buffers)]),
        }

    def _next_end(self) -> int:
        later = count(self.committed + 1)
        return next(done for done in later if done >= self._plan.steps or self._starting(done))

    def _starting(self, finished: int) -> list[_Fragment]:
        """The fragments whose sync starts after this step."""
        every = self._plan.strategy.sync_every
        fragments = len(self._fragments)
        return [
            fragment
            for fragment in self._fragments
            if starts_after(finished, fragment.number, every=every, fragments=fragments)
        ]

    # One shard.

    def _load_shard(self, shard: int) -> None:
        data = self.kept_by(shard)
        state = self._arena.state
        offset = _SIZE + int.from_bytes(data[:_SIZE], "little")
        state.copy_(torch.frombuffer(bytearray(data[offset:]), dtype=state.dtype))
        self._own.restore_own_state(data[_SIZE:offset])
        for fragment in self._fragments:
            if fragment.follow is not _Follow.NOTHING:
                is_whole = fragment.follow is _Follow.WHOLE
                self._mix(fragment, fragment.theta, 0.0 if is_whole else self._plan.strategy.mixing)
        if self._has_new_buffers:
            self._take_buffers()

    def _own_state(self) -> bytes:
        own = self._own.own_state()
        vector: bytes = self._arena.state.cpu().numpy().tobytes()
        return len(own).to_bytes(_SIZE, "little") + own + vector

    def _update(self) -> int:
        took_ns = super()._update()
        finished = self.committed + self._made + 1
        for fragment in self._fragments:
            if fragment.due == finished:
                self._mix(fragment, fragment.next_theta, self._plan.strategy.mixing)
        return took_ns

    def _fill_slot(self, shard: int) -> None:
        if self._end == self._plan.steps:
            self._apply_pending_at_end()
        super()._fill_slot(shard)

    def _apply_pending_at_end(self) -> None:
        """End of the run: apply the pending means of the fragments that are not averaged at this step."""
        starting = self._starting(self._end)
        for fragment in self._fragments:
            if fragment.due > self._end and fragment not in starting:
                self._mix(fragment, fragment.next_theta, self._plan.strategy.mixing)

    def _mix(self, fragment: _Fragment, theta: Tensor, mixing: float) -> None:
        local = self._arena.state[fragment.start : fragment.end]
        if mixing == 0.0:
            local.copy_(theta)
        else:
            local.mul_(mixing).add_(theta, alpha=1.0 - mixing)

    def _take_buffers(self) -> None:
        self._arena.state[self._size : self._arena.layout.tail_start].copy_(self._shared_buffers)

    # All shards.

    def _before_end(self, *, stop: bool) -> Traffic:
        """This round became the last by a stop request: publish its shards again, in their final state."""
        if not stop or self._end == self._plan.steps:
            return NO_TRAFFIC
        state = self._arena.state
        for shard, data in self._finished.items():
            offset = _SIZE + int.from_bytes(data[:_SIZE], "little")
            state.copy_(torch.frombuffer(bytearray(data[offset:]), dtype=state.dtype))
            self._apply_pending_at_end()
            super()._fill_slot(shard)
        return self._rounds.mean(self._finished)

    def _apply_mean(self, *, is_end: bool) -> None:
        starting = self._starting(self._end)
        for fragment in self._fragments:
            fragment.follow = _Follow.NOTHING
            if fragment.is_pending and fragment.due <= self._end:
                fragment.theta.copy_(fragment.next_theta)
                fragment.velocity.copy_(fragment.next_velocity)
                fragment.due = _NEVER
        for fragment in starting:
            fragment.mean.copy_(self._mean[fragment.start : fragment.end])
            fragment.due = self._end + self._plan.strategy.sync_delay
            if fragment.due == self._end:
                self._step(fragment)
                fragment.follow = _Follow.MIXED
        self._has_new_buffers = is_end or any(fragment.number == 0 for fragment in starting)
        if self._has_new_buffers:
            self._shared_buffers.copy_(self._mean[self._size : self._arena.layout.tail_start])
        if is_end:
            self._sync_all(starting)
        self._compute_next_thetas()

    def _sync_all(self, just_averaged: list[_Fragment]) -> None:
        """End of the run: copy θ to all shards."""
        for fragment in self._fragments:
            if fragment.is_pending:
                self._step(fragment)
            if fragment not in just_averaged:
                fragment.mean.copy_(self._mean[fragment.start : fragment.end])
                self._step(fragment)
            fragment.follow = _Follow.WHOLE
            self._mix(fragment, fragment.theta, 0.0)
        self._take_buffers()

    def _step(self, fragment: _Fragment) -> None:
        options = self._plan.strategy
        lr = options.outer_lr
        momentum = options.outer_momentum
        outer_step(fragment.theta, fragment.velocity, fragment.mean, lr=lr, momentum=momentum)
        fragment.due = _NEVER

    def _compute_next_thetas(self) -> None:
        """Compute θ and its velocity after each pending mean."""
        options = self._plan.strategy
        for fragment in self._fragments:
            if fragment.is_pending:
                fragment.next_theta.copy_(fragment.theta)
                fragment.next_velocity.copy_(fragment.velocity)
                outer_step(
                    fragment.next_theta,
                    fragment.next_velocity,
                    fragment.mean,
                    lr=options.outer_lr,
                    momentum=options.outer_momentum,
                )
