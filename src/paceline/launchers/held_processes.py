"""Participants that an operator stops for a limited time, registered by a file in the run's folder.

`.held-WHO` holds the number of the helper process that sends SIGSTOP and SIGCONT
(faults/actions/sigstop.py). A participant that is held must not be judged lost.
"""

from pathlib import Path

from paceline.core.processes import command_line


def is_held(run_dir: Path, who: str) -> bool:
    """Whether an operator holds it on purpose, for a time that is over by itself."""
    holder = holder_of(run_dir, who)
    return holder is not None and bool(command_line(holder))


def holder_of(run_dir: Path, who: str) -> int | None:
    try:
        return int(holder_file(run_dir, who).read_text())
    except (OSError, ValueError):
        return None


def holder_file(run_dir: Path, who: str) -> Path:
    return run_dir / f".held-{who}"
