"""How does text become samples for a Llama? Tokens, one after the other, cut into windows of equal length.

Documents are packed: a window ends where it ends, and goes on in the next one.
Window i is tokens i * length to (i + 1) * length, with the one behind: so where a
run stands in its data is one number, on any number of workers, and going on
after a stop takes exactly the samples that were not yet taken.

Bytes are tokens where no tokenizer is given (0 to 255: any model's vocabulary has
them). A tokenizer is a `tokenizer.json` of Hugging Face's; what it made of a text is
kept in the cache folder, as it takes a while.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.environ import data_folder
from paceline.errors import ConfigError, NotReadyError, Problem
from paceline.sync.samples import Indices
from paceline.tasks.toy_text import toy_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = "bytes"
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
    """Of a text file, or of a toy text; read where they lie, not into memory."""
    if file is None:
        text = toy_text(seed, TOY_CHARACTERS).encode()
        return np.frombuffer(text, dtype=np.uint8) if tokenizer == BYTES else _encoded(tokenizer, [text])
    path = Path(file)
    if not path.is_file():
        raise _problem(
            f"llama cannot read {file!r}: there is no such file", "name a text file: --data input.txt"
        )
    if not path.stat().st_size:
        raise _problem(f"llama has nothing to learn from: {file!r} is empty", "name a longer text file")
    if tokenizer == BYTES:
        return np.memmap(path, dtype=np.uint8, mode="r")
    return _kept(path, tokenizer)


def _kept(path: Path, tokenizer: str) -> Tokens:
    """What was made of the same text by the same tokenizer is not made again."""
    name = hashlib.sha256(_digest(path) + _digest(_tokenizer_file(tokenizer))).hexdigest()[:32]
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
    words = _load(tokenizer)
    try:
        parts = [np.asarray(words.encode(piece.decode()).ids, dtype=np.uint32) for piece in pieces]
    except UnicodeDecodeError as error:
        raise _problem(
            f"a tokenizer reads UTF-8 text, and this is none: byte {error.start} of a piece is no character",
            "convert it first (iconv -f LATIN1 -t UTF-8), or leave --tokenizer out: then bytes are tokens",
        ) from error
    return np.concatenate(parts)


def vocabulary_of(tokenizer: str) -> int:
    """How many tokens there are."""
    return 256 if tokenizer == BYTES else _load(tokenizer).get_vocab_size()


def _load(tokenizer: str) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotReadyError(
            "a tokenizer needs the package tokenizers, which is not installed",
            "pip install 'paceline[llama]', or leave --tokenizer out: then bytes are tokens",
        ) from error
    return Tokenizer.from_file(str(_tokenizer_file(tokenizer)))


def _tokenizer_file(tokenizer: str) -> Path:
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise _problem(
            f"there is no tokenizer at {tokenizer!r}",
            "name a tokenizer.json or the folder it is in, or leave --tokenizer out: then bytes are tokens",
        )
    return path


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _problem(what: str, hint: str) -> ConfigError:
    return ConfigError([Problem(what, hint)])
