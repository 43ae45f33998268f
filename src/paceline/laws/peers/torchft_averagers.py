"""torchft's LocalSGD and DiLoCo, hung on the optimizer's hooks as their context managers do.

Their Manager is torchft's own as far as it averages and chains callbacks; what
would ask a lighthouse who is alive is answered here: all are, in every step.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.manager import Manager

from paceline.core.ids import Step
from paceline.laws.peers.adapter import CollectiveGroup, HookedOptimizer, PeerStrategy

BUCKET_ELEMENTS = 4


class TorchftLocalSgd(PeerStrategy):
    def start(self, model: nn.Module) -> None:
        self._optimizer = HookedOptimizer(self._replica)
        manager = _Manager(self._group)
        LocalSGD(manager, model, self._optimizer, self._plan.strategy.sync_every).__enter__()

    def update(self, step: Step) -> int:
        self._optimizer.step()
        return self._optimizer.apply_ns


class TorchftDiloco(PeerStrategy):
    def start(self, model: nn.Module) -> None:
        options = self._plan.strategy
        self._optimizer = HookedOptimizer(self._replica)
        fragments = _fragments(model, options.fragments)
        diloco = DiLoCo(
            _Manager(self._group),
            fragments,
            self._optimizer,
            [self._outer(fragment) for fragment in fragments],
            sync_every=options.sync_every,
            fragment_sync_delay=options.sync_delay,
            fragment_update_alpha=options.mixing,
            **self.bucket_settings(),
        )
        diloco.__enter__()

    def update(self, step: Step) -> int:
        self._optimizer.step()
        return self._optimizer.apply_ns

    def bucket_settings(self) -> dict[str, bool | float]:
        return {}

    def _outer(self, fragment: nn.Module) -> torch.optim.Optimizer:
        lr = self._plan.strategy.outer_lr
        momentum = self._plan.strategy.outer_momentum
        return torch.optim.SGD(fragment.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)


class TorchftDilocoInBuckets(TorchftDiloco):
    """With buckets so small that a law's tiny model needs several; a large model does with any cap."""

    def bucket_settings(self) -> dict[str, bool | float]:
        element_bytes = self._replica.arena.layout.dtype.itemsize
        return {"use_bucketization": True, "bucket_cap_mb": BUCKET_ELEMENTS * element_bytes / 2**20}


class _Manager(Manager):  # type: ignore[misc]  # torchft is optional, so its classes have no type here
    """Without super().__init__, which would start servers and look for a lighthouse."""

    def __init__(self, group: CollectiveGroup) -> None:
        self._pg = group
        self._step = 0
        self._use_async_quorum = False
        self._errored = None
        self._logger = _NoLogger()

    def num_participants(self) -> int:
        return self._pg.size()

    def is_participating(self) -> bool:
        return True

    def current_step(self) -> int:
        return self._step

    def start_quorum(self, *_: object, **__: object) -> None: ...

    def wait_quorum(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def register_state_dict_fn(self, *_: object) -> None: ...

    def wrap_future(self, future: Any, *_: object, **__: object) -> Any:  # Any: torchft's own future
        """A timeout in seconds of a real clock has no meaning here."""
        return future

    def should_commit(self, *_: object, **__: object) -> bool:
        """An error would shrink the quorum; with no other replica, it ends the worker instead."""
        if self._errored is not None:
            raise self._errored.original_exception
        self._step += 1
        return True


class _NoLogger:
    """What torchft would write down and continue from, `should_commit` raises."""

    def info(self, _: str) -> None: ...

    def exception(self, _: str) -> None: ...


def _fragments(model: nn.Module, count: int) -> list[nn.Module]:
    """torchft wants modules: the model itself, or its parts in as many stretches."""
    if count == 1:
        return [model]
    parts = [child for child in model.children() if any(True for _ in child.parameters())]
    ends = [round(len(parts) * number / count) for number in range(count + 1)]
    return [nn.ModuleList(parts[a:b]) for a, b in pairwise(ends)]
