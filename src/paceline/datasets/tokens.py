"""Tokens of a text: bytes where no tokenizer is given, or those of a Hugging Face tokenizer.

A tokenizer is a `tokenizer.json`, the folder it is in, or a name such as
hf-internal-testing/llama-tokenizer, which is fetched once and kept. Bytes are 0 to
255: any model's vocabulary has them.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.core.environ import data_folder
from paceline.core.errors import (
    ConfigError,
    InUseError,
    MissingPackageError,
    PacelineError,
    Problem,
    TaskDataError,
)
from paceline.datasets.huggingface import stream_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer


BYTES = "bytes"
TEXTS_AT_ONCE = 64
CHARACTERS_AT_ONCE = 1 << 18
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ENDS = ("<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>")  # how tokenizers call the end of a document


class TextTokenizer:
    """A tokenizer, or bytes."""

    def __init__(self, spec: str) -> None:
        self.said = spec
        self._made: Tokenizer | None = None if spec == BYTES else _load(spec)

    @property
    def count(self) -> int:
        """How many rows a table for its tokens has: ids may have gaps, so it is the highest that counts."""
        return 256 if self._made is None else 1 + max(self._made.get_vocab().values(), default=0)

    @cached_property
    def end(self) -> NDArray[np.uint32]:
        """Separator of two documents: the tokenizer's end token, or an empty line."""
        known = [] if self._made is None else [self._made.token_to_id(name) for name in _ENDS]
        token_id = next((token for token in known if token is not None), None)
        return self.of("\n\n") if token_id is None else np.array([token_id], dtype=np.uint32)

    def of(self, text: str) -> NDArray[np.uint32]:
        if self._made is None:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
        return np.asarray(self._made.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def of_each(self, texts: Iterable[str]) -> Iterator[NDArray[np.uint32]]:
        """Of one after the other; some are taken at once, so that all cores have work."""
        for batch in _some_at_once(texts):
            if self._made is None:
                yield from map(self.of, batch)
            else:
                encodings = self._made.encode_batch_fast(batch, add_special_tokens=False)
                yield from (np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings)

    @property
    def digest(self) -> str:
        """Hash that is equal for equal tokenizers at any path."""
        return BYTES if self._made is None else digest(tokenizer_file(self.said)).hex()


def _some_at_once(texts: Iterable[str]) -> Iterator[list[str]]:
    batch = list[str]()
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == TEXTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch = []
            characters = 0
    yield batch


def tokenizer_file(tokenizer: str) -> Path:
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        return path
    if _NAME.fullmatch(tokenizer):
        return _fetched(tokenizer)
    raise _problem(
        f"there is no tokenizer at {tokenizer!r}",
        "name a tokenizer.json or the folder it is in, or leave --tokenizer out: the default is one token "
        "per byte",
    )


def digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _fetched(name: str) -> Path:
    """Download from Hugging Face's hub, once."""
    kept = data_folder() / "tokenizers" / f"{name.replace('/', '--')}.json"
    if not kept.exists():
        tokenizer_class = _class()
        try:
            tokenizer = tokenizer_class.from_pretrained(name)
        except Exception as error:  # theirs: whatever the hub, its client or the network raises
            raise _problem(
                f"there is no file {name!r}, and no tokenizer of this name could be downloaded: {error}",
                "name a tokenizer.json that is here, or leave --tokenizer out: the default is one token per "
                "byte",
            ) from error
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        tokenizer.save(str(part))
        part.replace(kept)
    return kept


def _load(tokenizer: str) -> "Tokenizer":
    tokenizer_class = _class()
    file = tokenizer_file(tokenizer)
    try:
        return tokenizer_class.from_file(str(file))
    except Exception as error:  # theirs is a bare Exception
        raise _problem(
            f"{file} is not a tokenizer: {error}", "name a tokenizer.json of Hugging Face's"
        ) from error


def _class() -> "type[Tokenizer]":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingPackageError(
            "a tokenizer needs the package tokenizers, which is not installed",
            "pip install 'paceline[llama]', or leave --tokenizer out: the default is one token per byte",
        ) from error
    return Tokenizer


def _problem(message: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(message, hint)])


# Writing can be resumed: after every batch of documents the JSON is replaced, with the number of
# documents and tokens in the file. What was written after that is cut off on resume, so a stop
# loses at most one batch, and the file has the same bytes as without the stop.

TOKENS = "tokens.bin"
ABOUT = "tokens.json"
SCHEMA = "paceline.tokens/1"
DOCUMENTS_AT_ONCE = 1000
TOKENS_AT_ONCE = 1 << 22  # documents may be as long as books
_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensInfo:
    source: str
    tokenizer: str  # SHA-256 of the tokenizer.json, or `bytes`
    vocabulary: int
    documents: int = 0
    tokens: int = 0
    sha256: str = ""  # of the whole file; only when it is complete
    schema: str = SCHEMA

    @property
    def is_complete(self) -> bool:
        return bool(self.sha256)


