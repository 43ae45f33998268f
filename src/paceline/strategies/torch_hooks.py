"""How does torch's DDP compress? By its own communication hooks, unchanged; we only count bytes.

fp16 and bf16 are summed in that type, after dividing by N. PowerSGD begins
after two plain steps, because torch rebuilds its buckets after the first, and
keeps its own error memory, which no checkpoint holds.
"""

from typing import Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.plan.plan import Codec, Compression

PLAIN_STEPS = 2  # the fewest that torch allows (pytorch#51427)


class Hook(Protocol):
    def payload_bytes(self) -> int:
        """Of the step that was just made."""
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
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs

        assert compress.amount is not None, "the plan says of which rank powersgd is"
        self._state = torchs.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=round(compress.amount),
            start_powerSGD_iter=PLAIN_STEPS,
            min_compression_rate=1,  # whatever becomes smaller at all, as in ssgd
            use_error_feedback=compress.error_feedback,
            orthogonalization_epsilon=1e-8,  # a gradient of zeros must not become NaN
            random_seed=seed % 2**32,
        )
        wrapped.register_comm_hook(self._state, torchs.powerSGD_hook)
        parameters = list(wrapped.parameters())
        self._plain_numel, self._itemsize = sum(p.numel() for p in parameters), parameters[0].element_size()
        self._counted = 0

    def payload_bytes(self) -> int:
        """By torch's own count, which stands still while it compresses nothing."""
        sent = self._state.total_numel_after_compression - self._counted
        self._counted += sent
        return (sent or self._plain_numel) * self._itemsize


def hook_of(compress: Compression, wrapped: DistributedDataParallel, *, seed: int) -> Hook:
    if compress.codec is Codec.POWERSGD:
        return _PowerSgdHook(wrapped, compress, seed)
    assert compress.codec in (Codec.FP16, Codec.BF16), f"torch has no hook for {compress.codec}"
    return _CastHook(wrapped, compress.codec)
