"""Gradient computation: the gradient of one work unit, bit by bit the same in every process.

The plan, the work unit and the parameters fix everything that could make a difference: the samples, the seed
of the generator, the order of operations. So a replay in one process computes the same bits as the workers.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from paceline.core.clock import Clock
from paceline.plan.plan import Plan
from paceline.sync.assignment import WorkUnit
from paceline.sync.rng import draw_u64
from paceline.sync.samples import SampleStream
from paceline.tasks.port import Batch, Foresighted, Task, keeps_order, to_device
from paceline.tasks.torch_adapters import samples_of
from paceline.worker.batches import Feed
from paceline.worker.replica import Replica

AHEAD = 4  # steps whose samples are announced to data that is read from elsewhere


class Times(NamedTuple):
    start: int
    data_end: int
    forward_end: int
    backward_end: int


class Source(Protocol):
    """Source of gradients for the loop."""

    times_ns: Times

    def compute(self, replica: Replica, share: WorkUnit, check: Callable[[], None] = lambda: None) -> float:
        """Leave the share's gradient in the replica's arena, and return the loss.

        `check` is called between forward and backward, and may raise if the gradient is no longer needed.
        """
        ...


class GradientSource:
    """Gradients of any share, and when the parts of the last one ended."""

    def __init__(
        self, plan: Plan, task: Task, device: torch.device, clock: Clock, *, ahead: bool = False
    ) -> None:
        """`ahead`: processes of this worker may load batches before they are needed."""
        self._plan = plan
        self._task = task
        self._device = device
        self._clock = clock
        self._samples = samples_of(task)
        self._stream = SampleStream(
            num_samples=len(self._samples),
            seed=plan.seed,
            in_order=keeps_order(self._samples),
            block=plan.shuffle_block,
        )
        pins = device.type == "cuda"
        self._feed = Feed(plan, self._samples, self._stream, ahead=ahead, pins=pins)
        self.times_ns = Times(0, 0, 0, 0)
        self._foresighted = self._samples if isinstance(self._samples, Foresighted) else None
        self._announced: dict[int, int] = {}  # the last step of each rank of which the samples were announced

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def compute(self, replica: Replica, share: WorkUnit, check: Callable[[], None] = lambda: None) -> float:
        """Forward and backward; leaves the gradient in the arena and returns the loss."""
        now = self._clock.now_ns
        started = now()
        replica.step = share.step
        # Dropout and the like draw the same numbers in a replay, and in any worker.
        seed = draw_u64(self._plan.seed, share.rank, share.step) >> 1
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index].manual_seed(seed)
        if self._plan.grad_accumulation > 1:
            return self._in_parts(replica, share, started)
        batch = self.batch_of(share)
        got_data = now()
        loss = self._task.loss(replica.forward, batch)
        got_loss = now()
        check()
        replica.arena.expect_backward()
        weighted = loss if replica.loss_weight == 1.0 else loss * replica.loss_weight
        weighted.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        replica.arena.collect_gradients()
        value = float(loss.detach())
        self.times_ns = Times(started, got_data, got_loss, now())
        return value

    def _in_parts(self, replica: Replica, share: WorkUnit, started: int) -> float:
        """The same mean, as the sum of its parts; each phase lasts as long as those of all parts together."""
        now = self._clock.now_ns
        arena = replica.arena
        num_samples = share.size(self._plan.batch_sizes)
        done = 0
        value = 0.0
        times = Times(started, started, started, started)
        arena.expect_backward()
        for part, size in self._feed.batches(share):
            done += size
            arena.expect_more(more=done < num_samples)
            batch = self._on_device(part)
            weight = size / num_samples
            got_data = now()
            loss = self._task.loss(replica.forward, batch)
            got_loss = now()
            (loss * (weight * replica.loss_weight)).backward()  # type: ignore[no-untyped-call]  # torch's
            value += weight * float(loss.detach())
            times = _later(times, got_data, got_loss, now())
        arena.collect_gradients()
        self.times_ns = times
        return value

    def batch_of(self, share: WorkUnit) -> Batch:
        """The samples of this share, on the device."""
        ((batch, _),) = self._feed.batches(share)
        if self._foresighted is not None:
            self._announce(self._foresighted, share)
        return self._on_device(batch)

    def _on_device(self, batch: Batch) -> Batch:
        return batch if self._device.type == "cpu" else to_device(batch, self._device)

    def _announce(self, samples: Foresighted, share: WorkUnit) -> None:
        """Announce the samples that this worker most likely needs next. A wrong guess only costs time."""
        last = min(share.step + AHEAD, self._plan.steps - 1)
        first = max(share.step, self._announced.get(share.rank, 0)) + 1
        for step in range(first, last + 1):
            samples.expect(self._stream.take(*WorkUnit(share.rank, step).samples(self._plan.batch_sizes)))
        self._announced[share.rank] = last


def _later(so_far: Times, got_data: int, got_loss: int, ended: int) -> Times:
    """Add one part, as if all data had been loaded first and all forward passes had followed."""
    data = got_data - so_far.backward_end
    forward = got_loss - got_data
    data_end = so_far.data_end + data
    return Times(so_far.start, data_end, so_far.forward_end + data + forward, ended)
