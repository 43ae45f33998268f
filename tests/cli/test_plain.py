"""`--plain` prints one value a line, whatever is in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cli.main import run
from paceline.cli.output import plain_lines
from paceline.plan.codec import Json
from paceline.training.session import Session

NAMES = st.text("abc", min_size=1)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
DATA = st.recursive(VALUES, lambda some: st.lists(some) | st.dictionaries(NAMES, some))


@given(DATA)
def test_each_value_has_a_line_with_one_tab(data: Any) -> None:  # Any: JSON
    lines = list(plain_lines(data))
    assert len(lines) == _leaves(data)
    assert all(line.count("\t") == 1 and "\n" not in line and "\r" not in line for line in lines)
    assert len({line.split("\t")[0] for line in lines}) == len(lines)


def _leaves(data: Any) -> int:  # Any: JSON
    if isinstance(data, dict):
        return sum(map(_leaves, data.values()))
    return sum(map(_leaves, data)) if isinstance(data, list) else 1


def test_names_and_values_are_those_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--dry-run", "--mode", "ssp", "--num-workers", "2", "--steps", "20"]
    assert run([*words, "--json"], Session(folder=tmp_path)) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    for where in ([*words, "--plain"], ["--plain", *words]):  # before and after the command's name
        assert run(where, Session(folder=tmp_path)) == 0
        assert capsys.readouterr().out.splitlines() == list(plain_lines(data))


def test_what_would_break_a_line_is_written_out() -> None:
    data: Json = {"a": [{"b": "one\ttwo\nthree\\"}, None, True, 0.5, float("nan")]}
    assert list(plain_lines(data)) == [
        "a.0.b\tone\\ttwo\\nthree\\\\",
        "a.1\t",
        "a.2\ttrue",
        "a.3\t0.5",
        "a.4\t",
    ]
