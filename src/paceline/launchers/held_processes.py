"""Participants that an operator stops for a limited time, registered by a file in the run's folder.

`.held-WHO` holds the number of the helper process that sends SIGSTOP and SIGCONT
(faults/actions/sigstop.py). A participant that is held must not be judged lost.
"""

from pathlib import Path

from paceline.core.processes import command_line


def is_held(run_dir: Path, participant: str) -> bool:
    """Whether an operator holds it stopped for a limited time."""
    holder = holder_of(run_dir, participant)
    return holder is not None and bool(command_line(holder))


def holder_of(run_dir: Path, participant: str) -> int | None:
    try:
        return int(holder_file(run_dir, participant).read_text())
    except (OSError, ValueError):
        return None


def holder_file(run_dir: Path, participant: str) -> Path:
    return run_dir / f".held-{participant}"
