"""What time is it in a run, for somebody who is not part of it? The calendar's, from where its session began.

Each session of a run (it may be resumed, on another machine or after a reboot) counts from another moment:
what is written now must count as what the session itself writes.
"""

import json
from pathlib import Path

from paceline.clock import monotonic_s, unix_now_s
from paceline.errors import NoSuchRunError
from paceline.events.segments import newest_session


class RunClock:
    """The run's own, by the calendar as it was once: this command may run on another machine than the run.

    From then on it counts by itself, so that a calendar that is set anew changes nothing.
    """

    def __init__(self, path: Path) -> None:
        try:
            anchor_ns, anchor_unix_s = _anchor(path)
        except (OSError, ValueError, KeyError) as error:
            raise NoSuchRunError(f"{path} is no event log", "name the folder of a run") from error
        self._opened_ns = anchor_ns + round((unix_now_s() - anchor_unix_s) * 1e9)
        self._opened_s = monotonic_s()

    def now_ns(self) -> int:
        return self._opened_ns + round((monotonic_s() - self._opened_s) * 1e9)

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nobody waits for this clock")


def _anchor(path: Path) -> tuple[int, float]:
    """A moment of the newest session by its own clock, and by the calendar."""
    session = newest_session(path)
    if session is not None:
        return session.at_ns, session.unix_s
    with path.open("rb") as file:
        header = json.loads(file.readline())
    return int(header["t0_ns"]), float(header["started_unix_s"])
