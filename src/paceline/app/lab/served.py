"""Is a run behind parameter servers whole, how far is it, and who is primary? From its event log."""

from paceline.app.lab.training import events_of
from paceline.events.read import History

_PRIMARIES = ("server_started", "server_promoted")


def primary(history: History) -> str:
    """Whoever became it last."""
    return [event.who for event in history.plain if event.kind in _PRIMARIES][-1]


def backup(history: History) -> str:
    """Whoever was placed last."""
    return str(events_of(history, "backup_placed")[-1].fields["backup"])


def is_guarded(history: History) -> bool:
    """Is there a primary, and a backup that has its state and has not been replaced since?"""
    newest = [event for event in history.plain if event.kind in (*_PRIMARIES, "backup_placed")]
    if not newest or newest[-1].kind != "backup_placed":
        return False
    started = [e.at_ns for e in events_of(history, "worker_started") if e.who == backup(history)]
    return started[-1] < newest[-1].at_ns


def updates(history: History) -> int:
    """How many were applied and written down."""
    return max((row.version for row in history.server), default=0)


def applied_ns(history: History) -> list[int]:
    """When updates were applied, in order."""
    return sorted(row.at_ns for row in history.server if row.op == "apply")
