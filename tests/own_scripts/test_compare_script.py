"""`paceline compare -- SCRIPT`: equal work for a script in every mode, and its own numbers in the table."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline

from paceline.launchers.local import LocalLauncher

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "logging_script.py"


def test_every_mode_makes_the_same_samples_and_the_accuracy_is_the_scripts(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Two rounds: the model is not seeded by the script, so each round begins with another one."""
    flags = ("--modes", "asgd", "--num-workers", "2,4", "--repeats", "2", "--target-accuracy", "0.5")
    done = warm_paceline(
        launcher, "compare", *flags, "--out", "out", "--json", "--", str(SCRIPT), "2", folder=tmp_path
    )
    assert done.code == 0, done.err
    comparison = json.loads(done.out)["data"]["comparison"]
    assert comparison["task"] == "logging_script.py 2"
    assert (comparison["steps"], comparison["samples"]) == (16, 256)
    assert comparison["quality"] == {"name": "accuracy", "is_share": True}
    assert set(comparison["cells"]) == {"single", "asgd-2", "asgd-4"}
    for cell in comparison["cells"].values():
        assert cell["quality"]["value"] > 0.5
        assert cell["target_s"] > 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").glob("*/result.json")]
    assert [result["samples"] for result in results] == [256] * 6
    first, second = (
        json.loads((tmp_path / "out" / "runs" / f"single-{number}" / "plan.json").read_text())
        for number in (1, 2)
    )
    assert first["task_options"]["model"] != second["task_options"]["model"]


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (("--num-workers", "2,4"), ("2", "per-worker")),
        (("--lr", "0.1"), ("2",)),
        (("--modes", "ddp"), ("2",)),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(
    flags: tuple[str, ...], arguments: tuple[str, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    done = warm_paceline(
        launcher,
        "compare",
        *flags,
        "--repeats",
        "1",
        "--json",
        "--",
        str(SCRIPT),
        *arguments,
        folder=tmp_path,
    )
    assert done.code == 3
    assert not (tmp_path / "comparison").exists()
