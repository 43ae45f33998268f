"""All files of a comparison hold the same numbers."""

import csv
import dataclasses
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.comparison.made import comparison, default_runs, runs
from tests.fixtures.wording import Wording

from paceline.comparison.report.comparison import csv_of, results_of, write_all
from paceline.comparison.schema import Cell, Comparison, Scaling, Target, Verdict, dumps, read
from paceline.core.errors import PacelineError


def test_comparison_json_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    made = comparison(default_runs())
    path.write_text(dumps(made))
    assert read(path) == made


def test_what_is_no_number_is_null_in_the_file() -> None:
    runs_by_name = default_runs()
    runs_by_name["asgd-4"] = runs("asgd", 4, (2.5, 2.6, 2.4), (0.9, math.nan, 0.9), histogram={"3": 5})
    cell = json.loads(dumps(comparison(runs_by_name)))["cells"]["asgd-4"]
    assert cell["quality"] is None
    assert cell["metrics"]["test_accuracy"] is None


def test_a_damaged_file_is_one_clear_error(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "comparison.json").write_text('{"schema": "something/9"}')
    with wording.raises(PacelineError):
        read(tmp_path / "comparison.json")


def test_the_csv_has_a_line_for_each_contender_with_the_same_numbers() -> None:
    made = comparison(default_runs())
    rows = list(csv.DictReader(io.StringIO(csv_of(made))))
    assert [row["mode"] for row in rows] == ["single", "ssgd", "asgd", "localsgd"]
    for row, cell in zip(rows, made.cells.values(), strict=True):
        assert float(row["seconds"]) == cell.seconds
        assert float(row["speedup"]) == cell.speedup.value
        assert row["quality_said"] == cell.quality_in_words


def test_results_files_are_those_of_the_classic_scripts() -> None:
    results = results_of(comparison(default_runs()))
    assert set(results) == {
        "baseline_results.json",
        "ssgd_results_4workers.json",
        "asgd_results_4workers.json",
        "localsgd_results_4workers.json",
    }
    baseline, ssgd = results["baseline_results.json"], results["ssgd_results_4workers.json"]
    assert baseline["training_type"] == "baseline"
    assert baseline["test_accuracy"] == pytest.approx(0.95)
    assert ssgd["training_type"] == "distributed"
    assert ssgd["num_workers"] == 4
    time_s, base_s = ssgd["training_time_seconds"], baseline["training_time_seconds"]
    assert isinstance(time_s, float)
    assert isinstance(base_s, float)
    assert ssgd["speedup"] == base_s / time_s
    assert {"epochs_completed", "training_time_seconds"} <= set(baseline)


def test_every_field_of_comparison_json_is_explained() -> None:
    page = Path(__file__).parents[2] / "docs" / "concepts" / "what-is-measured.md"
    reported = set(re.findall(r"`(\w+)`", page.read_text().partition("## comparison.json")[2]))
    for kind in (Comparison, Cell, Target, Scaling, Verdict):
        assert {field.name for field in dataclasses.fields(kind)} - {"mode"} <= reported, kind.__name__


def test_every_figure_is_an_svg_file_that_is_complete_by_itself(tmp_path: Path) -> None:
    figures = write_all(comparison(default_runs()), tmp_path)
    names = {figure.name for figure in figures}
    assert {"loss-over-time", "loss-over-samples", "speedup", "efficiency", "phases", "staleness"} == names
    for name in names:
        root = ElementTree.parse(tmp_path / "plots" / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
