"""Which parts has the exercise? Eight, in this order; their text is in docs/learn."""

from paceline.learn.parts.alert import ALERT
from paceline.learn.parts.four_workers import FOUR_WORKERS
from paceline.learn.parts.killed_leader import KILLED_LEADER
from paceline.learn.parts.killed_worker import KILLED_WORKER
from paceline.learn.parts.one_worker import ONE_WORKER
from paceline.learn.parts.report import REPORT
from paceline.learn.parts.staleness import STALENESS
from paceline.learn.parts.straggler import STRAGGLER

PARTS = (
    ONE_WORKER,
    FOUR_WORKERS,
    STRAGGLER,
    STALENESS,
    KILLED_WORKER,
    KILLED_LEADER,
    ALERT,
    REPORT,
)
