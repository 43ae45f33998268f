"""How does somebody get quiet? By a line in the run's log that says until when: a replay knows it too."""

import json
from pathlib import Path

from paceline.clock import unix_now_s
from paceline.errors import PacelineError
from paceline.events.log import EventLog


class _RunClock:
    """The run's own, by the calendar: this command may run on another machine than the run."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8") as file:
                header = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise PacelineError(f"{path} is no event log", "name the folder of a run") from error
        self._t0_ns, self._started_unix_s = int(header["t0_ns"]), float(header["started_unix_s"])

    def now_ns(self) -> int:
        return self._t0_ns + round((unix_now_s() - self._started_unix_s) * 1e9)

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nobody waits for this clock")


def silence(
    run_dir: Path, *, for_s: float, rule: str = "", worker: str = "", by: str = "operator", comment: str = ""
) -> None:
    """Alerts of this rule and worker (empty: any) are shown and not told for so long."""
    path = run_dir / "events.jsonl"
    clock = _RunClock(path)
    log = EventLog(path, who="operator", clock=clock)
    try:
        until_ns = clock.now_ns() + round(for_s * 1e9)
        log.write("alert_silenced", rule=rule, worker=worker, until_ns=until_ns, by=by, comment=comment)
    finally:
        log.close()
