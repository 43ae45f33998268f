"""`paceline.tasks.from_torch`: a task made of the functions that a PyTorch script has anyway.

# my_task.py
Mine = from_torch(make_model, train_set, loss_of, make_optimizer, metrics_of)

paceline train --task my_task:Mine --mode asgd
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline.tasks.port import Batch, Task

Loss = Callable[[nn.Module, Any], Tensor]  # Any: a batch of the dataset


def from_torch(
    model_fn: Callable[[], nn.Module],
    dataset: Any,  # Any: a map-style Dataset, a list of samples, or a function that returns one
    loss_fn: Loss,
    optimizer_fn: Callable[[Iterable[nn.Parameter]], Any],  # Any: as `Task.optimizer` returns it
    metrics_fn: Callable[[nn.Module], dict[str, float]] | None = None,
    collate_fn: Callable[[list[Any]], Batch] | None = None,  # Any: samples of the dataset
) -> type[Task]:
    """A task class, for a module in which workers find it by its name.

    Arguments:

    - `model_fn`: returns a new model. torch's generator is seeded before.
    - `dataset`: the training samples; a function is called once in each worker.
    - `loss_fn`: the mean loss of a batch, from the model and the batch.
    - `optimizer_fn`: returns an optimizer of the parameters, or a pair of an optimizer and its scheduler.
    - `metrics_fn`: numbers about the final model, by name.
    - `collate_fn`: makes a batch of a list of samples; None: torch's default.
    """

    class FunctionTask:
        def __init__(self, *, seed: int) -> None:
            self._samples = dataset() if callable(dataset) and not hasattr(dataset, "__len__") else dataset

        def model(self) -> nn.Module:
            return model_fn()

        def samples(self) -> Any:  # Any: see Task
            if collate_fn is None:
                return self._samples
            return DataLoader(self._samples, collate_fn=collate_fn, shuffle=True)

        def loss(self, model: nn.Module, batch: Any) -> Tensor:  # Any: see Loss
            return loss_fn(model, batch)

        def optimizer(self, parameters: Iterable[nn.Parameter]) -> Any:  # Any: see Task
            return optimizer_fn(parameters)

        def metrics(self, model: nn.Module) -> dict[str, float]:
            return {} if metrics_fn is None else metrics_fn(model)

    # As for a namedtuple: errors name the module of the call.
    FunctionTask.__module__ = sys._getframe(1).f_globals.get("__name__", "__main__")
    FunctionTask.__qualname__ = "FunctionTask"
    return FunctionTask
