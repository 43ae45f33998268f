"""The XOR of two signs: the smallest task that one linear layer cannot learn.

Points in the square [-1, 1]^2, labelled by whether their signs differ, with a
little noise on the coordinates. Made in memory from the seed; nothing is read.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from paceline.tasks.optim import Sgd
from paceline.tasks.port import device_of
from paceline.tasks.tensor_samples import TensorSamples


class XorTask:
    def __init__(
        self,
        *,
        seed: int,
        hidden: int = 32,
        layers: int = 1,
        num_samples: int = 4096,
        noise: float = 0.05,
        lr: float = 0.5,
    ) -> None:
        self._seed = seed
        self._noise = noise
        self._hidden = hidden
        self._layers = layers
        self._num_samples = num_samples
        self._lr = lr

    def model(self) -> nn.Module:
        widths = [2, *[self._hidden] * self._layers]
        blocks: list[nn.Module] = []
        for before, after in pairwise(widths):
            blocks += [nn.Linear(before, after), nn.Tanh()]
        return nn.Sequential(*blocks, nn.Linear(widths[-1], 1))

    def samples(self) -> TensorSamples:
        return self._points(self._num_samples, self._seed)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, labels = batch
        logits = model(points).squeeze(-1)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        # Another seed than the training points, so that nothing is tested on what was learnt.
        held_out = self._points(2048, self._seed + 1_000_003).columns
        points, labels = (column.to(device_of(model)) for column in held_out)
        with torch.no_grad():
            logits = model(points).squeeze(-1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
            accuracy = ((logits > 0) == (labels > 0.5)).to(logits.dtype).mean()
        return {"test_loss": float(loss), "test_accuracy": float(accuracy)}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Sgd:
        return Sgd(parameters, lr=self._lr)

    def _points(self, count: int, seed: int) -> TensorSamples:
        rng = torch.Generator().manual_seed(seed)
        corners = torch.rand(count, 2, generator=rng) * 2 - 1
        labels = (corners[:, 0] * corners[:, 1] < 0).to(torch.get_default_dtype())
        noise = torch.randn(count, 2, generator=rng) * self._noise
        return TensorSamples(corners + noise, labels)
