"""With which run does a process go on that was started again? With its own, if it left one.

After a restart by torchrun that is the run which the same torchrun started; with `--resume auto` the
newest run of this name. Either must have been made by the same plan.
"""

from pathlib import Path

from paceline.cli.request import Request
from paceline.cli.run_dirs import runs_of
from paceline.config.world import World
from paceline.errors import Problem, RunFolderError
from paceline.launchers.torchrun import Starter
from paceline.plan.codec import plan_hash, read


def former_run(request: Request, world: World) -> Path | None:
    """Its folder; None when there is none. ConfigError when it is there and another plan made it."""
    if request.is_named:
        found = [folder for folder in runs_of(request.first_dir) if folder == request.first_dir]
    else:
        found = runs_of(request.first_dir)
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
