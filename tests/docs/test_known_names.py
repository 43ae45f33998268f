"""The page of known names has each name that users come with, and commands that parse."""

import re

import pytest
from docs.pages import ROOT
from docs.shell_blocks import commands, problem

from paceline.cli.main import cli
from paceline.cli.torchrun_worker import _command

PAGE = (ROOT / "docs" / "if-you-know-these-names.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.M)
NAMES = (
    *("main.py --mode", "baseline_training.py", "distributed_training.py", "compare_results.py"),
    *("build_image.py", "test_image.py", "push_to_ecr.py", "deploy_job.py", "manage_cluster.py"),
    *("coordinator/main.py", "worker/main.py --node-id", "dashboard.py", "train_ddp.py", "make_dataset.py"),
    *("setup-minikube.sh", "install-ray.sh", "run-benchmark.sh", "cleanup.sh"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_users_know_has_a_row_with_a_command(name: str) -> None:
    assert [command for known, command, _ in ROWS if name in known and "`" in command]


def test_every_command_parses_and_every_script_exists() -> None:
    typed = [
        words for _, cell, _ in ROWS for text in re.findall(r"`([^`]+)`", cell) for words in commands(text)
    ]
    assert len(typed) > 50
    wrong = []
    for words in typed:
        match words:
            case ["paceline", *_]:
                error = problem(words, cli, loosely=True)
            case ["torchrun", _, "-m", "paceline.worker", *flags]:
                error = problem(["paceline.worker", *flags], _command(lambda *_: 0))
            case [script, *_] if script.startswith("scripts/"):
                error = None if (ROOT / script).is_file() else "no such script"
            case _:
                error = None
        if error:
            wrong.append((words, error))
    assert not wrong


def test_every_row_links_to_a_page() -> None:
    rows = [row for row in ROWS if row[0] != "you know" and not row[0].startswith("---")]
    assert len(rows) > 40
    assert not [row for row in rows if "](" not in row[2]]
