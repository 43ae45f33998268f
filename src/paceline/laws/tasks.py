"""Small tasks for laws, built so that a wrong mean, order or sample changes the result."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paceline.tasks.optim import Sgd
from paceline.tasks.tensor_samples import TensorSamples


class _LawTask:
    lr = 0.1

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Sgd:
        return Sgd(parameters, lr=self.lr)


class TinyTask(_LawTask):
    """A small non-linear regression: gradients depend on the parameters in every way."""

    def __init__(self, *, seed: int, num_samples: int = 97, batch_norm: bool = False) -> None:
        self._seed = seed
        self._num_samples = num_samples
        self._batch_norm = batch_norm

    def model(self) -> nn.Module:
        middle: list[nn.Module] = [nn.BatchNorm1d(5)] if self._batch_norm else []
        return nn.Sequential(nn.Linear(3, 5), *middle, nn.Tanh(), nn.Linear(5, 2))

    def samples(self) -> TensorSamples:
        rng = torch.Generator().manual_seed(self._seed)
        inputs = torch.randn(self._num_samples, 3, generator=rng)
        return TensorSamples(inputs, torch.randn(self._num_samples, 2, generator=rng))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        outputs: Tensor = model(inputs)
        return (outputs - targets).square().mean()


class ValidatedTask(TinyTask):
    """Its validation draws random numbers, as a careless task may."""

    rows = 83  # divides by no number of workers

    def validation_size(self) -> int:
        return self.rows

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        inputs, targets = self.samples().batch(torch.arange(rows.start, rows.stop).numpy())
        assert not model.training, "the model is to be in eval mode"
        loss = (model(inputs) - targets).square().sum()
        return {"valid_loss": float(loss), "random": float(torch.rand(1))}


class ScriptedTask:
    """Like TinyTask, in the terms of a training script: with dropout, and an optimizer of torch."""

    def __init__(self, *, seed: int, dropout: float = 0.1) -> None:
        self._samples = TinyTask(seed=seed).samples()
        self._dropout = dropout

    def model(self) -> nn.Sequential:
        layers = (nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(self._dropout), nn.Linear(5, 2))
        return nn.Sequential(*layers)

    def samples(self) -> TensorSamples:
        return self._samples

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        outputs: Tensor = model(inputs)
        return (outputs - targets).square().mean()

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class LedgerTask(_LawTask):
    """Every sample owns one parameter, and its gradient is 1 there and 0 elsewhere.

    So the parameters are a ledger: they show which gradients were applied, how
    often, and with what weight, whatever the strategy did.
    """

    lr = 1.0

    def __init__(self, *, seed: int, num_samples: int, tensors: str = "") -> None:
        """`tensors` cuts the ledger into tensors of these sizes, written as "3+3+4"."""
        del seed
        self._num_samples = num_samples
        self._sizes = [int(size) for size in tensors.split("+")] if tensors else []

    def model(self) -> nn.Module:
        return _LedgerInTensors(self._sizes) if self._sizes else _Ledger(self._num_samples)

    def samples(self) -> TensorSamples:
        return TensorSamples(torch.arange(self._num_samples))

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        entries: Tensor = model(batch[0])
        return entries.mean()


class _Ledger(nn.Module):
    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.entries = nn.Parameter(torch.zeros(num_samples))

    def forward(self, samples: Tensor) -> Tensor:
        return self.entries.index_select(0, samples)


class _LedgerInTensors(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.entries = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def forward(self, samples: Tensor) -> Tensor:
        return torch.cat(list(self.entries)).index_select(0, samples)


class PassingTask(TinyTask):
    """A part of the model has no gradient in some steps, as an expert that nothing was routed to.

    It has one in every second and third of four steps, so none when a period of four begins or ends.
    """

    def model(self) -> nn.Module:
        return _WithPassing(super().model())


class _WithPassing(nn.Module):
    def __init__(self, always: nn.Module) -> None:
        super().__init__()
        self.always = always
        self.sometimes = nn.Linear(3, 2)
        self._calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self._calls += 1
        outputs: Tensor = self.always(inputs)
        return outputs + self.sometimes(inputs) if self._calls % 4 in (2, 3) else outputs


class QuadraticTask(_LawTask):
    """Each sample is a point c and costs (w-c)'A(w-c)/2: all Hessians are the same A.

    The dynamics are linear, so averaging parameters and averaging gradients
    must give the same mean, however rarely one averages.
    """

    def __init__(self, *, seed: int, num_samples: int = 61) -> None:
        rng = torch.Generator().manual_seed(seed)
        factor = torch.randn(4, 4, generator=rng)
        self._hessian = factor @ factor.T / 4 + torch.eye(4)
        self._points = torch.randn(num_samples, 4, generator=rng)

    def model(self) -> nn.Module:
        return _Point()

    def samples(self) -> TensorSamples:
        return TensorSamples(self._points)

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        away = model(batch[0])
        return torch.einsum("bi,ij,bj->b", away, self._hessian, away).mean() / 2


class _Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Parameter(torch.ones(4))

    def forward(self, points: Tensor) -> Tensor:
        return self.where - points
