"""1,797 handwritten digits of 8x8 pixels, a real data set that ships with scikit-learn.

The file is read directly: importing scikit-learn would take longer than the
training. The last 360 rows are the test set, as they come from other writers.
"""

import gzip
import importlib.util
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.errors import MissingPackageError
from paceline.tasks.optim import Sgd
from paceline.tasks.port import device_of
from paceline.tasks.tensor_samples import TensorSamples

TEST_ROWS = 360


class DigitsTask:
    def __init__(self, *, seed: int, hidden: int = 64, layers: int = 1, lr: float = 0.1) -> None:
        del seed  # the data is fixed; the model is seeded by the run
        self._hidden = hidden
        self._layers = layers
        self._lr = lr
        table = _read_table()
        pixels = torch.as_tensor(table[:, :64] / 16.0, dtype=torch.get_default_dtype())
        digits = torch.as_tensor(table[:, 64].astype(np.int64))
        self._train = TensorSamples(pixels[:-TEST_ROWS], digits[:-TEST_ROWS])
        self._test = TensorSamples(pixels[-TEST_ROWS:], digits[-TEST_ROWS:])

    def model(self) -> nn.Module:
        widths = [64, *[self._hidden] * self._layers]
        middle = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*middle, nn.Linear(widths[-1], 10))

    def samples(self) -> TensorSamples:
        return self._train

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pixels, digits = batch
        return nn.functional.cross_entropy(model(pixels), digits)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        pixels, digits = (column.to(device_of(model)) for column in self._test.columns)
        with torch.no_grad():
            scores = model(pixels)
            loss = nn.functional.cross_entropy(scores, digits)
            accuracy = (scores.argmax(dim=1) == digits).to(scores.dtype).mean()
        return {"test_loss": float(loss), "test_accuracy": float(accuracy)}

    def validation_size(self) -> int:
        return TEST_ROWS

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        """Metrics of the test rows: all other rows are used for training."""
        pixels, digits = (
            column[rows.start : rows.stop].to(device_of(model)) for column in self._test.columns
        )
        scores = model(pixels)
        loss = nn.functional.cross_entropy(scores, digits, reduction="sum")
        return {"valid_loss": float(loss), "valid_accuracy": float((scores.argmax(dim=1) == digits).sum())}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Sgd:
        return Sgd(parameters, lr=self._lr)


def _read_table() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingPackageError(
            "the digits data set ships with scikit-learn, which is not installed",
            "pip install scikit-learn",
        )
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as lines:
        return np.loadtxt(lines, delimiter=",")
