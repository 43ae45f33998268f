"""Hugging Face Accelerate's LocalSGD, entered before the first step and left after the last.

The accelerator it is given has what LocalSGD asks of one, no more: it reduces
by our group and returns a new tensor, as Accelerate's own `reduce` does.
"""

from contextlib import AbstractContextManager, nullcontext

from accelerate import DistributedType
from accelerate.local_sgd import LocalSGD
from torch import Tensor, nn

from paceline.core.ids import Step
from paceline.laws.peers.adapter import CollectiveGroup, PeerStrategy, local_update


class AccelerateLocalSgd(PeerStrategy):
    def start(self, model: nn.Module) -> None:
        accelerator = _Accelerator(self._group)
        self._local_sgd = LocalSGD(
            accelerator=accelerator,
            model=_Unsynchronised(model),
            local_sgd_steps=self._plan.strategy.sync_every,
        )
        self._local_sgd.__enter__()

    def update(self, step: Step) -> int:
        apply_ns = local_update(self._replica)
        self._local_sgd.step()
        if self.is_last(step):
            self._local_sgd.__exit__(None, None, None)
        return apply_ns


class _Accelerator:
    def __init__(self, group: CollectiveGroup) -> None:
        self._group = group
        is_alone = group.size() == 1
        self.distributed_type = DistributedType.NO if is_alone else DistributedType.MULTI_CPU

    def wait_for_everyone(self) -> None:
        """The reductions that follow wait for everyone by themselves."""

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        assert reduction == "mean", f"LocalSGD asks for a mean, not for {reduction}"
        copy = tensor.clone()
        self._group.average(copy)
        return copy


class _Unsynchronised(nn.Module):
    """As torch's DDP would be around the model; its gradients are never reduced here."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()
