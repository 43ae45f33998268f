"""Does a mode, or a user's own strategy class, obey the laws?"""

from collections.abc import Callable
from importlib.util import find_spec

from paceline.errors import ConfigError, MissingPackageError, Problem
from paceline.launchers.helper import json_lines
from paceline.plan.catalog import MODE_ALIASES, MODES
from paceline.plan.codec import Json

LawLine = dict[str, Json]  # id, mode, what, ok, measured


PEERS = ("torch", "torchft", "accelerate")  # each is also the name of its module


def check_laws(mode: str | None, like: str | None, on_law: Callable[[LawLine], None]) -> list[LawLine]:
    """All laws of a mode (None: of every mode). `mode` may be `module:Class`, tried as a `like`."""
    arguments = _arguments(mode, like)
    results = []
    for line in json_lines("paceline.laws", arguments):
        on_law(line)
        results.append(line)
    return results


def check_peer(peer: str, on_law: Callable[[LawLine], None]) -> list[LawLine]:
    """What another library's averagers do under the laws, and which of it was known.

    The lines also have subject, version, verdict and note, but no `ok`: the verdict says more.
    """
    if find_spec(peer) is None:
        raise MissingPackageError(
            f"{peer} is not installed, so there is nothing to try",
            "pip install 'paceline[peers]' installs torchft and accelerate",
        )
    results = []
    for line in json_lines("paceline.laws", ["--peer", peer]):
        on_law(line)
        results.append(line)
    return results


def _arguments(mode: str | None, like: str | None) -> list[str]:
    mode = MODE_ALIASES.get(mode, mode) if mode is not None else None
    like = MODE_ALIASES.get(like, like) if like is not None else None
    names = ", ".join(MODES)
    if like is not None and like not in MODES:
        raise _bad(f"there are no laws for mode {like!r}", f"--like takes one of: {names}", "--like")
    if mode is None:
        return []
    if ":" not in mode:
        if mode not in MODES:
            raise _bad(f"there is no mode {mode!r}", f"modes are {names}, or module:Class", "--mode")
        return ["--mode", mode]
    if like is None:
        hint = f"say which mode it is meant to be: paceline laws --mode {mode} --like ssgd (one of {names})"
        raise _bad(f"{mode} is a class of your own, so its laws are not known", hint, "--mode")
    return ["--mode", like, "--subject", mode]


def _bad(what: str, hint: str, where: str) -> ConfigError:
    return ConfigError([Problem(what, hint, where)])
