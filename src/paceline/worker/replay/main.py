"""`python -m paceline.worker.replay.main RUN`: replays a run folder, prints JSON lines.

The command `paceline replay` runs this in a process of its own, because torch
is imported here and never in the command.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from paceline.core.errors import DamagedRecordError, PacelineError
from paceline.core.processes import die_with_parent
from paceline.events.read import read_history
from paceline.plan.codec import read
from paceline.worker.replay.peers import Verdict
from paceline.worker.replay.schedule import replay

REPORT_EVERY = 100


def main() -> None:
    die_with_parent()
    try:
        verdict = _replay(Path(sys.argv[1]))
    except PacelineError as error:
        print(json.dumps({"error": error.to_dicts()}), flush=True)
        return
    print(json.dumps(asdict(verdict)), flush=True)


def _replay(run_dir: Path) -> Verdict:
    plan = read(run_dir / "plan.json")
    log = run_dir / "events.jsonl"
    history = read_history(log)
    if history.torn.count:
        skipped = f"{history.torn.describe()} unreadable, skipped"
        print(f"warning: {log}: {skipped}", file=sys.stderr, flush=True)
    path = run_dir / "result.json"
    try:
        hashes = json.loads(path.read_bytes())["state_sha256"]
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedRecordError(f"{path} cannot be read: {error}", "restore it from a backup") from error

    def show_progress(version: int) -> None:
        if version % REPORT_EVERY == 0:
            print(json.dumps({"update": version}), flush=True)

    # The server's state is the run's; without a server it is rank 0's. Both sort first.
    return replay(plan, history, str(hashes[min(hashes)]), on_update=show_progress)


if __name__ == "__main__":
    main()
