"""Is a CSV of closes read as it is meant, and is what is wrong with it one clear problem?"""

from pathlib import Path

import pytest

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
    found = read(tmp_path, f"{header}\n2024-01-02,10.5\n2024-01-03,11\n")
    assert found.values.tolist() == [10.5, 11.0]
    assert [day.isoformat() for day in found.dates] == ["2024-01-02", "2024-01-03"]


def test_among_many_columns_the_close_is_taken_wherever_it_stands(tmp_path: Path) -> None:
    text = "Open,Close,Adj Close,Volume,Date\n1,2,3,4,2024-01-02 00:00:00\n"
    assert read(tmp_path, text).values.tolist() == [2.0]
    named = read(tmp_path, text, columns=Columns(close="adj close"))
    assert named.values.tolist() == [3.0]


def test_days_without_a_close_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read(tmp_path, "date,close\n2024-01-02,10\n2024-01-03,\n\n2024-01-04,.\n2024-01-05,12\n")
    assert found.values.tolist() == [10.0, 12.0]
    assert found.rows_without_close == 2


@pytest.mark.parametrize(
    ("text", "where", "what", "hint"),
    [
        ("", "", "the file is empty", "date,close"),
        ("\n\n", "", "the file is empty", "date,close"),
        ("date,close\n", "", "has a header, but no closes", "2024-01-02,4742.83"),
        ("date,close\n2024-01-02,\n", "", "has a header, but no closes", "2024-01-02,4742.83"),
        ("date,open,high\n2024-01-02,1,2\n", ":1", "has no column close", "--close-column high"),
        ("when,what,close\n2024-01-02,1,2\n", ":1", "has no column date", "--date-column close"),
        ("date,close\n2024-01-02,10\n2024-01-03,ten\n", ":3", "the close is ten", "a number such as"),
        ("date,close\n2024-01-02,-1\n", ":2", "the close is -1, but it must be more than 0", "a number"),
        ("date,close\n2024-01-02,inf\n", ":2", "the close is inf", "a number"),
        ("date,close\n01/02/2024,1\n", ":2", "the date is 01/02/2024", "YYYY-MM-DD"),
        (
            "date,close\n2024-01-03,1\n2024-01-02,1\n",
            ":3",
            "2024-01-02 comes after 2024-01-03 of line 2",
            "sort",
        ),
        ("date,close\n2024-01-03,1\n2024-01-03,1\n", ":3", "dates must increase", "sort -u"),
        ("date,close\n2024-01-03\n", ":2", "the line has 1 of 2 columns", "write a date and a close"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_what_to_do(
    tmp_path: Path, text: str, where: str, what: str, hint: str
) -> None:
    found = problem(tmp_path, text)
    assert what in found.what
    assert hint in found.hint
    assert found.where == f"{tmp_path / 'closes.csv'}{where}"


def test_a_gap_is_refused_where_it_is_until_it_is_allowed(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,10\n2024-01-03,\n2024-01-23,11\n2024-01-24,12\n"
    found = problem(tmp_path, text)
    assert "no close for 21 days, between 2024-01-02 and 2024-01-23" in found.what
    assert found.where == f"{tmp_path / 'closes.csv'}:4"
    assert found.hint.endswith("--max-gap-days 21")
    assert len(read(tmp_path, text, max_gap_days=21).values) == 3


def test_every_gap_is_reported_at_once(tmp_path: Path) -> None:
    text = "date,close\n2024-01-02,10\n2024-02-02,10\n2024-03-15,10\n"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert [p.where for p in caught.value.problems] == [f"{tmp_path / 'closes.csv'}:{n}" for n in (3, 4)]
    assert caught.value.problems[0].hint.endswith("--max-gap-days 42")


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    found = problem(tmp_path, "day,final,x\n2024-01-02,1,2\n", columns=Columns(close="finall"))
    assert found.hint.startswith("did you mean final?")


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_closes(tmp_path / "none.csv", Columns(), max_gap_days=10)
    with pytest.raises(ConfigError, match="directory"):
        read_closes(tmp_path, Columns(), max_gap_days=10)
    (tmp_path / "closes.csv").write_bytes(b"date,close\n2024-01-02,\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_closes(tmp_path / "closes.csv", Columns(), max_gap_days=10)
