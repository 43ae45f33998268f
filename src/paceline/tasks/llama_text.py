"""How does text become samples for a Llama? Tokens, one after the other, cut into windows of equal length.

Documents are packed: a window ends where it ends, and goes on in the next one.
Window i is tokens i * length to (i + 1) * length, with the one behind: so where a
run stands in its data is one number, on any number of workers, and going on
after a stop takes exactly the samples that were not yet taken.

What a tokenizer (datasets/tokenizing.py) made of a text file is kept in the cache
folder, as it takes a while. Data that is too large for that comes as a folder of
packed tokens, which `paceline data tokens` writes.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.datasets.token_folder import ABOUT, open_tokens
from paceline.datasets.tokenizing import BYTES, Words, digest, tokenizer_file
from paceline.environ import data_folder
from paceline.errors import ConfigError, Problem
from paceline.sync.samples import Indices
from paceline.tasks.toy_text import toy_text

TOY_CHARACTERS = 1 << 18
VALIDATION_PART = 0.1
_AT_ONCE = 1 << 20  # bytes that a tokenizer is given at once, up to the end of a line

Tokens = NDArray[np.uint8] | NDArray[np.uint32]


class Windows:
    """Stretches of `length` tokens that do not overlap, each with the tokens that follow."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        starts = np.asarray(indices) * self._length
        rows = np.stack([self._tokens[at : at + self._length + 1] for at in starts]).astype(np.int64)
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def split(tokens: Tokens, length: int) -> tuple[Windows, Windows]:
    """For training, and the last tenth for validation; no window is in both."""
    at = len(tokens) - max(round(len(tokens) * VALIDATION_PART), length + 1)
    return Windows(tokens[: max(at, 0)], length), Windows(tokens[max(at, 0) :], length)


def tokens_of(file: str | None, tokenizer: str, seed: int) -> Tokens:
    """Of a text file, a folder of packed ones, or a toy text; read where they lie, not into memory."""
    if file is None:
        text = toy_text(seed, TOY_CHARACTERS).encode()
        return np.frombuffer(text, dtype=np.uint8) if tokenizer == BYTES else _encoded(tokenizer, [text])
    path = Path(file)
    if (path / ABOUT).exists():
        return _packed(path, tokenizer)
    if not path.is_file():
        raise _problem(
            f"llama cannot read {file!r}: there is no such file",
            "name a text file (--data input.txt), or a folder that `paceline data tokens` wrote",
        )
    if not path.stat().st_size:
        raise _problem(f"llama has nothing to learn from: {file!r} is empty", "name a longer text file")
    if tokenizer == BYTES:
        return np.memmap(path, dtype=np.uint8, mode="r")
    return _kept(path, tokenizer)


def _packed(folder: Path, tokenizer: str) -> Tokens:
    about, tokens = open_tokens(folder)
    if tokenizer != BYTES and Words(tokenizer).digest != about.tokenizer:
        raise _problem(
            f"the tokens in {folder} were made by another tokenizer than {tokenizer!r}",
            "leave --tokenizer out: the folder knows its own",
        )
    return tokens


def _kept(path: Path, tokenizer: str) -> Tokens:
    """What was made of the same text by the same tokenizer is not made again."""
    name = hashlib.sha256(digest(path) + digest(tokenizer_file(tokenizer))).hexdigest()[:32]
    kept = data_folder() / "tokens" / f"{name}.npy"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Under another name until it is whole: whoever finds it may trust it, also beside others who make it.
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".part", delete=False) as part:
            np.save(part, _encoded(tokenizer, _pieces(path)))
        Path(part.name).replace(kept)
    found: NDArray[np.uint32] = np.load(kept, mmap_mode="r", allow_pickle=False)
    return found


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_AT_ONCE):
            yield piece + file.readline()


def _encoded(tokenizer: str, pieces: Iterator[bytes] | list[bytes]) -> NDArray[np.uint32]:
    words = Words(tokenizer)
    try:
        parts = [words.of(piece.decode()) for piece in pieces]
    except UnicodeDecodeError as error:
        raise _problem(
            f"a tokenizer reads UTF-8 text, and this is none: byte {error.start} of a piece is no character",
            "convert it first (iconv -f LATIN1 -t UTF-8), or leave --tokenizer out: then bytes are tokens",
        ) from error
    return np.concatenate(parts)


def vocabulary_of(file: str | None, tokenizer: str) -> int:
    """How many tokens there are."""
    if file is not None and (Path(file) / ABOUT).exists():
        return open_tokens(Path(file))[0].vocabulary
    return Words(tokenizer).count


def _problem(what: str, hint: str) -> ConfigError:
    return ConfigError([Problem(what, hint)])
