"""With which run does a process go on that was started again? With its own, if it left one.

After a restart by torchrun that is the run which the same torchrun started; with `--resume auto` the
newest run of this name. Either must have been made by the same plan.
"""

import itertools
from pathlib import Path

from paceline.cli.request import Request
from paceline.cli.run_dirs import holds_run
from paceline.config.world import World
from paceline.errors import Problem, RunFolderError
from paceline.launchers.torchrun import Starter
from paceline.plan.codec import plan_hash, read


def former_run(request: Request, world: World) -> Path | None:
    """Its folder; None when there is none. ConfigError when it is there and another plan made it."""
    if request.is_named:
        found = [request.run_dir] if holds_run(request.run_dir) else []
    else:
        found = _of_this_name(request.run_dir.parent, request.plan.run)
    if world.restarts > 0:
        me = Starter.of(world)
        found = [folder for folder in found if me.is_same(Starter.read(folder))]
    if not found:
        return None
    newest = found[-1]
    if plan_hash(read(newest / "plan.json")) != plan_hash(request.plan):
        what = f"{newest} was made by another plan, so this run cannot go on with it"
        hint = f"name another folder by --run-dir, or go on with that plan:  --resume {newest}"
        raise RunFolderError([Problem(what, hint)])
    return newest


def unused(folder: Path) -> Path:
    """The folder, or one beside it that holds no run."""
    names = itertools.chain([folder.name], (f"{folder.name}-{number}" for number in itertools.count(2)))
    return next(found for name in names if not holds_run(found := folder.with_name(name)))


def _of_this_name(runs: Path, name: str) -> list[Path]:
    """The folders that choose_run_dir has given to runs of this name, oldest first."""
    numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return list(itertools.takewhile(holds_run, (runs / n for n in numbered)))
