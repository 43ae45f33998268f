"""Text as samples for a Llama: packed tokens, cut into windows of equal length.

Documents are packed: one that does not fit into a window continues in the next.
Window i is tokens i * length to (i + 1) * length, inclusive. So the position of a
run in its data is one number, on any number of workers, and a resumed run
takes exactly the samples that were not yet taken.

What a tokenizer (datasets/tokens.py) made of a text file is kept in the cache
folder, as it takes a while. Data that is too large for that comes as a folder of
packed tokens, which `paceline data tokens` writes.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.environ import data_folder
from paceline.core.errors import ConfigError, Problem, TaskDataError
from paceline.datasets.huggingface import HUB
from paceline.datasets.tokens import ABOUT, BYTES, TextTokenizer, digest, open_tokens, tokenizer_file
from paceline.sync.samples import Indices
from paceline.tasks.text import toy_text

TOY_CHARACTERS = 1 << 18
VALIDATION_PART = 0.1
MAX_VALIDATED = 1 << 20  # tokens: of a billion, a tenth would take longer than the training
# Characters that a tokenizer is given at once, up to the end of a line: with more, memory grows.
_AT_ONCE = 1 << 16

Tokens = NDArray[np.uint8] | NDArray[np.uint32]


class Windows:
    """Stretches of `length` tokens that do not overlap, each with the tokens that follow."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        starts = np.asarray(indices) * self._length
        rows = np.stack([self._tokens[at : at + self._length + 1] for at in starts]).astype(np.int64)
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def split(tokens: Tokens, length: int) -> tuple[Windows, Windows]:
    """Windows for training, and the end for validation: a tenth or a limited part; none is in both."""
    part = min(round(len(tokens) * VALIDATION_PART), max(MAX_VALIDATED, length + 1))
    at = max(0, len(tokens) - max(part, length + 1))
    return Windows(tokens[:at], length), Windows(tokens[at:], length)


def parts_of(
    data: str | None, validation: str | None, tokenizer: str, seed: int, length: int
) -> tuple[Windows, Windows]:
    """For training and for validation, which is the end of the text where it has none of its own."""
    tokens = tokens_of(data, tokenizer, seed)
    if validation is None:
        return split(tokens, length)
    held = tokens_of(validation, tokenizer, seed)
    if _maker(data, tokenizer) != _maker(validation, tokenizer):
        raise _problem(
            f"the tokens of {data} and of {validation} were not made by the same tokenizer",
            "write both by `paceline data tokens` with the same --tokenizer",
        )
    return Windows(tokens, length), Windows(held[: max(MAX_VALIDATED, length + 1)], length)


def _maker(file: str | None, tokenizer: str) -> str:
    if file is not None and (Path(file) / ABOUT).exists():
        return open_tokens(Path(file))[0].tokenizer
    return TextTokenizer(tokenizer).digest


def tokens_of(file: str | None, tokenizer: str, seed: int) -> Tokens:
    """Of a text file, a folder of packed ones, or a toy text; read where they lie, not into memory."""
    if file is None:
        text = toy_text(seed, TOY_CHARACTERS)
        if tokenizer == BYTES:
            return np.frombuffer(text.encode(), dtype=np.uint8)
        return np.concatenate(list(_encoded(tokenizer, [text])))
    path = Path(file)
    if (path / ABOUT).exists():
        return _packed(path, tokenizer)
    if file.startswith(HUB):
        raise _problem(
            f"data is {file!r}, but llama cannot read a stream: samples are read by index",
            f"pack it first: paceline data tokens {file} --out FOLDER; then --data FOLDER",
        )
    if not path.is_file():
        raise _problem(
            f"llama cannot read {file!r}: there is no such file",
            "name a text file (--data input.txt), or a folder that `paceline data tokens` wrote",
        )
    if not path.stat().st_size:
        raise _problem(f"{file!r} is empty, so llama has no data to train on", "name a longer text file")
    if tokenizer == BYTES:
        return np.memmap(path, dtype=np.uint8, mode="r")
    return _kept(path, tokenizer)


def _packed(folder: Path, tokenizer: str) -> Tokens:
    info, tokens = open_tokens(folder)
    if tokenizer != BYTES and TextTokenizer(tokenizer).digest != info.tokenizer:
        raise _problem(
            f"the tokens in {folder} were made by another tokenizer than {tokenizer!r}",
            "leave --tokenizer out: the folder records its tokenizer",
        )
    return tokens


def _kept(path: Path, tokenizer: str) -> Tokens:
    """Cached tokens of the same text and tokenizer, if any."""
    facts = path.stat()
    text = _digest(path, facts.st_size, facts.st_mtime_ns)
    name = hashlib.sha256(text + digest(tokenizer_file(tokenizer))).hexdigest()[:32]
    kept = data_folder() / "tokens" / f"{name}.u32"
    if not kept.exists():
        _keep(kept, _encoded(tokenizer, _pieces(path)))
    if not kept.stat().st_size:
        raise _problem(f"{str(path)!r} has no tokens", "name a longer text file")
    return np.memmap(kept, dtype="<u4", mode="r")


@cache  # workers are forked from a process that has read it: once is enough for all of them
def _digest(path: Path, _size: int, _changed_ns: int) -> bytes:
    return digest(path)


def _keep(kept: Path, parts: Iterator[NDArray[np.uint32]]) -> None:
    """Part by part: neither the text nor its tokens need fit into memory."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: a reader may trust it, also while other processes make it.
    with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".part", delete=False) as file:
        whole = Path(file.name)
        try:
            for part in parts:
                file.write(part.astype("<u4").tobytes())
            file.flush()
            whole.replace(kept)
        except BaseException:
            whole.unlink()
            raise


def _pieces(path: Path) -> Iterator[str]:
    """Up to the end of a line, unless that is very far."""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            while piece := file.read(_AT_ONCE):
                yield piece + file.readline(_AT_ONCE)
        except UnicodeDecodeError as error:
            raise _problem(
                f"a tokenizer reads UTF-8 text, but {str(path)!r} is not: {error.reason}",
                "convert it (iconv -f LATIN1 -t UTF-8), or leave --tokenizer out: the default is one token "
                "per byte",
            ) from error


def _encoded(tokenizer: str, pieces: Iterable[str]) -> Iterator[NDArray[np.uint32]]:
    encoder = TextTokenizer(tokenizer)
    return (encoder.of(piece) for piece in pieces)


def vocabulary_of(file: str | None, tokenizer: str) -> int:
    """How many tokens there are."""
    if file is not None and (Path(file) / ABOUT).exists():
        return open_tokens(Path(file))[0].vocabulary
    return TextTokenizer(tokenizer).count


def _problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])
