"""The folder of a new run: never one that already holds a run, never one that another command has taken.

`choose_run_dir` says which folder it would be, for commands that only show a plan. `claim_run_dir`
takes it: a name of our own choice belongs to the process whose `mkdir` made the folder.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem, RunFolderError


def holds_run(folder: Path) -> bool:
    return (folder / "plan.json").exists()


def run_dir_problems(config: TrainConfig, base: Path) -> list[Problem]:
    """What is wrong with the folder that the user named, if they named one."""
    if config.run_dir is None:
        return []
    if config.save_dir is not None:
        what = f"run_dir names the folder {config.run_dir}, and save_dir one to make it in: {config.save_dir}"
        return [Problem(what, "keep one of them", config.origin("save_dir"), RunFolderError.code)]
    folder = base / config.run_dir
    what = hint = ""
    try:
        if folder.exists() and not folder.is_dir():
            what, hint = f"run_dir {folder} is a file, not a folder", "name a new folder, such as runs/my-run"
        elif holds_run(folder):
            what = f"run_dir {folder} already holds a run"
            hint = "name another folder, or leave run_dir out to get a new one under runs/"
    except OSError as error:
        what, hint = f"run_dir {folder} cannot be used: {error.strerror}", "name another folder"
    return [Problem(what, hint, config.origin("run_dir"), RunFolderError.code)] if what else []


def choose_run_dir(first: Path) -> Path:
    """The first of runs/<name>, runs/<name>-2 … that does not exist; `first` has no number."""
    return next(folder for folder in _numbered(first) if not folder.exists())


@contextmanager
def claimed(first: Path, *, is_named: bool) -> Iterator[Path]:
    """The claimed folder; where nothing came into it, the name is free again afterwards."""
    folder = claim_run_dir(first, is_named=is_named)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # refuses a folder that holds anything
        raise


def claim_run_dir(first: Path, *, is_named: bool) -> Path:
    """The folder, made: `first` if the user named it, otherwise the first number that is free."""
    if is_named and not holds_run(first):
        first.mkdir(parents=True, exist_ok=True)
        return first
    first.parent.mkdir(parents=True, exist_ok=True)
    for candidate in _numbered(first):
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("numbers do not end")


def runs_of(first: Path) -> list[Path]:
    """The folders of this name that hold a run, oldest number first."""
    numbers = (folder.name.removeprefix(f"{first.name}-") for folder in first.parent.glob(f"{first.name}-*"))
    later = sorted(int(number) for number in numbers if number.isdecimal())
    folders = [first, *(first.with_name(f"{first.name}-{number}") for number in later)]
    return [folder for folder in folders if holds_run(folder)]


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
