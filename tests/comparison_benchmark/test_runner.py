"""A benchmark keeps existing files and leaves only its own."""

from pathlib import Path

import pytest
from tests.comparison_benchmark.made import run
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.runner import BASELINE, Contender, LogFunction, benchmark
from paceline.comparison.benchmark.schema import Benchmark, Measured
from paceline.core.errors import ConfigError

FOUND = (
    "comparison.json",
    "comparison.csv",
    "report.html",
    "baseline_results.json",
    "ssgd_results_2workers.json",
)


def alone(_folder: Path, _seed: int, _note: LogFunction) -> Measured:
    return run(BASELINE, 1, 100.0, 50.0)


def together(_folder: Path, _seed: int, _note: LogFunction) -> Measured:
    return run("ssgd", 2, 80.0, 90.0)


def interrupted(_folder: Path, _seed: int, _note: LogFunction) -> Measured:
    raise KeyboardInterrupt


def made(out: Path, ours: Contender) -> Benchmark:
    both = [Contender(name=BASELINE, title="alone", run=alone), ours]
    return benchmark(
        both, out, task="xor", subject="ssgd", repeats=1, seed=0, notify=lambda _: None, note=lambda _: None
    )


def test_an_interrupted_benchmark_leaves_no_comparison_of_an_earlier_one(tmp_path: Path) -> None:
    made(tmp_path, Contender(name="ssgd", title="ssgd", run=together))
    assert all((tmp_path / name).exists() for name in FOUND)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, Contender(name="ssgd", title="ssgd", run=interrupted))
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    assert not list((tmp_path / "plots").glob("*"))


def test_a_benchmark_that_is_refused_changes_nothing(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path, Contender(name="ssgd", title="ssgd", run=together))
    (tmp_path / "runs" / "ssgd-1" / "measured.json").unlink()
    with wording.raises(ConfigError):
        made(tmp_path, Contender(name="ssgd", title="ssgd", run=together))
    assert all((tmp_path / name).exists() for name in FOUND)
