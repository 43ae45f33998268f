"""Proof from a run's folder that nothing was lost and nothing done twice; nothing is run again.

Every mode: plan, log and result belong together (verify_work.py), each share of the work is in the rows
exactly once, with its samples, and result.json has the totals of the rows. Then what only some modes
have: generations that follow each other, one line of servers, equal replicas, hashes of checkpoints.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

from paceline.checkpoints.catalog import facts_of
from paceline.core.errors import (
    DamagedRecordError,
    NotFinishedError,
    NothingRecordedError,
)
from paceline.events.lineage import committed_at_end, lineage_of, policies_of
from paceline.events.read import History, read_history
from paceline.launchers.json_subprocess import json_lines
from paceline.plan.catalog import MODES, is_split, server_names
from paceline.plan.codec import Json, read, recorded_hash
from paceline.plan.plan import EventDetail, Plan
from paceline.plan.schedule import is_whole
from paceline.training.verify_work import Finding, outcome_of, verify_record, verify_result, verify_shares

# Servers are verified by two independent records: the servers' rows give what was applied, in one order; the
# workers' rows give the pushes that were acknowledged. Pure.

_ENDS = ("apply", "discard")  # possible outcomes of an answered gradient


def verify_servers(history: History, hashes: object) -> list[Finding]:
    return [_verify_applied(history), _verify_answered(history), *_verify_equal(hashes)]


def _verify_applied(history: History) -> Finding:
    rows = [row for row in history.server if row.op == "apply"]
    versions = sorted({row.version for row in rows})
    gaps = sorted(set(range(1, len(versions) + 1)) - set(versions))
    in_order = [row.version for row in rows] == sorted(row.version for row in rows)
    twice = [position for position, count in Counter(row.position for row in rows).items() if count > 1]
    whole = max((row.position for row in rows), default=-1) + 1
    missing = whole - len({row.position for row in rows})
    promoted = sum(event.kind == "server_promoted" for event in history.plain)
    seen = f"{len(rows)} gradients, {len(twice)} duplicated, {missing} missing before the last"
    seen += f", {promoted} promotions"
    if gaps or not in_order:
        seen += f"; the versions are not one increasing sequence ({len(gaps)} missing)"
    ok = not twice and not missing and not gaps and in_order
    return Finding("each work unit was applied exactly once, by one succession of servers", ok, seen)


def _verify_answered(history: History) -> Finding:
    """A worker starts its next share only after a reply, so its previous push must have been applied."""
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
    answered = 0
    lost = []
    for rank, rows in history.steps.items():
        ordered = sorted((row for row in rows if row.start_ns > restored_ns), key=lambda row: row.start_ns)
        for row, later in pairwise(ordered):
            if any(row.start_ns < at_ns <= later.start_ns for at_ns in started.get(rank, [])):
                continue  # the process died: the reply may never have arrived
            share = (rank, row.position, row.version)
            if share not in refused:
                answered += 1
                if share not in applied:
                    lost.append(f"worker-{rank}: work unit {row.position} on version {row.version}")
    seen = f"{answered} acknowledged updates" + (
        f", {len(lost)} of them not applied: {'; '.join(lost[:3])}" if lost else ""
    )
    if not history.rolled_back:
        return Finding("no acknowledged update was lost", not lost, seen)
    updates = sum(back.updates for back in history.rolled_back)
    ranges = [f"{b.last_version} to {b.to_version}" for b in history.rolled_back]
    seen += (
        f"; {updates} applied updates were rolled back when a server was restored, from version "
        f"{', '.join(ranges)}"
    )
    return Finding("every acknowledged update was kept, or is counted as rolled back", not lost, seen)


def _verify_equal(hashes: object) -> list[Finding]:
    if not isinstance(hashes, Mapping) or len(hashes) < 2:
        return []
    distinct = len(set(map(str, hashes.values())))
    seen = f"{len(hashes)} servers, {distinct} distinct hash{'' if distinct == 1 else 'es'}"
    return [Finding("primary and backup are bitwise equal", distinct == 1, seen)]


def _rank(participant: str) -> int:
    return int(participant.rpartition("-")[2])


def verify_split(plan: Plan, history: History, *, is_done: bool) -> Finding:
    """Verify the work of modes that split one model over the workers.

    Their number may change with a resume, so the samples of a step count, not which worker took them.
    """
    samples: Counter[int] = Counter()
    rows: Counter[tuple[int, int]] = Counter()
    for rank, steps in history.steps.items():
        for row in steps:
            samples[row.step] += row.samples
            rows[rank, row.step] += 1
    whole = plan.steps if is_done else max(samples, default=-1) + 1
    double = sum(count > 1 for count in rows.values())
    wrong = sum(samples[step] != plan.global_batch for step in range(whole))
    seen = (
        f"{whole} steps of {plan.global_batch} samples, {double} duplicate work units, {wrong} "
        "incomplete steps"
    )
    return Finding("each sample of each step was used exactly once", not double and not wrong, seen)


def verify_run(run_dir: Path) -> list[Finding]:
    plan = read(run_dir / "plan.json")
    if plan.events is EventDetail.OFF:
        raise NothingRecordedError(
            f"{run_dir} was trained with events off, so there is no log to verify",
            "train it again with --events full (the default)",
        )
    history = read_history(run_dir / "events.jsonl")
    result = _read_result(run_dir)
    record = verify_record(recorded_hash(run_dir / "plan.json"), history, result)
    work = [*verify_shares(plan, history), *verify_result(plan, history, result)]
    if server_names(plan):
        findings = verify_servers(history, result.get("state_sha256"))
        return [record, *_verify_lines(history), *work, *findings, _verify_checkpoints(run_dir)]
    is_elastic = plan.elastic is not None
    findings = [_verify_generations(plan, history)] if is_elastic else []
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
                "replicas are bitwise equal",
                distinct == 1,
                f"{len(hashes)} replicas, {distinct} distinct hash{'' if distinct == 1 else 'es'}",
            )
        )
    return [record, *_verify_lines(history), *work, *findings, _verify_checkpoints(run_dir)]


def _verify_lines(history: History) -> list[Finding]:
    """Empty if every line was read. A torn line that was written again is not a loss."""
    if not history.torn.count:
        return []
    interruptions = [event.fields for event in history.plain if event.kind == "record_interrupted"]
    written_again = sum(int(str(fields["fragments"])) for fields in interruptions)
    missing = sum(int(str(fields["dropped"])) for fields in interruptions)
    seen = f"{history.torn.describe()} unreadable; {written_again} rewritten, {missing} missing"
    ok = history.torn.count <= written_again and missing == 0
    return [Finding("every line of the event log was read", ok, seen)]


def _steps(plan: Plan, history: History) -> int:
    """Whole steps, or rounds of fedavg, that the run had committed at its end."""
    return committed_at_end(
        history,
        shards=plan.num_workers,
        in_rounds=plan.mode == "fedavg",
        falls_back=is_split(plan.mode),
    )


def _verify_generations(plan: Plan, history: History) -> Finding:
    steps = _steps(plan, history)
    resumed = [e for e in history.plain if e.kind == "run_resumed"]
    since = history.plain.index(resumed[-1]) if resumed else 0
    first = int(str(resumed[-1].fields["version"])) if resumed else 0
    lineage = lineage_of(
        history.plain[since:], steps=steps, first=first, is_whole=_commit_points(plan, history)
    )
    steps_done = sum(stretch.end - stretch.first for stretch in lineage.stretches)
    unit = "rounds" if plan.mode == "fedavg" else "steps"
    claim = f"each of {steps} {unit}, and so each sample, was committed exactly once"
    generations = len(lineage.stretches)
    seen = f"{steps_done} {unit} in {generations} generation{'s' * (generations != 1)}"
    if lineage.problems:
        seen += ": " + "; ".join(lineage.problems)
    return Finding(claim, not lineage.problems and steps_done == steps - first, seen)


def _commit_points(plan: Plan, history: History) -> Callable[[int], bool]:
    """Steps at which a commit is possible: as planned, or as the adaptive policy decided."""
    if plan.mode != "adaptive":
        return partial(is_whole, plan)
    policies = policies_of(history.plain, _steps(plan, history))
    return partial(policies.is_whole, every=plan.strategy.sync_every, total=plan.steps)


def _verify_checkpoints(run_dir: Path) -> Finding:
    good = 0
    bad = []
    for path in sorted((run_dir / "checkpoints").glob("at-*/*.json")):
        try:
            facts_of(path.parent, path.stem)
            good += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            bad.append(f"{path.parent.name}/{path.stem}: {error}")
    seen = f"{good} valid" + (f", {len(bad)} invalid: {'; '.join(bad)}" if bad else "")
    return Finding("every checkpoint matches its checksum", not bad, seen)


def _read_result(run_dir: Path) -> dict[str, Json]:
    path = run_dir / "result.json"
    if not path.exists():
        return {}
    try:
        result = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedRecordError(f"{path} cannot be read: {error}", "restore it from a backup") from error
    return result if isinstance(result, dict) else {}


def to_rows(findings: list[Finding]) -> list[Json]:
    return [dict(asdict(finding)) for finding in findings]


def replay_run(run_dir: Path, on_progress: Callable[[int, int], None]) -> dict[str, Json]:
    """Execute the run again. Returns equal, updates, gradients, state_sha256, parted."""
    plan = read(run_dir / "plan.json")
    if not (run_dir / "result.json").exists():
        raise NotFinishedError(
            f"{run_dir} has no result.json: the run did not finish, so there is nothing to compare with",
            f"finish it first:  paceline train --resume {run_dir}",
        )
    verdict: dict[str, Json] = {}
    for message in json_lines("paceline.worker.replay.main", [str(run_dir)]):
        if "update" in message:
            on_progress(int(str(message["update"])), _count_updates(plan))
        else:
            verdict = message
    return verdict


def _count_updates(plan: Plan) -> int:
    """Updates of a whole run; for a user's mode the number of gradients, as an upper bound."""
    averages = plan.mode in MODES and not MODES[plan.mode].sums_updates
    return -(-plan.total_gradients // (plan.gradients_per_update if averages else 1))
