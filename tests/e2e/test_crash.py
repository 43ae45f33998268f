"""After everything is killed at once a run resumes, and loses no share."""

import json
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests.fixtures.processes.command import assert_nothing_was_lost, resuming, training
from tests.fixtures.runs.elastic_runs import stop

from paceline.checkpoints.catalog import newest_complete
from paceline.events.read import read_history

EVERY = 20


def soaked(*args: str) -> ParameterSet:
    return pytest.param(list(args), marks=pytest.mark.soak)


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "ssgd"],
        ["--mode", "ddp"],
        ["--mode", "asgd", "--optimizer", "adam"],
        # How each mode saves and resumes is told in tests/checkpoints; that all die at once is one more.
        soaked("--mode", "localsgd", "--sync-every", "4"),
        soaked("--mode", "gossip", "--gossip", "push-sum", "--topology", "star", "--optimizer", "momentum"),
        soaked("--mode", "ps"),
        soaked("--mode", "ssp", "--staleness", "2", "--transport", "tcp"),
    ],
    ids=lambda args: args[1],
)
def test_after_kill_9_of_the_whole_run_it_is_resumed_and_every_share_is_done_exactly_once(
    args: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    has_server = args[1] in ("ps", "asgd", "ssp")
    participants = 3 if has_server else 2
    with training(run_dir, *args, "--checkpoint-every", str(EVERY), participants=participants) as run:
        root = run_dir / "checkpoints"
        run.until(lambda: newest_complete(root, 2) is not None, "a complete checkpoint")
        run.kill_processes()
    left = newest_complete(run_dir / "checkpoints", 2)
    assert left is not None
    with resuming(run_dir, participants=participants) as run:
        run.until_it_trains()
        stop(run)
    history = read_history(run_dir / "events.jsonl")
    made = json.loads((run_dir / "result.json").read_text())["gradients"]
    assert made > sum(left.clocks) > 0
    if has_server:
        applied = sorted(row.position for row in history.server if row.op == "apply")
        assert applied == list(range(made))
    positions = sorted(row.position for rows in history.steps.values() for row in rows)
    assert positions == list(range(made))
    assert_nothing_was_lost(run_dir)
