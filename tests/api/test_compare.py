"""`paceline.compare` returns what its report says."""

import json
from pathlib import Path

import pytest

import paceline


def test_it_returns_what_the_report_contains(tmp_path: Path) -> None:
    comparison = paceline.compare(
        "xor", modes=["ssgd"], workers=2, repeats=1, steps=10, out=tmp_path / "out", progress=False
    )
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert comparison.use == written["verdict"]["use"]
    assert list(comparison.cells) == list(written["cells"]) == ["single", "ssgd-2"]
    assert comparison.cells["ssgd-2"].speedup.value == written["cells"]["ssgd-2"]["speedup"]["value"]
    assert comparison.report.exists()
    shown = comparison._repr_html_()
    assert shown.startswith("<table><caption>")
    assert "<td>ssgd-2</td>" in shown


def test_every_problem_is_reported_before_anything_starts(tmp_path: Path) -> None:
    wrong = {"mode": "ssgd", "steps": 0, "export": "tensorboard"}
    with pytest.raises(paceline.ConfigError) as caught:
        paceline.compare("xor", modes="ssgd,nope", workers=0, out=tmp_path / "out", progress=False, **wrong)  # type: ignore[arg-type]
    text = " | ".join(problem.what for problem in caught.value.problems)
    for part in (
        "mode is a setting of one run",
        "steps is 0",
        "export cannot be used",
        "nope",
        "num_workers is 0",
    ):
        assert part in text
    assert not (tmp_path / "out").exists()
