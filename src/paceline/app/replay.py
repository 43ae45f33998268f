"""Does a recorded run lead to its recorded parameters when its schedule is executed again?"""

from collections.abc import Callable
from pathlib import Path

from paceline.errors import NotFinishedError, NotRepeatableError
from paceline.launchers.helper import json_lines
from paceline.plan.catalog import MODES
from paceline.plan.codec import Json, read
from paceline.plan.plan import Plan


def replay_run(run_dir: Path, on_progress: Callable[[int, int], None]) -> dict[str, Json]:
    """The verdict: equal, updates, gradients, state_sha256, parted. `on_progress(done, total)`."""
    plan = read(run_dir / "plan.json")
    if not (run_dir / "result.json").exists():
        raise NotFinishedError(
            f"{run_dir} has no result.json: the run did not finish, so there is nothing to compare with",
            f"finish it first:  paceline train --resume {run_dir}",
        )
    if plan.elastic is not None and plan.elastic.servers > 1:
        raise NotRepeatableError(
            f"{run_dir} had servers in {plan.elastic.servers} parts, each with an order of its own:"
            " which versions a gradient was computed on is not recorded",
            f"prove with `paceline verify {run_dir}` that each part applied each share once",
        )
    verdict: dict[str, Json] = {}
    for message in json_lines("paceline.worker.replay_main", [str(run_dir)]):
        if "update" in message:
            on_progress(int(str(message["update"])), _updates(plan))
        else:
            verdict = message
    return verdict


def _updates(plan: Plan) -> int:
    """How many a whole run has; of a mode of the user's own at most as many as gradients."""
    averages = plan.mode in MODES and not MODES[plan.mode].sums_updates
    return -(-plan.total_gradients // (plan.gradients_per_update if averages else 1))
