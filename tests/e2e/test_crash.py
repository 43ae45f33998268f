"""What is left when everything is killed at once? A run that can go on, and loses no share."""

from pathlib import Path

import pytest
from tests.fixtures.command import paceline, training
from tests.fixtures.waiting import kill, until, until_gone

from paceline.checkpoints.catalog import newest_complete
from paceline.events.read import read_history

STEPS, EVERY = 300, 20


@pytest.mark.parametrize(
    "args",
    [
        ["--mode", "ssgd"],
        ["--mode", "ddp"],
        ["--mode", "localsgd", "--sync-every", "4"],
        ["--mode", "gossip", "--gossip", "push-sum", "--topology", "star", "--optimizer", "momentum"],
        ["--mode", "ps"],
        ["--mode", "asgd", "--optimizer", "adam"],
        ["--mode", "ssp", "--staleness", "2", "--transport", "tcp"],
    ],
    ids=lambda args: args[1],
)
def test_after_kill_9_of_the_whole_run_it_is_resumed_and_every_share_is_done_exactly_once(
    args: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    has_server = args[1] in ("ps", "asgd", "ssp")
    limits = ["--steps", str(STEPS), "--checkpoint-every", str(EVERY)]
    with training(run_dir, *args, *limits, participants=3 if has_server else 2) as run:
        root = run_dir / "checkpoints"
        until(lambda: newest_complete(root, 2) is not None, "a complete checkpoint")
        everybody = run.everybody()
        for pid in everybody:
            kill(pid)
        run.process.wait()
        until_gone(everybody)
    left = newest_complete(run_dir / "checkpoints", 2)
    assert left is not None
    assert 0 < sum(left.clocks) < 2 * STEPS
    done = paceline("train", "--resume", str(run_dir), "--json")
    assert done.code == 0, done.out
    history = read_history(run_dir / "events.jsonl")
    if has_server:
        applied = sorted(row.position for row in history.server if row.op == "apply")
        assert applied == list(range(2 * STEPS))
    positions = sorted(row.position for rows in history.steps.values() for row in rows)
    assert positions == list(range(2 * STEPS))
    assert done.data()["result"]["gradients"] == 2 * STEPS
    replayed = paceline("replay", str(run_dir))
    assert replayed.code == 0, replayed.out
