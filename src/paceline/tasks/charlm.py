"""Task charlm: a small transformer that predicts the next character of any text file.

The first nine tenths of the text are for training: sample i is the window that
begins at character i. The last tenth is only ever looked at by `metrics` and
`validate`, and no training window reaches into it.
"""

import math
from collections.abc import Iterable
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.datasets.index import is_data_set
from paceline.datasets.opening import PartReader, check_task, open_data_set
from paceline.sync.samples import Indices
from paceline.tasks.optim import Adam
from paceline.tasks.port import device_of
from paceline.tasks.text import CODE, PART, check_length, encode, problem, text_of


class StoredText:
    """Characters `first` to `first + count` of a text that lies elsewhere."""

    def __init__(self, reader: PartReader, first: int, count: int) -> None:
        self._reader = reader
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def cut(self, at: int) -> "tuple[StoredText, StoredText]":
        rest = StoredText(self._reader, self._first + at, self._count - at)
        return StoredText(self._reader, self._first, at), rest

    def stretches(self, starts: Indices, width: int) -> Tensor:
        codes = self._reader.take(starts + self._first, width)[CODE]
        return torch.from_numpy(codes.astype(np.int64))

    def expect(self, starts: Indices, width: int) -> None:
        self._reader.expect(starts + self._first, width)


def open_text(url: str, cache: str | None, cache_mb: int | None) -> tuple[StoredText, str]:
    """The text, and its characters in the order of their codes."""
    data_set = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "charlm")
    reader = data_set.reader(PART)
    return StoredText(reader, 0, len(reader)), str(data_set.index.facts["characters"])


TRAINING_PART = 0.9
EVAL_BATCH = 64  # windows in one forward pass of validation


class CharlmTask:
    reads_files: ClassVar[bool] = True  # what is wrong with the text is said before any worker starts

    def __init__(
        self,
        *,
        seed: int,
        file: str | None = None,
        context: int = 64,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        lr: float = 3e-3,
        data_cache: str | None = None,
        data_cache_mb: int | None = None,
    ) -> None:
        _check_sizes(context=context, width=width, layers=layers, heads=heads)
        text, self.characters = _text(seed, None if file is None else str(file), data_cache, data_cache_mb)
        check_length("the toy text" if file is None else repr(str(file)), len(text), context)
        self._train, self._validation = text.cut(int(len(text) * TRAINING_PART))
        self._context = context
        self._width = width
        self._layers = layers
        self._heads = heads
        self._lr = lr

    def model(self) -> nn.Module:
        return CharTransformer(
            len(self.characters),
            context=self._context,
            width=self._width,
            layers=self._layers,
            heads=self._heads,
        )

    def samples(self) -> "Windows":
        return Windows(self._train, self._context)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        read, following = batch
        scores = model(read)
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Over the whole validation part, in windows that do not overlap."""
        windows = self.validation_size()
        with torch.no_grad():
            loss = self._summed(model, range(windows)) / windows
        return {"val_loss": loss, **_readings(loss)}

    def validation_size(self) -> int:
        return -(-len(Windows(self._validation, self._context)) // self._context)

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        """Metrics of these windows of the validation part."""
        return {"valid_loss": self._summed(model, rows)}

    def scores(self, sums: dict[str, float], num_rows: int) -> dict[str, float]:
        """A perplexity is no mean of perplexities."""
        loss = sums["valid_loss"] / num_rows
        return {"valid_loss": loss, **_readings(loss)}

    def _summed(self, model: nn.Module, rows: range) -> float:
        """The losses of these windows, added up."""
        windows = Windows(self._validation, self._context)
        total = 0.0
        for first in range(rows.start, rows.stop, EVAL_BATCH):
            starts = np.arange(first, min(first + EVAL_BATCH, rows.stop), dtype=np.int64) * self._context
            read, following = (column.to(device_of(model)) for column in windows.batch(starts))
            total += float(self.loss(model, (read, following))) * len(starts)
        return total

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [part for part in model.modules() if isinstance(part, _Block)]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Adam:
        return Adam(parameters, lr=self._lr, beta2=0.99, weight_decay=0.01, decoupled=True)


class Text(Protocol):
    """Characters as numbers, wherever they are."""

    def __len__(self) -> int: ...

    def cut(self, at: int) -> "tuple[Text, Text]": ...

    def stretches(self, starts: Indices, width: int) -> Tensor: ...

    def expect(self, starts: Indices, width: int) -> None: ...


class InMemoryText:
    def __init__(self, codes: Tensor) -> None:
        self._codes = codes

    def __len__(self) -> int:
        return len(self._codes)

    def cut(self, at: int) -> "tuple[InMemoryText, InMemoryText]":
        return InMemoryText(self._codes[:at]), InMemoryText(self._codes[at:])

    def stretches(self, starts: Indices, width: int) -> Tensor:
        # unfold is a view: nothing is copied until it is asked for
        return self._codes.unfold(0, width, 1).index_select(0, torch.from_numpy(starts))

    def expect(self, starts: Indices, width: int) -> None:
        """They are here."""


class Windows:
    """Every stretch of `context` characters, with the one that follows each of them."""

    def __init__(self, text: Text, context: int) -> None:
        self._text = text
        self._context = context

    def __len__(self) -> int:
        return len(self._text) - self._context

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        stretches = self._text.stretches(indices, self._context + 1)
        return stretches[:, :-1], stretches[:, 1:]

    def expect(self, indices: Indices) -> None:
        """Announce indices that will be requested soon, so that they can be read ahead."""
        self._text.expect(indices, self._context + 1)


class CharTransformer(nn.Module):
    """Embeddings, blocks of attention and a small network, and a score for every character."""

    def __init__(self, characters: int, *, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, characters, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, read: Tensor) -> Tensor:
        places = torch.arange(read.shape[-1], device=read.device)
        scores: Tensor = self.score(self.norm(self.blocks(self.character(read) + self.place(places))))
        return scores


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.before_network = nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attended(self._attention(self.before_attention(stream)))
        output: Tensor = stream + self.network(self.before_network(stream))
        return output

    def _attention(self, stream: Tensor) -> Tensor:
        split = self.query_key_value(stream).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self._heads, -1)).transpose(-2, -3) for part in split)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(-2, -3).flatten(-2)


def _readings(loss: float) -> dict[str, float]:
    """The same loss, as others like to read it."""
    return {"bits_per_char": loss / math.log(2), "perplexity": math.exp(loss) if loss < 700 else math.inf}


def _text(seed: int, file: str | None, cache: str | None, cache_mb: int | None) -> tuple[Text, str]:
    if file is not None and is_data_set(file):
        return open_text(file, cache, cache_mb)
    codes, characters = encode(text_of(seed, file))
    return InMemoryText(torch.from_numpy(codes)), characters


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise problem(
                f"charlm's {name} is {value!r}, but it must be an integer, 1 or more",
                f"write for example --task-option {name}=4",
            )
    if sizes["width"] % sizes["heads"]:
        message = f"charlm's width is {sizes['width']}, which its {sizes['heads']} heads do not divide"
        raise problem(message, "write for example --task-option width=64 --task-option heads=4")
