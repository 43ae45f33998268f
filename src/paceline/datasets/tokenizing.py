"""Which tokens is a text? Bytes where no tokenizer is given, or what one of Hugging Face's makes of it.

A tokenizer is a `tokenizer.json`, the folder it is in, or a name such as
hf-internal-testing/llama-tokenizer, which is fetched once and kept. Bytes are 0 to
255: any model's vocabulary has them.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.environ import data_folder
from paceline.errors import ConfigError, MissingPackageError, Problem, TaskDataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = "bytes"
TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 64, 1 << 18
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ENDS = ("<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>")  # how tokenizers call the end of a document


class Words:
    """A tokenizer, or bytes."""

    def __init__(self, said: str) -> None:
        self.said = said
        self._made: Tokenizer | None = None if said == BYTES else _load(said)

    @property
    def count(self) -> int:
        """How many rows a table for its tokens has: ids may have gaps, so it is the highest that counts."""
        return 256 if self._made is None else 1 + max(self._made.get_vocab().values(), default=0)

    @cached_property
    def end(self) -> NDArray[np.uint32]:
        """What stands between two documents: the tokenizer's own end, or an empty line."""
        known = [] if self._made is None else [self._made.token_to_id(name) for name in _ENDS]
        found = next((token for token in known if token is not None), None)
        return self.of("\n\n") if found is None else np.array([found], dtype=np.uint32)

    def of(self, text: str) -> NDArray[np.uint32]:
        if self._made is None:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
        return np.asarray(self._made.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def of_each(self, texts: Iterable[str]) -> Iterator[NDArray[np.uint32]]:
        """Of one after the other; some are taken at once, so that all cores have work."""
        for some in _some_at_once(texts):
            if self._made is None:
                yield from map(self.of, some)
            else:
                found = self._made.encode_batch_fast(some, add_special_tokens=False)
                yield from (np.asarray(one.ids, dtype=np.uint32) for one in found)

    @property
    def digest(self) -> str:
        """Equal for equal tokenizers, wherever they lie."""
        return BYTES if self._made is None else digest(tokenizer_file(self.said)).hex()


def _some_at_once(texts: Iterable[str]) -> Iterator[list[str]]:
    some, characters = list[str](), 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if len(some) == TEXTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield some
            some, characters = [], 0
    yield some


def tokenizer_file(tokenizer: str) -> Path:
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        return path
    if _NAME.fullmatch(tokenizer):
        return _fetched(tokenizer)
    raise _problem(
        f"there is no tokenizer at {tokenizer!r}",
        "name a tokenizer.json or the folder it is in, or leave --tokenizer out: then bytes are tokens",
    )


def digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _fetched(name: str) -> Path:
    """From Hugging Face's hub, once."""
    kept = data_folder() / "tokenizers" / f"{name.replace('/', '--')}.json"
    if not kept.exists():
        made = _class()
        try:
            found = made.from_pretrained(name)
        except Exception as error:  # theirs: whatever the hub, its client or the network raises
            raise _problem(
                f"there is no file {name!r}, and no tokenizer of this name could be fetched: {error}",
                "name a tokenizer.json that is here, or leave --tokenizer out: then bytes are tokens",
            ) from error
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        found.save(str(part))
        part.replace(kept)
    return kept


def _load(tokenizer: str) -> "Tokenizer":
    made, file = _class(), tokenizer_file(tokenizer)
    try:
        return made.from_file(str(file))
    except Exception as error:  # theirs is a bare Exception
        raise _problem(
            f"{file} is no tokenizer: {error}", "name a tokenizer.json of Hugging Face's"
        ) from error


def _class() -> "type[Tokenizer]":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingPackageError(
            "a tokenizer needs the package tokenizers, which is not installed",
            "pip install 'paceline[llama]', or leave --tokenizer out: then bytes are tokens",
        ) from error
    return Tokenizer


def _problem(what: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(what, hint)])
