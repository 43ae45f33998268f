"""Task llama: a Llama of a published size predicts the next token of any text.

`--model` names the size (tasks/llama/shapes.py), `--seq-len` how long a sample is;
tokens are bytes, or those of a tokenizer (tasks/llama/text.py). What the model is:
tasks/llama/model.py.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError, Problem, TaskDataError
from paceline.datasets.tokens import BYTES
from paceline.tasks.llama.model import Layer, Llama, RecomputePolicy
from paceline.tasks.llama.shapes import SHAPES, LlamaShape
from paceline.tasks.llama.text import Windows, parts_of, vocabulary_of
from paceline.tasks.llama.weights import check_folder, read_folder
from paceline.tasks.optim import Adam
from paceline.tasks.port import device_of

_T = TypeVar("_T")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
VALIDATED_AT_ONCE = 8192  # tokens


class LlamaTask:
    reads_files: ClassVar[bool] = True  # what is wrong with the text is said before any worker starts

    def __init__(
        self,
        *,
        seed: int,
        model: str = "llama_tiny",
        data: str | None = None,
        validation: str | None = None,
        tokenizer: str = BYTES,
        seq_len: int = 128,
        dtype: str | None = None,
        start: str | None = None,
        compiled: bool = True,
        activation_checkpointing: str = RecomputePolicy.ALL.value,
        lr: float = 3e-4,
        weight_decay: float = 0.1,
    ) -> None:
        self.shape = _shape(model)
        self.seq_len = seq_len
        self._dtype = torch.get_default_dtype() if dtype is None else _known(dtype, DTYPES, "dtype")
        self._keeps = _known(
            activation_checkpointing, {k.value: k for k in RecomputePolicy}, "activation checkpointing"
        )
        # An expert's share of the tokens is known only when it computes: nothing to compile beforehand.
        self._start = start
        self._compiled = compiled and not self.shape.experts
        self._lr = lr
        self._weight_decay = weight_decay
        if start is not None:
            check_folder(Path(start), self.shape)
        self._check(vocabulary_of(data, tokenizer))
        self._train, self._validation = parts_of(data, validation, tokenizer, seed, seq_len)
        if not len(self._train) or not len(self._validation):
            raise _problem(
                f"the text is too short for one sample of {seq_len} tokens and as many to validate",
                "name a longer one, or shorten the samples: --seq-len",
            )

    def model(self) -> nn.Module:
        model = Llama(self.shape, compiled=self._compiled, keeps=self._keeps).to(self._dtype)
        if self._start is not None:
            model.load_state_dict(read_folder(Path(self._start), self.shape))
        return model

    def samples(self) -> Windows:
        return self._train

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = model(*batch)
        return loss

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Over the validation part."""
        with torch.no_grad():
            loss = self._summed(model, range(self.validation_size())) / self.validation_size()
        return {"val_loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def validation_size(self) -> int:
        return len(self._validation)

    def validate(self, model: nn.Module, rows: range) -> dict[str, float]:
        return {"valid_loss": self._summed(model, rows)}

    def _summed(self, model: nn.Module, rows: range) -> float:
        """The losses of these samples, added up; as many at once as make a few thousand tokens."""
        device = device_of(model)
        total = 0.0
        at_once = max(1, VALIDATED_AT_ONCE // self.seq_len)
        for first in range(rows.start, rows.stop, at_once):
            rows_read = np.arange(first, min(first + at_once, rows.stop))
            read, following = (part.to(device) for part in self._validation.batch(rows_read))
            total += float(model(read, following)) * len(rows_read)
        return total

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [part for part in model.modules() if isinstance(part, Layer)]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Adam:
        return Adam(parameters, lr=self._lr, beta2=0.95, weight_decay=self._weight_decay, decoupled=True)

    def flops_per_sample(self) -> float:
        return self.shape.flops_per_token(self.seq_len) * self.seq_len

    def tokens_per_sample(self) -> int:
        return self.seq_len

    def _check(self, tokens: int) -> None:
        if not isinstance(self.seq_len, int) or not 1 <= self.seq_len <= self.shape.places:
            raise _problem(
                f"seq_len is {self.seq_len!r}, but this model reads 1 to {self.shape.places} tokens at once",
                "write for example --seq-len 128",
            )
        if tokens > self.shape.vocabulary:
            raise _problem(
                f"the text has {tokens} distinct tokens, but the model's vocabulary has "
                f"{self.shape.vocabulary}",
                "choose a model with a larger vocabulary, or another tokenizer",
            )


def _shape(name: str) -> LlamaShape:
    return _known(name, SHAPES, "model")


def _known(name: str, table: Mapping[str, _T], noun: str) -> _T:
    if name not in table:
        raise _problem(f"there is no {noun} {name!r}", f"choose one of {', '.join(sorted(table))}")
    return table[name]


def _problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])
