"""After the loss of all workers, damaged checkpoints are skipped for the newest readable one."""

import signal
from contextlib import suppress
from pathlib import Path

from tests.fixtures.processes.command import Running, assert_nothing_was_lost, training
from tests.fixtures.runs.elastic_runs import events, pid_of, stop
from tests.fixtures.waiting import kill

from paceline.checkpoints.catalog import DAMAGED, folders, number_of, read_shared

ELASTIC = ["--task", "digits", "--batch-size", "8", "--num-workers", "2", "--shards", "4", "--pace", "10ms"]


def complete_checkpoints(root: Path) -> list[Path]:
    """Those that can be read, oldest first."""
    results = []
    for folder in folders(root):
        with suppress(*DAMAGED):  # it is being written, or removed
            results.append(read_shared(folder, 4).folder)
    return results


def begun_at(run: Running) -> set[int]:
    """After how many steps generations began."""
    return {int(str(event.fields["committed"])) for event in events(run, "generation_entered")}


def test_replacements_of_all_pass_over_what_is_damaged_and_reach_the_same_bits(tmp_path: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "run" / "checkpoints"
    with training(run_dir, *ELASTIC, "--checkpoint-every", "20", participants=2) as run:
        run.until(lambda: len(complete_checkpoints(root)) >= 3, "three checkpoints")
        workers = [pid_of(run, "worker-0"), pid_of(run, "worker-1")]
        for pid in workers:  # no worker writes while the test damages files
            kill(pid, signal.SIGSTOP)
        oldest, *newer = complete_checkpoints(root)
        for folder in newer:
            path = folder / "worker-0.safetensors"
            path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        at = number_of(oldest) // 4
        for pid in workers:
            kill(pid)
        run.until(lambda: at in begun_at(run), "the replacements go on from the oldest")
        beyond = number_of(newer[-1])
        run.until(
            lambda: number_of(complete_checkpoints(root)[-1]) > beyond,
            "the damaged checkpoint is written again",
        )
        result = stop(run)
    assert all(folder.name in result.err for folder in newer)
    assert_nothing_was_lost(run_dir)
