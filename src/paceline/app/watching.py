"""Which run is looked at, and how does it look now?"""

from pathlib import Path

from paceline.errors import NoSuchRunError
from paceline.plan.codec import Json
from paceline.watch.deserted import is_deserted
from paceline.watch.feed import Aim, Feed
from paceline.watch.rules import Rules


def find_run(folder: Path, said: Path | None) -> Path:
    """The run that was named, else the one under `runs/` whose log was written last."""
    if said is not None:
        run_dir = folder / said
        if not (run_dir / "plan.json").exists():
            there = [log.parent.relative_to(folder) for log in _logs(folder)]
            hint = f"name one, such as {there[-1] if there else 'runs/xor-ssgd'}"
            raise NoSuchRunError(f"{said} is no run's folder: it has no plan.json", hint)
        return run_dir
    logs = _logs(folder)
    if not logs:
        raise NoSuchRunError(
            "there is no run under runs/", "name a run's folder, or begin one: paceline train"
        )
    return logs[-1].parent


def _logs(folder: Path) -> list[Path]:
    """Of the runs under `runs/`, the newest last."""
    return sorted((folder / "runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)


def look(run_dir: Path, rules: Rules | None = None) -> dict[str, Json]:
    """One snapshot of it, now, and whether anybody is left of it; by these rules, else by its own."""
    feed = Feed(run_dir, rules=rules, aim=Aim.SNAPSHOT)
    feed.read()
    if feed.view.seq == 0:
        raise NoSuchRunError(f"{run_dir} has no event log yet", "wait until the run has begun")
    is_left = is_deserted(feed.view.track)
    if is_left:
        feed.read()  # it may have ended in good order between our two looks
    snapshot = feed.view.snapshot(feed.now_ns())
    return {**snapshot, "is_deserted": is_left and not feed.view.track.is_over}
