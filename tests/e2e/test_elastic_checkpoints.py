"""When all workers die at once and the newest checkpoints are damaged, is the one before them used?"""

import signal
from pathlib import Path

from tests.fixtures.command import paceline, training
from tests.fixtures.waiting import kill, until

from paceline.checkpoints.catalog import folders, newest_shared
from paceline.events.read import read_history

ELASTIC = ["--task", "digits", "--batch-size", "8", "--num-workers", "2", "--shards", "4", "--pace", "10ms"]


def test_replacements_of_all_pass_over_what_is_damaged_and_reach_the_same_bits(tmp_path: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "run" / "checkpoints"
    settings = [*ELASTIC, "--steps", "300", "--checkpoint-every", "20"]
    with training(run_dir, *settings, participants=2) as run:
        until(lambda: len(folders(root)) >= 3 and newest_shared(root, 4) is not None, "three checkpoints")
        workers = run.children()
        for pid in workers:  # nobody writes while we damage
            kill(pid, signal.SIGSTOP)
        oldest, *newer = folders(root)
        for folder in newer:
            path = folder / "worker-0.safetensors"
            if path.exists():
                path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        for pid in workers:
            kill(pid)
        done = run.end(within_s=120)
        assert done.code == 0, done.err
    assert "is damaged, the one before it is used" in done.err
    entered = [
        e.fields for e in read_history(run_dir / "events.jsonl").plain if e.kind == "generation_entered"
    ]
    at = int(oldest.name.removeprefix("at-")) // 4
    assert at in {int(str(fields["committed"])) for fields in entered}
    for command in ("verify", "replay"):
        proved = paceline(command, str(run_dir))
        assert proved.code == 0, proved.out
