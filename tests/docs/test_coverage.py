"""The coverage page names valid commands and existing tests.

Only commands that read and write text are run here. test_links.py checks the links of every page.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import pytest
from docs.pages import ROOT
from docs.shell_blocks import commands, problem

from paceline.cli.main import cli, run
from paceline.cli.torchrun_worker import _command
from paceline.core.errors import ExitCode
from paceline.training.session import Session

PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
WORKER = _command(lambda *_: 0)  # what torchrun starts
TEXT_ALONE = re.compile(
    r"paceline (job (render|validate|explain --from)|cluster (check|fix) --from|metrics list|config show)\b"
)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    requirement: str
    command: str
    proof: str
    state: str


def rows() -> Iterator[Row]:
    """The rows of all tables; quantitative targets also have a goal."""
    for number, line in enumerate(PAGE.splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or cells[0] in ("requirement", "target"):
            continue
        if len(cells) == 5:
            cells.pop(1)
        assert len(cells) == 4, f"docs/coverage.md:{number} has {len(cells)} columns"
        yield Row(number, *cells)


ROWS = list(rows())


def test_every_strand_has_its_rows_and_every_row_is_complete() -> None:
    assert len(ROWS) > 200
    wrong = [
        row
        for row in ROWS
        if not re.fullmatch(r"shown(: .+)?|in part: .+|missing: .+|(met|missed|open)(\W.*)?", row.state)
        or not re.fullmatch(r"`[^`]+`", row.command)
        or not row.requirement
    ]
    assert not wrong


def test_whatever_is_shown_names_its_proof() -> None:
    unproved = [
        row
        for row in ROWS
        if row.state.startswith(("shown", "in part"))
        and not TEST.search(row.proof)
        and "`make " not in row.proof
    ]
    assert not unproved


def test_every_test_that_is_named_exists() -> None:
    named = set(TEST.findall(PAGE))
    assert len(named) > 200
    assert not sorted(f"{path}::{name}" for path, name in named if name not in _tests_of(path))


def test_what_only_long_tests_prove_is_marked() -> None:
    silent = []
    for row in ROWS:
        matches = TEST.findall(row.proof)
        if matches and all(_tests_of(path).get(name) for path, name in matches):
            silent += [row] if "soak" not in row.proof + row.state else []
    assert not silent


def test_every_command_is_parsed() -> None:
    wrong = [(row.line, text) for row in ROWS if (text := _against(row.command.strip("`")))]
    assert not wrong


def _against(command: str) -> str | None:
    (words,) = commands(command)
    match words:
        case ["paceline", *_]:
            return problem(words, cli)
        case ["make", target]:
            return None if target in TARGETS else f"no target {target}"
        case ["torchrun", "--nproc_per_node=2", "-m", "paceline.worker", *flags]:
            return problem(["paceline.worker", *flags], WORKER)
        case ["python", "-m", "paceline.worker", *flags]:
            return problem(["paceline.worker", *flags], WORKER)
        case ["python", "-m", module, "--help"]:
            return None if find_spec(module) else f"no module {module}"
        case ["python", script, *flags] | [script, *flags]:
            text = (ROOT / script).read_text(encoding="utf-8")
            return next(
                (
                    flag
                    for flag in flags
                    if flag.startswith("--") and flag not in {"--help"} and flag not in text
                ),
                None,
            )
        case _:
            return "nothing to type"


def test_what_only_writes_or_reads_text_really_works(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, from the top of the repository; nothing is started or asked."""
    typed = sorted({row.command.strip("`") for row in ROWS if TEXT_ALONE.match(row.command.strip("`"))})
    assert len(typed) > 25
    wrong = [line for line in typed if run(shlex.split(line)[1:], Session(folder=ROOT)) != ExitCode.OK]
    assert not wrong, capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "paceline trian",
        "make nonsense",
        "python -m paceline.worker --nonsense",
        "scripts/cleanup.sh --nonsense",
    ],
)
def test_an_unknown_command_is_found(command: str) -> None:
    assert _against(command)


@cache
def _tests_of(path: str) -> dict[str, bool]:
    """The tests of a file; whether each takes too long for every change."""
    file = ROOT / "tests" / path
    if not file.exists():
        return {}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name: any(
            "mark.soak" in ast.unparse(mark) and "param" not in ast.unparse(mark)
            for mark in node.decorator_list
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
