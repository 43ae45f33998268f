"""Into which folder does a run go? Never into one that already holds a run."""

import itertools
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


def choose_run_dir(said: str | None, name: str, base: Path, *, within: str | None = None) -> Path:
    """The folder that was named, or the first of runs/<name>, runs/<name>-2 … that holds no run.

    `within` takes the place of runs/.
    """
    if said is not None:
        return base / said
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for n in names if not holds_run(folder := base / (within or "runs") / n))
