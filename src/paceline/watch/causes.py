"""Why was something begun anew? One of a few words, so that it can be counted. Pure."""

import re

CHANGES = ("lost", "left", "joined", "resumed", "other")
RESTARTS = ("killed", "failed", "resumed", "other")
_REVOKED = re.compile(r"worker \S+ (left|was lost)")


def of_change(why: str, *, is_new_session: bool) -> str:
    """Of a new generation, by what the coordinator says about it."""
    if is_new_session:
        return "resumed"
    if (revoked := _REVOKED.search(why)) is not None:
        return "lost" if revoked[1] == "was lost" else "left"
    return "joined" if why.endswith(" joined") else "other"


def of_restart(why: str | None, *, is_new_session: bool) -> str:
    """Of a worker's new start, by what the launcher said when the one before ended."""
    if is_new_session:
        return "resumed"
    if why is None:
        return "other"  # it left, and somebody wanted it back
    return "killed" if why.startswith("killed by signal") else "failed"
