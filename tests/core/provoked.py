"""Provokes an error by the command line or by the code that raises it, and returns its codes."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

from paceline.cli.errors import guard
from paceline.cli.main import run
from paceline.core.errors import PacelineError
from paceline.training.session import Session

Codes = set[str]
Provocation = Callable[[Path], Codes]


def printed_codes(folder: Path, *args: str) -> Codes:
    """The codes that `paceline ARGS --json` answers with, in this folder."""
    return _codes(lambda: run([*args, "--json"], Session(folder=folder)))


def guarded(body: Callable[[], object]) -> Codes:
    """The codes that any command would answer with whose body this is."""
    return _codes(lambda: guard(body, Session(), ["--json"]))


def raised(body: Callable[[], object]) -> Codes:
    try:
        body()
    except PacelineError as error:
        return {problem.code for problem in error.problems}
    raise AssertionError("it did not fail")


def _codes(command: Callable[[], int]) -> Codes:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = command()
    answer = json.loads(out.getvalue())
    assert answer["ok"] is False, answer
    assert answer["error"]["exit_code"] == code, answer
    return {problem["code"] for problem in answer["error"]["problems"]}
