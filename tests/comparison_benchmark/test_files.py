"""The files of a benchmark, which all hold the same numbers."""

import csv
import html
import json
import re
from dataclasses import replace
from pathlib import Path

from tests.comparison_benchmark.made import run
from tests.comparison_benchmark.test_compare import compared, pair

from paceline.comparison.benchmark.runner import remove_results, write_all
from paceline.comparison.benchmark.schema import read_measured, write_measured


def test_the_classic_files_have_the_names_that_scripts_expect(tmp_path: Path) -> None:
    write_all(compared(pair()), tmp_path)
    base = json.loads((tmp_path / "baseline_results.json").read_text())
    assert (base["training_type"], base["training_time_seconds"]) == ("baseline", 100.0)
    assert (base["epochs_completed"], base["test_accuracy"], base["batch_size"]) == (2, 0.7, 100)
    assert "speedup" not in base
    ray = json.loads((tmp_path / "ray_results_2workers.json").read_text())
    assert (ray["training_type"], ray["num_workers"]) == ("ray_distributed", 2)
    assert ray["batch_size_per_worker"] == 50
    assert (ray["ray_cluster_cpus"], ray["ray_cluster_nodes"]) == (4, 1)
    counts = ("num_workers", "epochs_completed", "ray_cluster_cpus", "ray_cluster_nodes", "ray_cluster_gpus")
    assert {type(ray[name]) for name in counts} == {int}, "counts are written as integers"
    assert type(base["epochs_completed"]) is int
    assert ray["ray_cluster_memory_bytes"] == 8 << 30
    assert [row["epoch"] for row in ray["history"]] == [1, 2]
    both = json.loads((tmp_path / "comparison.json").read_text())
    assert both["speedup"] == ray["speedup"] == 100.0 / 80.0
    assert both["efficiency"] == both["speedup"] / 2
    assert both["speedup_steady"] == ray["speedup_steady"]
    rows = list(csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["baseline", "ray"]
    plots = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {
        "speedup-total.svg",
        "speedup-steady.svg",
        "efficiency-total.svg",
        "time.svg",
        "curve-loss.svg",
    } <= plots


def test_part_of_an_epoch_stays_a_fraction_and_a_side_without_ray_is_distributed(tmp_path: Path) -> None:
    runs = {
        "baseline": [run("baseline", 1, 9.0, 9.0)],
        "ssgd": [replace(run("ssgd", 2, 9.0, 9.0), epochs=0.5)],
    }
    write_all(compared(runs, "ssgd"), tmp_path)
    ssgd = json.loads((tmp_path / "ssgd_results_2workers.json").read_text())
    assert (ssgd["training_type"], ssgd["epochs_completed"]) == ("distributed", 0.5)


def test_the_page_shows_what_comparison_json_holds_and_sends_no_request(tmp_path: Path) -> None:
    benchmark = compared(pair(accuracy=0.6))
    write_all(benchmark, tmp_path)
    text, both = (
        (tmp_path / "report.html").read_text(),
        json.loads((tmp_path / "comparison.json").read_text()),
    )
    cells = re.findall(r'data-key="([^"]+)" data-value="([^"]+)"', text)
    assert len(cells) > 15
    for key, value in cells:
        here = both
        for part in key.strip("/").split("/"):
            here = here[part]
        assert json.loads(value) == here, key
    for reported in (*benchmark.says, *benchmark.warnings):
        assert html.escape(reported, quote=False) in text
    assert "A processor &lt;with&gt; signs &amp; more" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = replace(run("ray", 2, 5.0, None, on_ray=True), epochs=None)
    write_measured(result, tmp_path / "measured.json")
    assert read_measured(tmp_path / "measured.json") == result


def test_an_earlier_benchmark_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    others = [tmp_path / "notes.txt", tmp_path / "plots" / "mine.png"]
    for path in others:
        path.touch()
    write_all(compared(pair()), tmp_path)
    remove_results(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(others)
    remove_results(tmp_path / "nowhere")
