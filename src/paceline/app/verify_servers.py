"""Was every share applied exactly once, whichever server was primary, and was nothing lost that was answered?

Two witnesses: the servers' rows say what was applied, in one order; the
workers' rows say what they were answered for. Pure.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from paceline.app.findings import Finding
from paceline.events.read import History

_ENDS = ("apply", "discard")  # what may become of a gradient whose worker is answered


def verify_servers(history: History, hashes: object) -> list[Finding]:
    return [_applied(history), _answered(history), *_equal(hashes)]


def _applied(history: History) -> Finding:
    rows = [row for row in history.server if row.op == "apply"]
    versions = sorted({row.version for row in rows})
    gaps = sorted(set(range(1, len(versions) + 1)) - set(versions))
    in_order = [row.version for row in rows] == sorted(row.version for row in rows)
    twice = [position for position, count in Counter(row.position for row in rows).items() if count > 1]
    whole = max((row.position for row in rows), default=-1) + 1
    missing = whole - len({row.position for row in rows})
    promoted = sum(event.kind == "server_promoted" for event in history.plain)
    seen = f"{len(rows)} gradients, {len(twice)} double, {missing} missing before the last"
    seen += f", {promoted} promotions"
    if gaps or not in_order:
        seen += f"; versions are not one line ({len(gaps)} are missing)"
    ok = not twice and not missing and not gaps and in_order
    return Finding("each share of the work was applied exactly once, by one line of servers", ok, seen)


def _answered(history: History) -> Finding:
    """A worker that goes on to its next share was answered, so what it pushed before must be there."""
    applied = {(row.rank, row.position, row.read_version) for row in history.server if row.op in _ENDS}
    refused = {
        (_rank(event.who), int(str(event.fields["position"])), int(str(event.fields["version"])))
        for event in history.plain
        if event.kind == "push_refused"
    }
    started: dict[int, list[int]] = {}
    for event in history.plain:
        if event.kind == "worker_started" and event.who.startswith("worker-"):
            started.setdefault(_rank(event.who), []).append(event.at_ns)
    restored_ns = max((e.at_ns for e in history.plain if e.kind == "server_restored"), default=0)
    answered, lost = 0, []
    for rank, rows in history.steps.items():
        ordered = sorted((row for row in rows if row.start_ns > restored_ns), key=lambda row: row.start_ns)
        for row, later in pairwise(ordered):
            if any(row.start_ns < at_ns <= later.start_ns for at_ns in started.get(rank, [])):
                continue  # the process died: nobody knows whether it was answered
            share = (rank, row.position, row.version)
            if share not in refused:
                answered += 1
                if share not in applied:
                    lost.append(f"worker-{rank}: share {row.position} on version {row.version}")
    seen = f"{answered} answers" + (f", {len(lost)} for nothing: {'; '.join(lost[:3])}" if lost else "")
    if not history.rolled_back:
        return Finding("no update that a worker was answered for was lost", not lost, seen)
    updates = sum(back.updates for back in history.rolled_back)
    ranges = [f"{b.last_version} to {b.to_version}" for b in history.rolled_back]
    seen += f"; {updates} applied updates were lost when a server went back from version {', '.join(ranges)}"
    return Finding("every answered update was kept, or is counted as rolled back", not lost, seen)


def _equal(hashes: object) -> list[Finding]:
    if not isinstance(hashes, Mapping) or len(hashes) < 2:
        return []
    parts = {str(who).rpartition("-")[0] for who in hashes}  # of server-0-a: server-0
    distinct = len({(str(who).rpartition("-")[0], str(found)) for who, found in hashes.items()})
    seen = f"{len(hashes)} servers of {len(parts)} parts, {distinct} different hashes"
    return [Finding("primary and backup ended with the same bits", distinct == len(parts), seen)]


def _rank(who: str) -> int:
    return int(who.rpartition("-")[2])
