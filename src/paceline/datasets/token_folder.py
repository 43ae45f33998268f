"""What is a folder of packed tokens? `tokens.bin`, 32 bits each, and `tokens.json`, which says what they are.

It is written by going on: the JSON is replaced whole after every stretch, and says how
many documents and tokens are in the file by then. What was written after that is
cut off when the writing goes on, so a stop at any moment loses a stretch and
nothing else, and the file has the same bytes as if there had been none.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.datasets.tokenizing import Words
from paceline.errors import InUseError, PacelineError

TOKENS, ABOUT = "tokens.bin", "tokens.json"
SCHEMA = "paceline.tokens/1"
DOCUMENTS_AT_ONCE = 1000
TOKENS_AT_ONCE = 1 << 22  # documents may be as long as books
_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
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


def read_about(folder: Path) -> About | None:
    """None: there is no such folder yet. Raises PacelineError when it is something else."""
    path = folder / ABOUT
    if not path.exists():
        return None
    try:
        said = json.loads(path.read_text())
        if said["schema"] != SCHEMA:
            raise ValueError(f"its schema is {said['schema']!r}")
        return About(**{field.name: said[field.name] for field in fields(About)})
    except (ValueError, KeyError, TypeError) as error:
        raise PacelineError(f"{path} says nothing about tokens: {error}", "name another folder") from error


def open_tokens(folder: Path) -> tuple[About, NDArray[np.uint32]]:
    """The tokens, read where they lie."""
    about = read_about(folder)
    if about is None or not about.is_complete:
        what = (
            f"{folder} has no packed tokens" if about is None else f"the tokens in {folder} are not complete"
        )
        raise PacelineError(what, "write them: paceline data tokens SOURCE --out FOLDER; again, it goes on")
    path = folder / TOKENS
    if path.stat().st_size != about.tokens * _WIDTH:
        what = (
            f"{path} has {path.stat().st_size} bytes, but {about.tokens} tokens have {about.tokens * _WIDTH}"
        )
        raise PacelineError(what, "write them again, into an empty folder: paceline data tokens")
    return about, np.memmap(path, dtype="<u4", mode="r")


def write_tokens(
    folder: Path, documents: Iterable[str], words: Words, about: About, *, most: int | None
) -> About:
    """Go on after `about`, of which the documents must be those that follow; stops at `most` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TOKENS).open("ab") as file:
        _alone(file, folder)
        file.truncate(about.tokens * _WIDTH)
        _note(folder, about)
        kept: list[NDArray[np.uint32]] = []
        waiting = 0  # tokens that are not yet in the file
        for document in words.of_each(documents):
            kept += [document, words.end]
            waiting += len(kept[-2]) + len(kept[-1])
            about = replace(about, documents=about.documents + 1)
            if len(kept) >= 2 * DOCUMENTS_AT_ONCE or waiting >= TOKENS_AT_ONCE:
                about, kept, waiting = _written(file.fileno(), folder, about, kept, most), [], 0
            if most is not None and about.tokens + waiting >= most:
                break
        about = _written(file.fileno(), folder, about, kept, most)
    if not about.tokens:
        raise PacelineError(f"{about.source} has no text", "name another source, split or column")
    with (folder / TOKENS).open("rb") as file:
        about = replace(about, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    _note(folder, about)
    return about


def _alone(file: BinaryIO, folder: Path) -> None:
    """Until the file is closed, also by the end of this process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        what = f"somebody else is writing tokens into {folder}"
        raise InUseError(what, "wait for them, or name another folder: --out") from error


def _written(fd: int, folder: Path, about: About, kept: list[NDArray[np.uint32]], most: int | None) -> About:
    if not kept:
        return about
    fresh = np.concatenate(kept)[: None if most is None else max(0, most - about.tokens)].astype("<u4")
    rest = memoryview(fresh.tobytes())
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)  # before the note that says it is there
    about = replace(about, tokens=about.tokens + len(fresh))
    _note(folder, about)
    return about


def _note(folder: Path, about: About) -> None:
    part = folder / f"{ABOUT}.part"
    part.write_text(json.dumps(asdict(about), indent=2) + "\n")
    part.replace(folder / ABOUT)
