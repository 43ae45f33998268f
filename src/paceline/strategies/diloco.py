"""DiLoCo: many local steps, then an outer optimizer moves the common parameters.

All workers hold the same θ. After H local steps each, Δ = θ - mean of their
parameters is the outer gradient, and θ makes one step of SGD with Nesterov
momentum; all workers continue from θ (Douillard 2023, arXiv 2311.08105). The
inner optimizers keep their state.

Streaming (arXiv 2501.18512): the parameters are split into fragments that take
turns within the H steps; the mean of a fragment is applied `sync_delay` steps
later, and mixed: mixing·local + (1 - mixing)·θ. One fragment, no delay and no
mixing is plain DiLoCo. After the last step all fragments are synced and all
workers hold θ.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.means import Mean, mean_of, outer_step, strip_prefix
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.sync.averaging import mean_weight, split_fragments, starts_after
from paceline.transport.arena import STOP_FLAG
from paceline.transport.ports import NO_TRAFFIC, Traffic


@dataclass(slots=True)
class _Fragment:
    """A slice of the parameters: its common value, its outer momentum, and its pending mean."""

    number: int
    start: int
    end: int
    theta: Tensor
    velocity: Tensor
    shared: Tensor  # where the workers' values are averaged
    averaging: Mean
    due: int | None = None  # the finished step after which the average is applied

    @property
    def mean(self) -> Tensor:
        return self.shared[: self.end - self.start]


class Diloco:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "diloco meets by a collective"
        self._plan = plan
        self._links = links
        self._collective = links.collective
        self._options = plan.strategy
        self._weight = mean_weight(links.rank, plan.batch_sizes)
        self._saved: dict[str, Tensor] = {}
        self._fragments: list[_Fragment] = []

    def prepare(self, replica: Replica, clock: Clock) -> None:
        layout = replica.arena.layout
        self._replica = replica
        self._arena = replica.arena
        common = self._collective.allocate(layout.numel, layout.dtype)
        common.copy_(self._arena.state)
        self._collective.broadcast(common)
        self._arena.state.copy_(common)
        for number, (start, end) in enumerate(split_fragments(layout.buffers_start, self._options.fragments)):
            # The first fragment also carries the buffers and, in the tail, the stop flag.
            rest = layout.numel - layout.buffers_start if number == 0 else 0
            shared = self._collective.allocate(end - start + rest, layout.dtype)
            theta = common[start:end].clone()
            # A fragment may end within a tensor, so only a single one consists of whole tensors.
            whole = layout.parameters if self._options.fragments == 1 else ()
            averaging = mean_of(self._plan, self._links, shared, lossy_end=end - start, pieces=whole)
            fragment = _Fragment(number, start, end, theta, theta.new_zeros(theta.shape), shared, averaging)
            averaging.restore(strip_prefix(self._saved, f"mean.{number}."))
            if self._saved:
                fragment.theta.copy_(self._saved[f"theta.{number}"])
                fragment.velocity.copy_(self._saved[f"velocity.{number}"])
            self._fragments.append(fragment)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._replica.update()
        finished = step + 1
        for fragment in self._fragments:
            if fragment.due == finished:
                self._apply(fragment, mixing=self._options.mixing)
        starting = [f for f in self._fragments if self._starts(f, finished)]
        traffic = sum((self._average(f, wants_stop=wants_stop) for f in starting), start=NO_TRAFFIC)
        for fragment in starting:
            fragment.due = finished + self._options.sync_delay
            if fragment.due == finished:
                self._apply(fragment, mixing=self._options.mixing)
        stop = any(f.number == 0 for f in starting) and bool(self._tail()[STOP_FLAG] > 0)
        ends = stop or finished == self._plan.steps
        if ends:
            traffic += self._sync_all(starting)
        synced = ends or (len(self._fragments) == 1 and bool(starting) and self._holds_theta())
        return Outcome(traffic=traffic, apply_ns=apply_ns, synced=synced, stop=stop)

    def snapshot(self) -> dict[str, Tensor]:
        """The outer state; it is saved only when no mean is pending."""
        thetas = {f"theta.{f.number}": f.theta for f in self._fragments}
        velocities = {f"velocity.{f.number}": f.velocity for f in self._fragments}
        memories = {
            f"mean.{f.number}.{name}": tensor
            for f in self._fragments
            for name, tensor in f.averaging.snapshot().items()
        }
        return thetas | velocities | memories

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()

    def _starts(self, fragment: _Fragment, finished: int) -> bool:
        every = self._options.sync_every
        fragments = len(self._fragments)
        return starts_after(finished, fragment.number, every=every, fragments=fragments)

    def _holds_theta(self) -> bool:
        return self._options.sync_delay == 0 and self._options.mixing == 0.0

    def _average(self, fragment: _Fragment, *, wants_stop: bool) -> Traffic:
        fragment.mean.copy_(self._arena.state[fragment.start : fragment.end])
        if fragment.averaging.is_lossy:
            fragment.mean.sub_(fragment.theta)
        if fragment.number == 0:
            self._rest(fragment).copy_(self._arena.state[self._arena.layout.buffers_start :])
        if self._weight != 1.0:
            fragment.shared.mul_(self._weight)
        if fragment.number == 0:
            self._tail()[STOP_FLAG] = float(wants_stop)
        traffic = fragment.averaging.reduce()
        if fragment.averaging.is_lossy:
            fragment.mean.add_(fragment.theta)
        if fragment.number == 0:
            layout = self._arena.layout
            buffers = slice(layout.buffers_start, layout.tail_start)
            self._arena.state[buffers] = self._rest(fragment)[: layout.tail_start - layout.buffers_start]
        return traffic

    def _apply(self, fragment: _Fragment, *, mixing: float) -> None:
        """Make one outer step, then mix θ into the local parameters."""
        lr = self._options.outer_lr
        momentum = self._options.outer_momentum
        outer_step(fragment.theta, fragment.velocity, fragment.mean, lr=lr, momentum=momentum)
        fragment.due = None
        self._mix(fragment, mixing)

    def _mix(self, fragment: _Fragment, mixing: float) -> None:
        local = self._arena.state[fragment.start : fragment.end]
        if mixing == 0.0:
            local.copy_(fragment.theta)
        else:
            local.mul_(mixing).add_(fragment.theta, alpha=1.0 - mixing)

    def _sync_all(self, just_averaged: list[_Fragment]) -> Traffic:
        """End of the run: apply pending means, sync the other fragments, and copy θ to every worker."""
        traffic = NO_TRAFFIC
        for fragment in self._fragments:
            if fragment.due is not None:
                self._apply(fragment, mixing=self._options.mixing)
            if fragment not in just_averaged:
                traffic += self._average(fragment, wants_stop=False)
                self._apply(fragment, mixing=0.0)
            self._mix(fragment, mixing=0.0)
        return traffic

    def _rest(self, fragment: _Fragment) -> Tensor:
        return fragment.shared[fragment.end - fragment.start :]

    def _tail(self) -> Tensor:
        layout = self._arena.layout
        return self._fragments[0].shared[layout.tail_start - layout.numel :]
