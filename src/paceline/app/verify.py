"""Proof from a run's folder that nothing was lost and nothing done twice; nothing is run again.

Every mode: plan, log and result belong together (verify_work.py), each share of the work is in the rows
exactly once, with its samples, and result.json says what the rows add up to. Then what only some modes
have: generations that follow each other, one line of servers, equal replicas, hashes of checkpoints.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from paceline.app.findings import Finding
from paceline.app.verify_parts import verify_parts
from paceline.app.verify_servers import verify_servers
from paceline.app.verify_split import steps_taken_back, verify_split
from paceline.app.verify_work import outcome_of, verify_record, verify_result, verify_shares
from paceline.checkpoints.catalog import facts_of
from paceline.errors import DamagedRecordError, NothingRecordedError
from paceline.events.lineage import lineage_of
from paceline.events.read import History, read_history
from paceline.events.ways import ways_of
from paceline.plan.catalog import is_split, server_names
from paceline.plan.codec import Json, read, recorded_hash
from paceline.plan.plan import EventDetail, Plan
from paceline.plan.rounds import is_whole


def verify_run(run_dir: Path) -> list[Finding]:
    plan = read(run_dir / "plan.json")
    if plan.events is EventDetail.OFF:
        raise NothingRecordedError(
            f"{run_dir} recorded no events, so its log proves nothing",
            "make the run with --events full (the default)",
        )
    history = read_history(run_dir / "events.jsonl")
    result = _result(run_dir)
    record = verify_record(recorded_hash(run_dir / "plan.json"), history, result)
    work = [*verify_shares(plan, history), *verify_result(plan, history, result)]
    if server_names(plan):
        parts = 1 if plan.elastic is None else plan.elastic.servers
        findings = [*verify_servers(history, result.get("state_sha256")), *verify_parts(history, parts)]
        return [record, *_lines(history), *work, *findings, _checkpoints(run_dir)]
    is_elastic = plan.elastic is not None
    findings = [_elastic(plan, history)] if is_elastic else []
    if is_split(plan.mode) and not is_elastic:
        findings.append(verify_split(plan, history, is_done=outcome_of(history) == "finished"))
    hashes = result.get("state_sha256")
    if (
        isinstance(hashes, dict)
        and hashes
        and (is_elastic or all(rows[-1].synced for rows in history.steps.values() if rows))
    ):
        distinct = len(set(map(str, hashes.values())))
        findings.append(
            Finding(
                "all replicas ended with the same bits",
                distinct == 1,
                f"{len(hashes)} replicas, {distinct} distinct hash{'' if distinct == 1 else 'es'}",
            )
        )
    return [record, *_lines(history), *work, *findings, _checkpoints(run_dir)]


def _lines(history: History) -> list[Finding]:
    """Nothing where every line was read. A line that was cut short and written again is no loss."""
    if not history.torn.count:
        return []
    told = [event.fields for event in history.plain if event.kind == "record_interrupted"]
    written_again = sum(int(str(fields["fragments"])) for fields in told)
    missing = sum(int(str(fields["dropped"])) for fields in told)
    seen = f"{history.torn.in_words()} cannot be read; {written_again} written again, {missing} missing"
    ok = history.torn.count <= written_again and missing == 0
    return [Finding("every line of the event log was read", ok, seen)]


def _steps(plan: Plan, history: History) -> int:
    """How many whole steps, or rounds of fedavg, were committed by whoever got furthest."""
    if plan.mode == "fedavg":
        return 1 + max((r.version for rows in history.steps.values() for r in rows if r.synced), default=-1)
    first, since_ns = steps_taken_back(history) if is_split(plan.mode) else (0, 0)
    rows = (row for rows in history.steps.values() for row in rows if row.synced)
    done = (row.position // plan.num_workers for row in rows if row.start_ns >= since_ns)
    return 1 + max(done, default=first - 1)


def _elastic(plan: Plan, history: History) -> Finding:
    steps = _steps(plan, history)
    resumed = [e for e in history.plain if e.kind == "run_resumed"]
    since = history.plain.index(resumed[-1]) if resumed else 0
    first = int(str(resumed[-1].fields["version"])) if resumed else 0
    lineage = lineage_of(history.plain[since:], steps=steps, first=first, is_whole=_wholes(plan, history))
    made = sum(stretch.end - stretch.first for stretch in lineage.stretches)
    unit = "rounds" if plan.mode == "fedavg" else "steps"
    what = f"each of {steps} {unit}, and so each sample, was committed exactly once"
    seen = f"{made} {unit} in {len(lineage.stretches)} generations"
    if lineage.problems:
        seen += ": " + "; ".join(lineage.problems)
    return Finding(what, not lineage.problems and made == steps - first, seen)


def _wholes(plan: Plan, history: History) -> Callable[[int], bool]:
    """Where something can have been committed: as planned, or as it was decided meanwhile."""
    if plan.mode != "adaptive":
        return partial(is_whole, plan)
    ways = ways_of(history.plain, _steps(plan, history))
    return partial(ways.is_whole, every=plan.strategy.sync_every, total=plan.steps)


def _checkpoints(run_dir: Path) -> Finding:
    good, bad = 0, []
    for path in sorted((run_dir / "checkpoints").glob("at-*/*.json")):
        try:
            facts_of(path.parent, path.stem)
            good += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            bad.append(f"{path.parent.name}/{path.stem}: {error}")
    seen = f"{good} verify" + (f", {len(bad)} do not: {'; '.join(bad)}" if bad else "")
    return Finding("every checkpoint has the hash that it says", not bad, seen)


def _result(run_dir: Path) -> dict[str, Json]:
    path = run_dir / "result.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedRecordError(f"{path} cannot be read: {error}", "bring it back from a copy") from error
    return found if isinstance(found, dict) else {}


def to_rows(findings: list[Finding]) -> list[Json]:
    return [dict(asdict(finding)) for finding in findings]
