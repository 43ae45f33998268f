"""Why was something begun anew? One of a few words, so that it can be counted. Pure."""

import re

CHANGES = ("lost", "left", "joined", "resumed", "other")
RESTARTS = ("killed", "failed", "resumed", "other")
_REVOKED = re.compile(r"worker \S+ (left|was lost)")
# A launcher that sees a process end says for it that it leaves, and why; a worker that fails says so itself.
_NOT_ORDERLY = re.compile(r"left: (?:killed by signal|it ended with exit code|it failed)")


def of_change(why: str, *, is_new_session: bool, is_loss_noticed: bool = False) -> str:
    """Of a new generation, by what the coordinator says of it, and whether the launcher missed somebody."""
    if is_new_session:
        return "resumed"
    if (revoked := _REVOKED.search(why)) is not None:
        is_lost = revoked[1] == "was lost" or is_loss_noticed or _NOT_ORDERLY.search(why) is not None
        return "lost" if is_lost else "left"
    return "joined" if why.endswith(" joined") else "other"


def of_restart(why: str | None, *, is_new_session: bool) -> str:
    """Of a worker's new start, by what the launcher said when the one before ended."""
    if is_new_session:
        return "resumed"
    if why is None:
        return "other"  # it left, and somebody wanted it back
    return "killed" if why.startswith("killed by signal") else "failed"
