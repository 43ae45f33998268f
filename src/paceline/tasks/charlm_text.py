"""Which text does charlm learn, and which number stands for which character? Any file's, or a toy text."""

import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError, Problem, TaskDataError
from paceline.tasks.toy_text import toy_text

TOY_CHARACTERS = 1 << 16
TOY = "paceline train --task charlm"
PART, CODE = "text", "code"  # of a data set in shards
_COMMAND = f"{TOY} --task-option file=input.txt"


def text_of(seed: int, file: str | None) -> str:
    return toy_text(seed, TOY_CHARACTERS) if file is None else read_text(file)


def encode(text: str) -> tuple[NDArray[np.int64], str]:
    """The text as numbers, and the characters in the order of these numbers."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    known, codes = np.unique(points, return_inverse=True)
    return codes.astype(np.int64), "".join(map(chr, known.tolist()))


def read_text(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise problem(f"charlm cannot read {file!r}: {why}", f"name a text file: {_COMMAND}") from error
    except UnicodeDecodeError as error:
        what = f"charlm reads UTF-8 text, but {file!r} is none: byte {error.start} is no part of a character"
        hint = f"if it is a text, convert it first: iconv -f LATIN1 -t UTF-8 {shlex.quote(file)} > input.txt"
        raise problem(what, hint) from error
    if "\0" in text:
        what = f"charlm reads text, but {file!r} is none: byte {len(text.partition(chr(0))[0].encode())} is 0"
        raise problem(what, f"name a text file: {_COMMAND}")
    return text


def check_length(name: str, length: int, context: int) -> None:
    fewest = 10 * (context + 1)  # so that a tenth holds one window
    if length >= fewest:
        return
    fits = length // 10 - 1
    less = f"look back less far: --task-option context={fits}" if fits > 0 else "try the toy text: " + TOY
    if not length:
        raise problem(f"charlm has nothing to learn from: {name} is empty", f"name a text file, or {less}")
    what = f"{name} has {length} characters, but a context of {context} takes {fewest} or more"
    raise problem(what, f"name a longer file, or {less}")


def problem(what: str, hint: str) -> ConfigError:
    return TaskDataError([Problem(what, hint)])
