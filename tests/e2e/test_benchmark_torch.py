"""`paceline benchmark torch` compares plain torch, Ray Train and Paceline on Ray."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline

pytestmark = pytest.mark.timeout(400)


@pytest.mark.soak  # Ray is started once or twice; `paceline train --launcher ray` has tests of its own
@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_torch_ray_train_and_paceline_do_the_same_work_in_one_table(launcher: str, tmp_path: Path) -> None:
    ours = "ssgd" if launcher == "local" else "ssgd-ray"
    out = tmp_path / "out"
    result = paceline(
        *("benchmark", "torch", "--task", "xor", "--num-workers", "2", "--batch-size", "64", "--steps", "12"),
        *("--launcher", launcher, "--peers", "ray", "--out", str(out), "--json"),
        within_s=380,
    )
    assert result.code == 0, result.err
    rows = result.data()["comparison"]["rows"]
    assert list(rows) == ["baseline", "ray", ours]
    assert [row["workers"] for row in rows.values()] == [1, 2, 2]
    assert {(row["global_batch"], row["samples"]) for row in rows.values()} == {(64, 12 * 64)}
    # The same samples from the same parameters, averaged: only the order of sums may differ.
    losses = [row["metrics"]["test_loss"] for row in rows.values()]
    assert losses == [pytest.approx(losses[0], rel=1e-4)] * 3
    on_ray = [name for name, row in rows.items() if row["cluster"] is not None]
    assert on_ray == (["ray"] if launcher == "local" else ["ray", ours])
    assert all(rows[name]["cluster"]["nodes"] == 1 for name in on_ray)
    assert all(0 < row["first_step_s"] < row["total_s"] for row in rows.values())
    assert all(row["steady_samples_per_s"] > 0 for row in rows.values())
    both = json.loads((out / "comparison.json").read_text())
    assert both["subject"] == ours
    assert both["speedup"] == both["rows"]["baseline"]["total_s"] / both["rows"][ours]["total_s"]
    for name in ("baseline_results.json", "ray_results_2workers.json", f"{ours}_results_2workers.json"):
        assert json.loads((out / name).read_text())["batch_size"] == 64
    assert " 64 " in (out / "report.html").read_text()


@pytest.mark.soak
def test_without_ray_torch_alone_torch_ddp_and_paceline_modes_are_compared_in_rounds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = paceline(
        *("benchmark", "torch", "--task", "xor", "--steps", "60", "--repeats", "2", "--modes", "ssgd,asgd"),
        *("--launcher", "local", "--out", str(out), "--json"),
        within_s=380,
    )
    assert result.code == 0, result.err
    comparison = result.data()["comparison"]
    rows = comparison["rows"]
    assert list(rows) == ["baseline", "ddp", "ssgd", "asgd"]
    assert rows["ddp"]["metrics"]["test_loss"] == pytest.approx(
        rows["ssgd"]["metrics"]["test_loss"], rel=1e-5
    )
    assert all(row["cluster"] is None for row in rows.values())
    assert len(comparison["order"]) == 8
    assert all(row["speedup_total"]["low"] is not None for name, row in rows.items() if name != "baseline")
