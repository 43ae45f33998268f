"""What went wrong and was begun anew? Workers that were started again, and steps made in vain. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from paceline.watch.causes import of_restart
from paceline.watch.worker_track import WorkerTrack


@dataclass(slots=True)
class Setbacks:
    restarts: Counter[str] = field(default_factory=Counter)  # by cause
    lost_steps: int = 0  # that were made, and did not count, as the run went back
    _sessions: int = 0
    _version: int = 0  # the newest of a server's

    def begin_session(self) -> None:
        self._sessions += 1

    def started(self, worker: WorkerTrack) -> None:
        if worker.starts:
            is_new = worker.started_session != self._sessions
            self.restarts[of_restart(worker.lost_because, is_new_session=is_new)] += 1
        worker.starts += 1
        worker.started_session, worker.lost_because = self._sessions, None

    def went_back(self, from_step: int, to_step: int) -> None:
        self.lost_steps += max(0, from_step - to_step)

    def applied(self, version: int) -> None:
        self._version = max(self._version, version)

    def restored(self, version: int) -> None:
        self.went_back(self._version, version)
        self._version = version