def read_tokens_info(folder: Path) -> TokensInfo | None:
    """None: there is no such folder yet. Raises PacelineError when it is something else."""
    path = folder / ABOUT
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}")
        return TokensInfo(**{field.name: document[field.name] for field in fields(TokensInfo)})
    except (ValueError, KeyError, TypeError) as error:
        raise PacelineError(
            f"{path} does not describe packed tokens: {error}", "name another folder"
        ) from error


def open_tokens(folder: Path) -> tuple[TokensInfo, NDArray[np.uint32]]:
    """The tokens, read where they lie."""
    info = read_tokens_info(folder)
    if info is None or not info.is_complete:
        message = (
            f"{folder} has no packed tokens" if info is None else f"the tokens in {folder} are not complete"
        )
        raise PacelineError(message, "write or resume them: paceline data tokens SOURCE --out FOLDER")
    path = folder / TOKENS
    if path.stat().st_size != info.tokens * _WIDTH:
        message = (
            f"{path} has {path.stat().st_size} bytes, but {info.tokens} tokens have {info.tokens * _WIDTH}"
        )
        raise PacelineError(message, "write them again, into an empty folder: paceline data tokens")
    return info, np.memmap(path, dtype="<u4", mode="r")


def write_tokens(
    folder: Path, documents: Iterable[str], encoder: TextTokenizer, info: TokensInfo, *, most: int | None
) -> TokensInfo:
    """Append `documents`, which follow those that `info` counts; stops at `most` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TOKENS).open("ab") as file:
        _alone(file, folder)
        file.truncate(info.tokens * _WIDTH)
        _note(folder, info)
        kept: list[NDArray[np.uint32]] = []
        waiting = 0  # tokens that are not yet in the file
        for document in encoder.of_each(documents):
            kept += [document, encoder.end]
            waiting += len(kept[-2]) + len(kept[-1])
            info = replace(info, documents=info.documents + 1)
            if len(kept) >= 2 * DOCUMENTS_AT_ONCE or waiting >= TOKENS_AT_ONCE:
                info = _written(file.fileno(), folder, info, kept, most)
                kept = []
                waiting = 0
            if most is not None and info.tokens + waiting >= most:
                break
        info = _written(file.fileno(), folder, info, kept, most)
    if not info.tokens:
        raise PacelineError(f"{info.source} has no text", "name another source, split or column")
    with (folder / TOKENS).open("rb") as file:
        info = replace(info, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    _note(folder, info)
    return info


def _alone(file: BinaryIO, folder: Path) -> None:
    """Lock the file until it is closed, also by the end of this process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"another process is writing tokens into {folder}"
        raise InUseError(message, "wait for it, or choose another folder: --out") from error


def _written(
    fd: int, folder: Path, info: TokensInfo, kept: list[NDArray[np.uint32]], most: int | None
) -> TokensInfo:
    if not kept:
        return info
    fresh = np.concatenate(kept)[: None if most is None else max(0, most - info.tokens)].astype("<u4")
    rest = memoryview(fresh.tobytes())
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)  # before the note that says it is there
    info = replace(info, tokens=info.tokens + len(fresh))
    _note(folder, info)
    return info


def _note(folder: Path, info: TokensInfo) -> None:
    part = folder / f"{ABOUT}.part"
    part.write_text(json.dumps(asdict(info), indent=2) + "\n")
    part.replace(folder / ABOUT)


def pack_tokens(
    source: str, out: Path, *, tokenizer: str, split: str, column: str, most: int | None
) -> tuple[TokensInfo, bool]:
    """The written tokens, and whether they existed already. An incomplete folder is continued."""
    encoder = TextTokenizer(tokenizer)
    info = TokensInfo(
        source=f"{source} split={split} column={column} most={most}",
        tokenizer=encoder.digest,
        vocabulary=encoder.count,
    )
    previous = read_tokens_info(out)
    if previous is not None and not previous.documents:
        previous = (
            None  # it came to nothing, perhaps as the source was not reached: no reason to hold on to it
        )
    if previous is not None:
        same = replace(previous, documents=0, tokens=0, sha256="")
        if same != info:
            message = f"{out} was started with other options: {previous.source}, {previous.tokenizer[:12]}"
            raise TaskDataError([Problem(message, "name another folder, or use the same options", "--out")])
        if previous.is_complete:
            return previous, True
    info = previous or info
    return write_tokens(
        out,
        stream_documents(source, split=split, column=column, skip=info.documents),
        encoder,
        info,
        most=most,
    ), False
