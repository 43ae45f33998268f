"""run-benchmark.sh passes flags to `paceline benchmark keras` that exist, with the given values."""

import shlex
import subprocess

import click
from tests.fixtures.processes.command import ROOT

from paceline.cli.benchmark_keras import keras
from paceline.training.session import Session


def commands_on_head(*flags: str) -> list[list[str]]:
    """What would run on the head, word by word."""
    script = ["bash", str(ROOT / "scripts" / "run-benchmark.sh"), "--dry-run", *flags]
    result = subprocess.run(script, capture_output=True, text=True, check=True)
    # Bash writes what has several lines as $'…', which shlex does not read; ours have one.
    last = [shlex.split(line)[-1] for line in result.stdout.splitlines() if " sh -c mkdir" in line]
    return [shlex.split(text.split("&& ", 2)[2]) for text in last]


def test_the_command_of_the_script_is_one_that_paceline_reads() -> None:
    flags = (
        "--num-workers",
        "3",
        "--epochs",
        "5",
        "--batch-size",
        "96",
        "--data",
        "synthetic",
        "--subset",
        "500",
    )
    (words,) = (
        words for words in commands_on_head(*flags) if words[:3] == ["paceline", "benchmark", "keras"]
    )
    context: click.Context = keras.make_context("keras", words[3:], obj=Session())
    messages = {
        name: context.params[name] for name in ("num_workers", "epochs", "batch_size", "data", "subset")
    }
    assert messages == {"num_workers": 3, "epochs": 5, "batch_size": 96, "data": "synthetic", "subset": 500}
    assert str(context.params["out"]) == ".", "results are copied from the folder it runs in"


def test_images_are_fetched_to_the_head_unless_others_are_named() -> None:
    fetch = ["paceline", "data", "fetch", "cifar10"]
    assert fetch in commands_on_head()
    assert fetch not in commands_on_head("--data", "synthetic")
