"""How does somebody get quiet? By a line in the run's log that says until when: a replay knows it too."""

from pathlib import Path

from paceline.events.log import EventLog
from paceline.watch.run_clock import RunClock


def silence(
    run_dir: Path, *, for_s: float, rule: str = "", worker: str = "", by: str = "operator", comment: str = ""
) -> None:
    """Alerts of this rule and worker (empty: any) are shown and not told for so long."""
    path = run_dir / "events.jsonl"
    clock = RunClock(path)
    log = EventLog(path, who="operator", clock=clock)
    try:
        until_ns = clock.now_ns() + round(for_s * 1e9)
        log.write("alert_silenced", rule=rule, worker=worker, until_ns=until_ns, by=by, comment=comment)
    finally:
        log.close()
