"""A mode is one file and one row: the rest of the program derives what it needs from them."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.processes.command import ROOT, CommandResult

from paceline.laws.runner import cases
from paceline.plan.catalog import MODES, Channel, Mode

SOURCE = ROOT / "src" / "paceline"
GUIDE = ROOT / "docs" / "guides" / "your-own-strategy.md"
ROW = """        Mode(name="mine", channel=Channel.COLLECTIVE, summary="as ssgd, written again", like="ssgd"),
    )
}
MODE_ALIASES"""
# They choose among modes (a usual comparison, a lesson), or know one by one how to prove and predict them;
# and settings may be called as a mode is (`--asgd`, `--gossip`).
CHOOSING = ("laws", "learn", "simulate", "comparison/layout.py", "plan/catalog.py")
SETTINGS = ("config/mode_keys.py", "comparison/benchmark/torch_layout.py")


def test_no_list_of_modes_has_to_be_extended_for_a_new_one() -> None:
    results = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        if not str(path.relative_to(SOURCE)).startswith(CHOOSING + SETTINGS)
        for line in _lists_of_modes(ast.parse(path.read_text()))
    ]
    assert results == []


def _lists_of_modes(tree: ast.Module) -> Iterator[int]:
    """Where a constant of a module holds two modes or more."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            texts = {node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)}
            if len(texts & set(MODES)) > 1:
                yield statement.lineno


@pytest.mark.parametrize("mode", MODES)
def test_modes_do_not_see_each_other(mode: str) -> None:
    others = {f"paceline.strategies.{name}" for name in MODES if name != mode}
    assert not _imports(f"paceline.strategies.{mode}", set()) & others


def _imports(module: str, seen: set[str]) -> set[str]:
    """The modules of strategies that it imports, and what they import."""
    path = SOURCE.parent / f"{module.replace('.', '/')}.py"
    if module in seen or not path.exists():
        return seen
    seen.add(module)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline.strategies."):
            _imports(str(node.module), seen)
    return seen


def test_a_row_with_defaults_is_allowed_what_a_class_from_outside_is() -> None:
    row = Mode(name="mine", channel=Channel.COLLECTIVE, summary="…")
    assert row.is_evaluated
    assert row.has_one_update
    assert row.options is None
    assert row.compresses


def test_the_laws_of_a_mode_that_is_like_another_are_those_of_the_other() -> None:
    row = Mode(name="mine", channel=Channel.COLLECTIVE, summary="…", like="ssgd")
    MODES[row.name] = row
    try:
        own = list(cases("mine"))
        assert {case.law.id for case in own} == {case.law.id for case in cases("ssgd")}
        assert {(case.mode, case.subject) for case in own} == {("ssgd", "mine")}
    finally:
        del MODES[row.name]


@pytest.fixture(scope="module")
def with_mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more file and one more row: the guide's strategy, moved inside."""
    folder = tmp_path_factory.mktemp("contributed")
    shutil.copytree(SOURCE, folder / "paceline")
    block = GUIDE.read_text().split("<!-- save as my_strategy.py -->\n```python\n")[1].split("```")[0]
    (folder / "paceline" / "strategies" / "mine.py").write_text(block)
    catalog = folder / "paceline" / "plan" / "catalog.py"
    text = catalog.read_text()
    assert "    )\n}\nMODE_ALIASES" in text
    catalog.write_text(text.replace("    )\n}\nMODE_ALIASES", ROW))
    return folder


def _paceline(folder: Path, *args: str) -> CommandResult:
    result = subprocess.run(
        [sys.executable, "-m", "paceline", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return CommandResult(result.returncode, result.stdout, result.stderr)


def test_one_file_and_one_row_are_a_mode(with_mine: Path) -> None:
    args = ("--mode", "mine", "--steps", "20", "--compress", "int8", "--scale-lr", "linear")
    outcome = _paceline(with_mine, "train", *args, "--evaluate-every", "10", "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.data()["result"]
    assert (result["mode"], result["steps"]) == ("mine", 20)


def test_its_name_is_in_the_help(with_mine: Path) -> None:
    assert "mine," in _paceline(with_mine, "train", "--help").out
