"""The golden wording: every entry of tests/wording belongs to a test that exists."""

import ast
from pathlib import Path

import pytest
from tests.fixtures.order import SLOW_FILES
from tests.fixtures.wording import FOLDER, Wording, describe_error, read_entries, store_entry

from paceline.core.errors import ConfigError, Problem

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("golden", FILES, ids=lambda path: path.stem)
def test_every_entry_belongs_to_a_test_that_exists(golden: Path) -> None:
    for title in read_entries(golden):
        file, _, test = title.partition("::")
        tree = ast.parse((FOLDER.parent / golden.stem / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test.partition("[")[0] in names, title


def test_a_text_that_differs_or_is_missing_fails(tmp_path: Path) -> None:
    node_id = "tests/none/test_x.py::test_y"
    with pytest.raises(AssertionError):
        Wording(node_id, tmp_path, rewrite=False)("a sentence")
    golden = tmp_path / "x.txt"
    store_entry(golden, "test_x.py::test_y", ["first\n\n  indented", "second"])
    store_entry(golden, "test_x.py::test_a", ["other"])
    assert read_entries(golden) == {
        "test_x.py::test_a": ["other"],
        "test_x.py::test_y": ["first\n\n  indented", "second"],
    }


def test_an_error_is_described_by_code_place_message_and_hint() -> None:
    error = ConfigError(
        [Problem("steps is 0", "give at least 1", "run.yaml:3"), Problem("lr is -1", "use 1")]
    )
    assert describe_error(error) == (
        "error[E100]: run.yaml:3: steps is 0\nhint: give at least 1\nerror[E100]: lr is -1\nhint: use 1"
    )


def test_every_slow_file_exists() -> None:
    assert all((FOLDER.parent.parent / path).is_file() for path in SLOW_FILES)
