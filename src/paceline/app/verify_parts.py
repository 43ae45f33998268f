"""Did every part of the parameters apply every share exactly once? Pure."""

from collections import Counter

from paceline.app.findings import Finding
from paceline.events.read import History


def verify_parts(history: History, parts: int) -> list[Finding]:
    return [_applied(history, part) for part in range(1, parts)]


def _applied(history: History, part: int) -> Finding:
    """What part 0 has, this one has: a push counts when all parts have it, and part 0 is the last."""
    rows = [row for row in history.parts if row.part == part]
    counts = Counter(row.position for row in rows)
    twice = [position for position, count in counts.items() if count > 1]
    counted = {row.position for row in history.server if row.op == "apply"}
    missing, ahead = counted - counts.keys(), counts.keys() - counted
    is_one_line = [row.version for row in rows] == list(range(1, len(rows) + 1))
    seen = f"{len(rows)} gradients, {len(twice)} double, {len(missing)} missing, {len(ahead)} ahead of part 0"
    if not is_one_line:
        seen += "; versions are not one line"
    ok = not twice and not missing and is_one_line and (not ahead or not _is_over(history))
    return Finding(f"part {part} applied each share that part 0 counted exactly once", ok, seen)


def _is_over(history: History) -> bool:
    """Did the run end by itself? Else a share may be on its way."""
    ends = [event for event in history.plain if event.kind in ("run_started", "run_finished")]
    return bool(ends) and ends[-1].fields.get("outcome") in ("finished", "stopped")
