"""What must hold after every scenario: nothing lost, nothing twice, the bits of an undisturbed run."""

from pathlib import Path

from paceline.app.lab.expect import Expectation, exactly
from paceline.app.replay import replay_run
from paceline.app.verify import verify_run
from paceline.events.read import History


def proofs(run_dir: Path, history: History) -> list[Expectation]:
    found = [Expectation(f.what, "holds", f.seen, f.ok) for f in verify_run(run_dir)]
    verdict = replay_run(run_dir, lambda *_: None)
    parted = verdict["parted"] or "equal bit by bit"
    return [
        *found,
        Expectation(
            "the parameters are those of an undisturbed run (behind servers: of the recorded order)",
            "equal bit by bit",
            str(parted),
            bool(verdict["is_equal"]),
        ),
        exactly("processes left behind", _living(history), 0),
    ]


def _living(history: History) -> int:
    pids = [int(str(e.fields["pid"])) for e in history.plain if e.kind == "worker_started"]
    return sum("paceline" in _command(pid) for pid in pids)


def _command(pid: int) -> str:
    """Empty when there is no such process."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""
