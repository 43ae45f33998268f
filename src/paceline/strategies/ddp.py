"""torch DistributedDataParallel, as torch ships it: the reference for ssgd.

torch reduces the gradients during backward in its own buckets. The stop flag
cannot travel in them, so one extra number is reduced every few steps.
Compression uses torch's own communication hooks: fp16 and bf16 are summed in that
type, after dividing by N; PowerSGD begins after two plain steps, because torch
rebuilds its buckets after the first, and keeps its own error memory, which no
checkpoint holds.

One thing differs from torch: the buffers of batch normalisation are averaged
after every step, as in ssgd. torch broadcasts rank 0's before the next step, so
ranks would end with different statistics, and rank 0's would cover only its own
samples (decision 0030).
"""

from typing import ClassVar, Protocol

import torch
import torch._dynamo  # DDP's constructor needs it; imported here it is paid once, before workers fork
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.core.errors import MisfitError
from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Codec, Compression, Plan
from paceline.strategies.batch_norm import SharedSums, synchronize_batch_norm
from paceline.strategies.port import Begun, Links, Outcome, Replica, own_share
from paceline.transport.ports import Traffic
from paceline.transport.torch_dist import (
    TorchCollective,
    agree_to_stop,
    leave_group,
    ring_bytes,
    should_poll_stop,
)

PLAIN_STEPS = 2  # the minimum that torch allows (pytorch#51427)


class Hook(Protocol):
    def payload_bytes(self) -> int:
        """Bytes of the last step's gradients, as sent."""
        ...


class _CastHook:
    def __init__(self, wrapped: DistributedDataParallel, codec: Codec) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.fp16_compress_hook if codec is Codec.FP16 else default_hooks.bf16_compress_hook
        wrapped.register_comm_hook(None, hook)
        self._payload_bytes = sum(p.numel() for p in wrapped.parameters()) * torch.float16.itemsize

    def payload_bytes(self) -> int:
        return self._payload_bytes


class _PowerSgdHook:
    def __init__(self, wrapped: DistributedDataParallel, compress: Compression, seed: int) -> None:
        # Imported only here: it takes long, and few runs need it.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        assert compress.amount is not None, "the plan sets the rank of powersgd"
        self._state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=round(compress.amount),
            start_powerSGD_iter=PLAIN_STEPS,
            min_compression_rate=1,  # compress every tensor that becomes smaller, as in ssgd
            use_error_feedback=compress.error_feedback,
            orthogonalization_epsilon=1e-8,  # a gradient of zeros must not become NaN
            random_seed=seed % 2**32,
        )
        wrapped.register_comm_hook(self._state, powerSGD_hook.powerSGD_hook)
        parameters = list(wrapped.parameters())
        self._plain_numel = sum(p.numel() for p in parameters)
        self._itemsize = parameters[0].element_size()
        self._counted = 0

    def payload_bytes(self) -> int:
        """Bytes by torch's counter, which increases only while it compresses."""
        sent = self._state.total_numel_after_compression - self._counted
        self._counted += sent
        return (sent or self._plain_numel) * self._itemsize


def hook_of(compress: Compression, wrapped: DistributedDataParallel, *, seed: int) -> Hook:
    if compress.codec is Codec.POWERSGD:
        return _PowerSgdHook(wrapped, compress, seed)
    assert compress.codec in (Codec.FP16, Codec.BF16), f"torch has no hook for {compress.codec}"
    return _CastHook(wrapped, compress.codec)


class Ddp:
    channel: ClassVar[Channel] = Channel.TORCH

    def __init__(self, plan: Plan, links: Links) -> None:
        if len(set(plan.batch_sizes)) > 1:
            raise MisfitError(
                f"ddp averages gradients unweighted, but the batch sizes differ: {plan.batch_sizes}",
                "give every worker the same batch size, or use --mode ssgd, which weights them",
            )
        self._plan = plan
        self._links = links

    def prepare(self, replica: Replica, clock: Clock) -> None:
        self._replica = replica
        self._sums: SharedSums | None = None
        if self._plan.strategy.sync_batchnorm:
            self._sums = synchronize_batch_norm(replica.arena.module, self._collective_on(replica))
        # Buffers are averaged here: one reduction after the step instead of torch's broadcast before it.
        self._wrapped = DistributedDataParallel(replica.arena.module, broadcast_buffers=False)
        layout = replica.arena.layout
        self._buffers = replica.arena.state[layout.buffers_start : layout.tail_start]
        replica.forward = self._wrapped
        replica.arena.gathers_gradients = False
        payload = sum(p.numel() * p.element_size() for p in replica.arena.module.parameters())
        self._plain_bytes = ring_bytes(payload, self._links.world_size)
        self._buffer_bytes = ring_bytes(self._buffers.nbytes, self._links.world_size)
        self._hook: Hook | None = None
        if self._plan.compress is not None:
            self._hook = hook_of(self._plan.compress, self._wrapped, seed=self._plan.seed)

    def _collective_on(self, replica: Replica) -> TorchCollective:
        """A collective in DDP's process group: reductions of one group keep their order on every rank."""
        device = replica.arena.state.device
        return TorchCollective(device=device, clock=self._links.clock, timeout_s=self._plan.timeout_s)

    def begin_step(self, step: Step) -> Begun | None:
        return own_share(self._plan, self._links, step)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._average_buffers()
        apply_ns = self._replica.update()
        device = self._replica.arena.state.device
        stop = should_poll_stop(step, self._plan.steps) and agree_to_stop(wants_stop, device)
        return Outcome(traffic=self._traffic(), apply_ns=apply_ns, synced=True, stop=stop)

    def _average_buffers(self) -> None:
        if self._buffers.numel():
            dist.all_reduce(self._buffers)
            self._buffers.div_(self._links.world_size)

    def _traffic(self) -> Traffic:
        if self._hook is None:
            moved = self._plain_bytes
            saved = 0
        else:
            moved = ring_bytes(self._hook.payload_bytes(), self._links.world_size)
            saved = self._plain_bytes - moved
        every = moved + self._buffer_bytes
        traffic = Traffic(every, every, bytes_saved=saved)
        return traffic if self._sums is None else traffic + self._sums.take_traffic()

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...

    def close(self) -> None:
        # Before the group: its last owner must not be the wrapper's reducer, whose destructor holds the GIL
        # while it joins threads of gloo that may wait for it.
        self._replica.forward = self._replica.arena.module
        del self._wrapped
        leave_group()
