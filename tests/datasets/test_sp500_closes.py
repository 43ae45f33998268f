"""The CSV of closing prices is parsed as intended, and each defect is one clear problem."""

from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, Problem
from paceline.datasets.sp500 import Closes, Columns, read_closes


def read(path: Path, text: str, *, columns: Columns | None = None, max_gap_days: int = 10) -> Closes:
    path = path / "closes.csv"
    path.write_text(text)
    return read_closes(path, columns or Columns(), max_gap_days=max_gap_days)


def problem(path: Path, text: str, *, columns: Columns | None = None) -> Problem:
    with pytest.raises(ConfigError) as caught:
        read(path, text, columns=columns)
    (only,) = caught.value.problems
    return only


@pytest.mark.parametrize(
    "header",
    [
        "date,close",
        "DATE,CLOSE",
        "observation_date,SP500",
        "Date, Close ",
        "\ufeffDate,Close",
        "timestamp,anything",
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path: Path, header: str) -> None:
    closes = read(tmp_path, f"{header}\n2024-01-02,10.5\n2024-01-03,11\n")
    assert closes.values.tolist() == [10.5, 11.0]
    assert [day.isoformat() for day in closes.dates] == ["2024-01-02", "2024-01-03"]


def test_among_many_columns_the_close_is_taken_wherever_it_stands(tmp_path: Path) -> None:
    text = "Open,Close,Adj Close,Volume,Date\n1,2,3,4,2024-01-02 00:00:00\n"
    assert read(tmp_path, text).values.tolist() == [2.0]
    named = read(tmp_path, text, columns=Columns(close="adj close"))
    assert named.values.tolist() == [3.0]


def test_days_without_a_close_are_left_out_and_counted(tmp_path: Path) -> None:
    closes = read(tmp_path, "date,close\n2024-01-02,10\n2024-01-03,\n\n2024-01-04,.\n2024-01-05,12\n")
    assert closes.values.tolist() == [10.0, 12.0]
    assert closes.rows_without_close == 2


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("", "", "date,close"),
        ("\n\n", "", "date,close"),
        ("date,close\n", "", "2024-01-02,4742.83"),
        ("date,close\n2024-01-02,\n", "", "2024-01-02,4742.83"),
        ("date,open,high\n2024-01-02,1,2\n", ":1", "--close-column high"),
        ("when,what,close\n2024-01-02,1,2\n", ":1", "--date-column close"),
        ("date,close\n2024-01-02,10\n2024-01-03,ten\n", ":3", "number"),
        ("date,close\n2024-01-02,-1\n", ":2", "number"),
        ("date,close\n2024-01-02,inf\n", ":2", "number"),
        ("date,close\n01/02/2024,1\n", ":2", "YYYY-MM-DD"),
        ("date,close\n2024-01-03,1\n2024-01-02,1\n", ":3", "sort"),
        ("date,close\n2024-01-03,1\n2024-01-03,1\n", ":3", "sort -u"),
        ("date,close\n2024-01-03\n", ":2", "date"),
    ],
)
def test_an_error_is_reported_with_its_line_and_a_hint(
    tmp_path: Path, text: str, where: str, hint: str, wording: Wording
) -> None:
    error = problem(tmp_path, text)
    assert hint in error.hint
    wording(error.what)
    assert error.where == f"{tmp_path / 'closes.csv'}{where}"


def test_a_gap_is_refused_where_it_is_until_it_is_allowed(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,10\n2024-01-03,\n2024-01-23,11\n2024-01-24,12\n"
    error = problem(tmp_path, text)
    for number in ("21 days", "2024-01-02", "2024-01-23"):
        assert number in error.what
    assert error.where == f"{tmp_path / 'closes.csv'}:4"
    assert error.hint.endswith("--max-gap-days 21")
    assert len(read(tmp_path, text, max_gap_days=21).values) == 3


def test_every_gap_is_reported_at_once(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,10\n2024-02-02,10\n2024-03-15,10\n"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert [p.where for p in caught.value.problems] == [f"{tmp_path / 'closes.csv'}:{n}" for n in (3, 4)]
    assert caught.value.problems[0].hint.endswith("--max-gap-days 42")


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    error = problem(tmp_path, "day,final,x\n2024-01-02,1,2\n", columns=Columns(close="finall"))
    assert " final?" in error.hint


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(ConfigError):
        read_closes(tmp_path / "none.csv", Columns(), max_gap_days=10)
    with wording.raises(ConfigError):
        read_closes(tmp_path, Columns(), max_gap_days=10)
    (tmp_path / "closes.csv").write_bytes(b"date,close\n2024-01-02,\xff\n")
    with wording.raises(ConfigError):
        read_closes(tmp_path / "closes.csv", Columns(), max_gap_days=10)
