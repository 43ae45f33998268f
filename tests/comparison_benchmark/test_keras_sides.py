"""One side of a Keras benchmark alone, and its comparison with an earlier run of the other side."""

import json
from pathlib import Path

import pytest
from tests.comparison_benchmark.made import run
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_sides import Side, earlier_runs, write_settings
from paceline.comparison.benchmark.runner import Contender, LogFunction, benchmark
from paceline.comparison.benchmark.schema import Benchmark, Measured
from paceline.core.errors import ConfigError
from paceline.plan.codec import Json

SETTINGS: dict[str, Json] = {"num_workers": 2, "epochs": 3}


def trained(out: Path, side: Side, settings: dict[str, Json] = SETTINGS) -> Benchmark:
    """One side of the benchmark, as with --only, with measurements made by hand."""
    name = side.contender

    def train(folder: Path, _seed: int, _note: LogFunction) -> Measured:
        write_settings(settings, folder)
        return run(name, 1, 100.0, 50.0) if side is Side.BASELINE else run(name, 2, 80.0, 90.0, on_ray=True)

    other = side.other
    earlier = earlier_runs(out, other, settings, repeats=1)
    return benchmark(
        [Contender(name=name, title=name, run=train)],
        out,
        task="cifar10",
        subject="ray",
        repeats=1,
        seed=0,
        notify=lambda _: None,
        note=lambda _: None,
        earlier={other.contender: earlier} if earlier else {},
    )


def files(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.is_file())


@pytest.mark.parametrize("order", [(Side.BASELINE, Side.DISTRIBUTED), (Side.DISTRIBUTED, Side.BASELINE)])
def test_a_comparison_is_written_once_both_sides_have_run(tmp_path: Path, order: tuple[Side, Side]) -> None:
    first, second = order
    alone = trained(tmp_path, first)
    assert list(alone.rows) == [first.contender]
    (name,) = files(tmp_path)
    result = json.loads((tmp_path / name).read_text())
    assert result["training_type"] == ("baseline" if first is Side.BASELINE else "ray_distributed")
    assert "speedup" not in result
    both = trained(tmp_path, second)
    assert (both.speedup, list(both.rows)) == (1.25, ["baseline", "ray"])
    written = {"baseline_results.json", "ray_results_2workers.json", "comparison.json", "report.html"}
    assert written <= set(files(tmp_path))


def test_a_side_with_other_settings_is_not_compared_and_stays(tmp_path: Path, wording: Wording) -> None:
    trained(tmp_path, Side.BASELINE)
    with wording.raises(ConfigError):
        trained(tmp_path, Side.DISTRIBUTED, {**SETTINGS, "epochs": 5})
    assert files(tmp_path) == ["baseline_results.json"]


def test_results_without_their_settings_are_not_compared(tmp_path: Path, wording: Wording) -> None:
    trained(tmp_path, Side.BASELINE)
    (tmp_path / "runs" / "baseline-1" / "settings.json").unlink()
    with wording.raises(ConfigError):
        trained(tmp_path, Side.DISTRIBUTED)
