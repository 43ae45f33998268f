"""Accelerator of Accelerate that makes a script a worker of a run: all modes, elastic runs, each sample once.

    from paceline.accelerate import Accelerator  # instead of accelerate.Accelerator
    for epoch in accelerator.epochs(3):  # instead of range(3)

To Accelerate each worker is the only process: `num_processes` is 1, so schedules, `len(loader)` and batch
sizes have the numbers of the script, and `gather_for_metrics` returns what it is given, once. Files and
trackers are the main worker's. The first loader that shuffles is the training data; other loaders are as
without a run.
See docs/guides/your-own-script.md.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, overload

import accelerate
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, RandomSampler

from paceline.core.errors import script_error
from paceline.worker.script.run import join


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # accelerate may be missing, and is not typed
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: those of accelerate.Accelerator
        self.run = join()
        super().__init__(*args, **kwargs)
        self._training: tuple[DataLoader[Any], object] | None = None  # the script's loader, and the run's
        if self.num_processes > 1 or self.mixed_precision == "fp16":
            what = "mixed_precision='fp16'" if self.num_processes == 1 else f"{self.num_processes} processes"
            message = f"the Accelerator was told to use {what}, which a run replaces"
            raise script_error("E120", message, "start it with  paceline run; for mixed precision use 'bf16'")

    @overload
    def epochs(self, stop: int, /) -> Iterator[int]: ...

    @overload
    def epochs(self, start: int, stop: int, /) -> Iterator[int]: ...

    def epochs(self, *bounds: int) -> Iterator[int]:
        """Like `range(stop)` or `range(start, stop)`, from the epoch in which the run stands."""
        return self.run.epochs(*bounds)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:  # Any: as Accelerate declares it
        """Prepare the objects for Accelerate, and those of the training for the run."""
        loader = _training_loader(args) if self._training is None else None
        trained = [item for item in args if isinstance(item, nn.Module | Optimizer | LRScheduler)]
        if trained:
            self.run.prepare(*trained, accumulate=self.gradient_accumulation_steps)
        if loader is not None:
            self._training = loader, self.run.prepare(loader, accumulate=self.gradient_accumulation_steps)
        return super().prepare(*args, **kwargs)

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:  # Any: see prepare
        if self._training is not None and data_loader is self._training[0]:
            return _OnDevice(self._training[1], self)
        return super().prepare_data_loader(data_loader, *args, **kwargs)

    # The training step

    def backward(self, loss: Tensor, **kwargs: Any) -> None:  # Any: as Accelerate declares it
        self.run.backward(loss / self.gradient_accumulation_steps, **kwargs)

    def clip_grad_norm_(
        self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float = 2
    ) -> Tensor | None:
        """The norm, which the tensor has after `optimizer.step()`."""
        if norm_type != 2:
            message = f"clip_grad_norm_ got norm_type={norm_type}, and a run clips by the 2-norm"
            raise script_error("E122", message, "leave norm_type out")
        return self.run.clip_grad_norm_(parameters, max_norm) if self.sync_gradients else None

    def clip_grad_value_(self, parameters: Iterable[nn.Parameter], clip_value: float) -> None:
        if self.sync_gradients:
            self.run.clip_grad_value_(parameters, clip_value)

    # The main worker's

    @property
    def is_main_process(self) -> bool:
        return self.run.is_main

    @property
    def is_local_main_process(self) -> bool:
        return self.run.is_main

    @property
    def is_last_process(self) -> bool:
        return self.run.is_main

    def print(self, *args: Any, **kwargs: Any) -> None:  # Any: those of print
        if self.run.is_main:
            print(*args, **kwargs)

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:  # Any: as Accelerate declares it
        if self.run.is_main:
            super().init_trackers(*args, **kwargs)

    def save(self, obj: Any, *args: Any, **kwargs: Any) -> None:  # Any: as Accelerate declares it
        if self.run.is_main:
            super().save(_apart(obj), *args, **kwargs)

    def get_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # Any: as Accelerate declares it
        return _apart(super().get_state_dict(*args, **kwargs))

    def save_model(self, *args: Any, **kwargs: Any) -> None:  # Any: as Accelerate declares it
        if self.run.is_main:
            super().save_model(*args, **kwargs)

    def save_state(self, *args: Any, **kwargs: Any) -> Any:  # Any: as Accelerate declares it
        """Save a state for other programs; what the run resumes from are checkpoints of its own."""
        return super().save_state(*args, **kwargs) if self.run.is_main else None

    def load_state(self, *args: Any, **kwargs: Any) -> NoReturn:  # Any: as Accelerate declares it
        message = "load_state does not say which samples were used"
        raise script_error("E130", message, "leave it out, and resume the run:  paceline run --resume RUN")

    def skip_first_batches(
        self, dataloader: Any, num_batches: int = 0
    ) -> Any:  # Any: as Accelerate declares it
        if isinstance(dataloader, _OnDevice):
            message = "skip_first_batches got the loader of the training data, whose position is the run's"
            raise script_error(
                "E130", message, "leave it out, and resume the run:  paceline run --resume RUN"
            )
        return super().skip_first_batches(dataloader, num_batches)


class _OnDevice:
    """The run's loader, with its batches on the device of Accelerate."""

    def __init__(self, loader: Any, accelerator: Accelerator) -> None:  # Any: a PreparedLoader
        self._loader = loader
        self._accelerator = accelerator

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:  # Any: batches
        for batch in self._loader:
            yield (
                send_to_device(batch, self._accelerator.device)
                if self._accelerator.device_placement
                else batch
            )

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the script's loader
        return getattr(self._loader, name)


def _apart(state: Any) -> Any:  # Any: what Accelerate saves
    """The parameters of a run share a storage, of which Accelerate would save one tensor only."""
    if not isinstance(state, dict):
        return state
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def _training_loader(items: Iterable[object]) -> "DataLoader[Any] | None":  # Any: batches
    """The first that shuffles; where none does, the first, if something is trained."""
    items = list(items)
    loaders = [item for item in items if isinstance(item, DataLoader)]
    for loader in loaders:
        if isinstance(loader.sampler, RandomSampler):
            return loader
    is_trained = any(isinstance(item, Optimizer) for item in items)
    return loaders[0] if loaders and is_trained else None
