"""Task sp500: an LSTM predicts from windows of daily closes whether the index rises.

The samples are in the order of time, and every part comes after the one
before: training, validation (the latest part of X_train), test. Means and
deviations for the z-score are those of the training part alone. Between
training and validation as many samples as a window has days are dropped, so
that no validation window holds a day whose direction was a label of training.
See docs/guides/built-in-tasks.md.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.config.sp500_options import OPTIONS, read_sp500_option
from paceline.config.values import Unreadable, read_bool, show_value
from paceline.core.errors import Problem, TaskDataError
from paceline.datasets.index import is_data_set
from paceline.tasks.optim import Adam
from paceline.tasks.port import device_of
from paceline.tasks.sp500.data import Labelled, read_sp500, read_stored_sp500
from paceline.tasks.tensor_samples import TensorSamples

LABELS = ("down", "up")
_SHADES = (0.08, 0.75)  # of the smallest and of the largest possible count


@dataclass(frozen=True, slots=True)
class Confusion:
    """`up` is positive: tp were said to rise, and rose."""

    tn: int
    fp: int
    fn: int
    tp: int

    @classmethod
    def of(cls, predicted: Tensor, true: Tensor) -> "Confusion":
        counts = (~predicted & ~true, predicted & ~true, ~predicted & true, predicted & true)
        return cls(*(int(count.sum()) for count in counts))

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> "Confusion":
        return cls(*(int(metrics[name]) for name in ("tn", "fp", "fn", "tp")))

    @property
    def matrix(self) -> list[list[int]]:
        """Rows are actual labels, columns are predictions; down first."""
        return [[self.tn, self.fp], [self.fn, self.tp]]

    def metrics(self) -> dict[str, float]:
        """`always_up`: the accuracy of who says `up` every day. A model that is no better knows nothing."""
        total = self.tn + self.fp + self.fn + self.tp
        return {
            "test_accuracy": _share(self.tn + self.tp, total),
            "always_up": _share(self.fn + self.tp, total),
            "f1": _share(2 * self.tp, 2 * self.tp + self.fp + self.fn),
            "precision": _share(self.tp, self.tp + self.fp),
            "recall": _share(self.tp, self.tp + self.fn),
            **{name: float(count) for name, count in asdict(self).items()},
        }


def files_of(confusion: Confusion, *, threshold: float) -> dict[str, bytes]:
    """The matrix as JSON and as an SVG, by file name."""
    facts = {
        "labels": list(LABELS),
        "rows": "actual",
        "columns": "predicted",
        "matrix": confusion.matrix,
        "threshold": threshold,
        **confusion.metrics(),
    }
    return {
        "confusion_matrix.json": (json.dumps(facts, indent=2) + "\n").encode(),
        "confusion_matrix.svg": as_svg(confusion).encode(),
    }


@dataclass(frozen=True, slots=True)
class _Cell:
    row: int
    column: int
    count: int
    share: float  # of its row
    shade: float  # how dark


def as_svg(confusion: Confusion) -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="360" height="340" font-family="sans-serif"'
        ' text-anchor="middle">',
        '<rect width="360" height="340" fill="white"/>',
        f'<text x="190" y="24" font-size="13">{_title(confusion)}</text>',
        '<text x="190" y="326" font-size="13">predicted</text>',
        '<text x="20" y="166" font-size="13" transform="rotate(-90 20 166)">actual</text>',
    ]
    for place, label in enumerate(LABELS):
        parts.append(f'<text x="{130 + 120 * place}" y="300" font-size="13">{label}</text>')
        parts.append(f'<text x="48" y="{111 + 120 * place}" font-size="13">{label}</text>')
    for cell in _cells(confusion):
        x = 70 + 120 * cell.column
        y = 40 + 120 * cell.row
        ink = "white" if cell.shade > 0.5 else "black"
        parts.append(
            f'<rect x="{x}" y="{y}" width="118" height="118" fill="#08519c" fill-opacity="{cell.shade:.3f}"/>'
        )
        parts.append(f'<text x="{x + 59}" y="{y + 58}" font-size="22" fill="{ink}">{cell.count}</text>')
        parts.append(f'<text x="{x + 59}" y="{y + 80}" font-size="13" fill="{ink}">{cell.share:.0%}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cells(confusion: Confusion) -> list[_Cell]:
    low, high = _SHADES
    cells = []
    for row, counts in enumerate(confusion.matrix):
        for column, count in enumerate(counts):
            share = _share(count, sum(counts))
            cells.append(_Cell(row, column, count, share, low + (high - low) * share))
    return cells


def _title(confusion: Confusion) -> str:
    metrics = confusion.metrics()
    return f"accuracy {metrics['test_accuracy']:.1%}; always up: {metrics['always_up']:.1%}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


EVAL_BATCH = 1024  # windows in one forward pass without gradients


class Sp500Task:
    def __init__(
        self,
        *,
        seed: int,
        npz_path: str = "sp500_classification.npz",
        valid_from_train: float = 0.1,
        shuffle_train: bool = False,
        norm: str = "zscore",
        hidden: int = 64,
        layers: int = 1,
        dropout: float = 0.1,
        threshold: float = 0.5,
        save_cm: bool = False,
        lr: float = 0.001,
        data_cache: str | None = None,
        data_cache_mb: int | None = None,
    ) -> None:
        del seed  # the data is fixed; the model is seeded by the run
        _check(
            npz_path=npz_path,
            valid_from_train=valid_from_train,
            norm=norm,
            hidden=hidden,
            layers=layers,
            dropout=dropout,
            threshold=threshold,
            shuffle_train=shuffle_train,
            save_cm=save_cm,
        )
        self._hidden = hidden
        self._layers = layers
        self._dropout = dropout
        self._threshold = threshold
        self._save_cm = read_bool(save_cm)
        self._lr = lr
        if is_data_set(str(npz_path)):
            file = read_stored_sp500(str(npz_path), data_cache, data_cache_mb)
        else:
            file = read_sp500(Path(str(npz_path)))
        train, validation = split_validation(file.train, valid_from_train, str(npz_path))
        scale = scale_of(train) if norm == "zscore" else None
        self._train = OrderedSamples(*_tensors(train, scale), keeps_order=not read_bool(shuffle_train))
        self._validation = TensorSamples(*_tensors(validation, scale))
        self._test = TensorSamples(*_tensors(file.test, scale))
        self._features = train.x.shape[2]

    def model(self) -> nn.Module:
        return UpDownLstm(self._features, hidden=self._hidden, layers=self._layers, dropout=self._dropout)

    def samples(self) -> TensorSamples:
        return self._train

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        windows, ups = batch
        return functional.binary_cross_entropy_with_logits(model(windows), ups)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """On the test part. `always_up` is the accuracy of who says `up` every day."""
        logits, ups = scores(model, self._test)
        loss = functional.binary_cross_entropy_with_logits(logits, ups)
        confusion = Confusion.of(logits.sigmoid() >= self._threshold, ups > 0.5)
        return {"test_loss": float(loss), **confusion.metrics()}

    def validation_size(self) -> int:
        count = len(self._validation)
        if not count:
            message = "sp500's valid_from_train is 0, so there is no validation data"
            hint = "set valid_from_train to 0.1, or leave early_stop_patience and evaluate_every out"
            raise TaskDataError([Problem(message, hint)])
        return count

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        parts = (column[rows.start : rows.stop] for column in self._validation.columns)
        windows, ups = (part.to(device_of(model)) for part in parts)
        logits = model(windows)
        loss = functional.binary_cross_entropy_with_logits(logits, ups, reduction="sum")
        is_right = (logits.sigmoid() >= self._threshold) == (ups > 0.5)
        return {"valid_loss": float(loss), "valid_accuracy": float(is_right.sum())}

    def files(self, metrics: Mapping[str, float]) -> dict[str, bytes]:
        """The confusion matrix, if requested."""
        if not self._save_cm:
            return {}
        return files_of(Confusion.from_metrics(metrics), threshold=self._threshold)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Adam:
        return Adam(parameters, lr=self._lr)


class UpDownLstm(nn.Module):
    """The state after the last day of a window, to one number: above 0 means up."""

    def __init__(self, features: int, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0  # torch warns about one that is between nothing
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(hidden, 1)

    def forward(self, windows: Tensor) -> Tensor:
        states, _ = self.lstm(windows)
        scores: Tensor = self.score(self.dropout(states[:, -1])).squeeze(-1)
        return scores


class OrderedSamples(TensorSamples):
    """Samples that declare whether an epoch must keep their order."""

    def __init__(self, *columns: Tensor, keeps_order: bool) -> None:
        super().__init__(*columns)
        self.keeps_order = keeps_order


class Scale(NamedTuple):
    mean: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    deviation: np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def split_validation(train: Labelled, part: float, name: str) -> tuple[Labelled, Labelled]:
    """What is trained on, and the latest part, which is not."""
    count = len(train.y)
    validation = max(1, round(count * part)) if part else 0
    dropped = train.x.shape[1] if validation else 0
    left = count - validation - dropped
    if left < 1:
        message = (
            f"{name} has {count} training samples; validation uses {validation} of them and the {dropped}"
        )
        hint = "use more closes, a smaller --window, or a smaller valid_from_train, such as 0 for none"
        raise TaskDataError([Problem(f"{message} before it are dropped, so that none is left", hint)])
    first = count - validation
    return Labelled(train.x[:left], train.y[:left]), Labelled(train.x[first:], train.y[first:])


def scale_of(train: Labelled) -> Scale:
    deviation = train.x.std(axis=(0, 1))
    return Scale(train.x.mean(axis=(0, 1)), np.where(deviation > 0, deviation, 1.0))


def scores(model: nn.Module, samples: TensorSamples) -> tuple[Tensor, Tensor]:
    """Score and actual label of every sample, on the CPU."""
    windows, ups = samples.columns
    device = device_of(model)
    with torch.no_grad():
        parts = [model(batch.to(device)).cpu() for batch in torch.split(windows, EVAL_BATCH)]
    return torch.cat(parts), ups


def _tensors(part: Labelled, scale: Scale | None) -> tuple[Tensor, Tensor]:
    x = part.x if scale is None else (part.x - scale.mean) / scale.deviation
    kind = torch.get_default_dtype()
    return torch.as_tensor(x, dtype=kind), torch.as_tensor(part.y, dtype=kind)


def _check(**options: bool | int | float | str) -> None:
    problems = []
    for name, value in options.items():
        try:
            read_sp500_option(OPTIONS[name], value)
        except Unreadable as error:
            hint = f"write for example --task-option {name}={OPTIONS[name].example}"
            problems.append(Problem(f"sp500's {name} is {show_value(value)}, but {error.why}", hint))
    if problems:
        raise TaskDataError(problems)
