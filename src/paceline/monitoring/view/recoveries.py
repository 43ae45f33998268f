"""Recoveries of an elastic run: its generations, the cost of each change, and restarts by cause.

The time from the last step before a loss to the first step after it is split at the moments that
the log records: `detect` ends when the loss is noticed (an upper bound: a killed worker does not
log when it was killed), `stop` when the last survivor has left the old generation, `reform` when
the first has entered the new one, `restore` when the last has, with its state, and `resume` with
the first step finished there. Pure.
"""

import math
import re
from collections import Counter, deque
from dataclasses import dataclass, field

from paceline.events.schema import EXITED, FAILED, KILLED
from paceline.monitoring.metrics.statistics import quantile
from paceline.monitoring.view.worker_track import WorkerTrack
from paceline.plan.codec import Json

CHANGE_CAUSES = ("lost", "left", "joined", "resumed", "other")
RESTART_CAUSES = ("killed", "failed", "resumed", "other")
_REVOKED = re.compile(r"worker \S+ (left|was lost)")
# The launcher reports a process that ended as leaving, with the reason; a failing worker reports itself.
_NOT_ORDERLY = re.compile(rf"left: (?:{KILLED}|{EXITED}|{FAILED})")


def cause_of_change(why: str, *, is_new_session: bool, is_loss_noticed: bool = False) -> str:
    """Cause of a new generation, by the coordinator's reason, and whether the launcher noticed a loss."""
    if is_new_session:
        return "resumed"
    if (revoked := _REVOKED.search(why)) is not None:
        is_lost = revoked[1] == "was lost" or is_loss_noticed or _NOT_ORDERLY.search(why) is not None
        return "lost" if is_lost else "left"
    return "joined" if why.endswith(" joined") else "other"


def cause_of_restart(why: str | None, *, is_new_session: bool) -> str:
    """Cause of a worker's restart, by the launcher's reason for the previous end."""
    if is_new_session:
        return "resumed"
    if why is None:
        return "other"  # it left, and was started again on request
    return "killed" if why.startswith(KILLED) else "failed"


STAGES = ("detect", "stop", "reform", "restore", "resume")
ENDS_KEPT = 4_096
RECENT_S = 3600.0


@dataclass(slots=True)
class Change:
    """Change from one generation to the next."""

    last_step_s: float
    noticed_s: float
    left_s: float
    entered_s: float | None = None
    all_entered_s: float | None = None
    resumed_s: float | None = None

    def split(self) -> dict[str, float] | None:
        if self.entered_s is None or self.all_entered_s is None or self.resumed_s is None:
            return None
        # One worker may have entered before another had left: no stage is negative.
        moments = [self.last_step_s]
        for moment in (self.noticed_s, self.left_s, self.entered_s, self.all_entered_s, self.resumed_s):
            moments.append(max(moments[-1], moment))
        stages = zip(STAGES, moments, moments[1:], strict=False)
        return {f"{stage}_s": after - before for stage, before, after in stages}


@dataclass(slots=True)
class Generation:
    number: int
    at_s: float
    workers: list[str]
    why: str
    committed: int
    change: Change | None = None
    cause: str = "other"

    @property
    def recovery_s(self) -> float | None:
        split = None if self.change is None else self.change.split()
        return None if split is None else math.fsum(split.values())

    def to_dict(self) -> dict[str, Json]:
        split = None if self.change is None else self.change.split()
        recovery: dict[str, Json] | None = None
        if split is not None:
            recovery = {**split, "total_s": math.fsum(split.values())}
        return {
            "number": self.number,
            "at_s": self.at_s,
            "workers": list(self.workers),
            "why": self.why,
            "committed": self.committed,
            "recovery": recovery,
        }


@dataclass(slots=True)
class Generations:
    all: list[Generation] = field(default_factory=list)
    _ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=ENDS_KEPT))  # of finished steps
    _change: Change | None = None
    _noticed_s: float | None = None
    _is_new_session: bool = False
    _left_with: int = 0  # the largest number of committed steps when the generation ended
    lost_steps: int = 0  # committed by a worker, and missing in the next generation

    @property
    def newest(self) -> Generation | None:
        return self.all[-1] if self.all else None

    def recovery_p95_s(self, now_s: float) -> float | None:
        """Over the recoveries of the last hour."""
        recent = [g.recovery_s for g in self.all if now_s - g.at_s <= RECENT_S]
        return quantile([took_s for took_s in recent if took_s is not None], 0.95)

    def begin_session(self) -> None:
        """A resumed run counts its generations from 1 again, and the pause is not a recovery."""
        self._is_new_session = bool(self.all)
        self._change = None
        self._noticed_s = None
        self._left_with = 0

    def lost_noticed(self, at_s: float) -> None:
        """The launcher noticed a lost worker; the generation has ended, or will."""
        if self._noticed_s is None:
            self._noticed_s = at_s

    def lost(self, at_s: float, committed: int = 0) -> None:
        """`committed`: the steps of the worker that leaves the generation."""
        self._left_with = max(self._left_with, committed)
        if self._change is None or self._change.entered_s is not None:
            noticed_s = at_s if self._noticed_s is None else min(self._noticed_s, at_s)
            before = [end for end in self._ends_s if end <= noticed_s]
            self._change = Change(max(before, default=noticed_s), noticed_s, at_s)
        self._change.left_s = max(self._change.left_s, at_s)

    def entered(self, at_s: float, number: int, workers: list[str], why: str, committed: int) -> None:
        if self.newest is None or number > self.newest.number or self._is_new_session:
            is_noticed = self._noticed_s is not None
            cause = cause_of_change(why, is_new_session=self._is_new_session, is_loss_noticed=is_noticed)
            self._is_new_session = False
            self.all.append(Generation(number, at_s, workers, why, committed, self._change, cause))
            self.lost_steps += max(0, self._left_with - committed)
            self._left_with = 0
            self._noticed_s = None
        change = self.all[-1].change
        if change is not None and number == self.all[-1].number:
            change.entered_s = at_s if change.entered_s is None else min(change.entered_s, at_s)
            change.all_entered_s = max(change.all_entered_s or at_s, at_s)

    def step_ended(self, start_s: float, end_s: float) -> None:
        self._ends_s.append(end_s)
        change = self.all[-1].change if self.all else None
        if change is not None and change.entered_s is not None and start_s >= change.entered_s:
            change.resumed_s = end_s if change.resumed_s is None else min(change.resumed_s, end_s)


@dataclass(slots=True)
class Restarts:
    restarts: Counter[str] = field(default_factory=Counter)  # by cause
    lost_steps: int = 0  # computed, but discarded when the run went back
    _sessions: int = 0
    _version: int = 0  # newest of the servers

    def begin_session(self) -> None:
        self._sessions += 1

    def started(self, worker: WorkerTrack) -> None:
        if worker.starts:
            is_new = worker.started_session != self._sessions
            self.restarts[cause_of_restart(worker.lost_because, is_new_session=is_new)] += 1
        worker.starts += 1
        worker.started_session = self._sessions
        worker.lost_because = None

    def went_back(self, from_step: int, to_step: int) -> None:
        self.lost_steps += max(0, from_step - to_step)

    def applied(self, version: int) -> None:
        self._version = max(self._version, version)

    def restored(self, version: int) -> None:
        self.went_back(self._version, version)
        self._version = version
