"""Which checkpoints may go? Those older than enough complete ones, and never the last that can be read.

Workers may be several checkpoints apart, so what counts is how many are
complete. Before anything is removed, one of those that stay is read and
checked: a disk that damages what it is given must not cost the last good one.
"""

import shutil
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED, facts_of, folders, number_of

KEPT = 3  # complete checkpoints that remain, unless the plan says otherwise


def is_complete(folder: Path, participants: int) -> bool:
    """By names alone; whether they verify is another question."""
    return len(list(folder.glob("*.json"))) >= participants


def remove_old(root: Path, *, participants: int, keep: int = KEPT) -> list[int]:
    """The numbers of those that were removed."""
    found = folders(root)
    complete = [folder for folder in found if is_complete(folder, participants)]
    if len(complete) < keep:
        return []
    old = [folder for folder in found if number_of(folder) < number_of(complete[-keep])]
    if not old or not any(_verifies(folder) for folder in reversed(complete[-keep:])):
        return []
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)  # another participant may be removing it too
    return [number_of(folder) for folder in old]


def set_aside(root: Path, *, after: int) -> list[str]:
    """Take checkpoints behind number `after` out of the way; their names.

    A run that goes on from an older one writes these numbers anew, and in modes whose order is up to
    chance its snapshots must not meet those of a history that never happened.
    """
    newer = [folder for folder in folders(root) if number_of(folder) > after]
    for folder in newer:
        aside = folder.with_name(f"set-aside-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return [folder.name for folder in newer]


def _verifies(folder: Path) -> bool:
    try:
        for path in folder.glob("*.json"):
            facts_of(folder, path.stem)
    except DAMAGED:
        return False
    return True
