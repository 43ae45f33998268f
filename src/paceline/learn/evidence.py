"""Evidence of what a learner did, read from runs, coordinator, alert rules and comparison.

Event logs are the evidence: a run is identified by its measured durations (`fingerprint`), and a
killed leader counts only if the log of the run has samples of both terms.
"""

import hashlib
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from paceline.comparison import schema
from paceline.comparison.benchmark.keras_runner import LOG
from paceline.comparison.benchmark.runner import MEASURED
from paceline.comparison.benchmark.schema import Benchmark, Measured, read_benchmark, read_measured
from paceline.coordinator.client import nodes_file
from paceline.core.clock import boot_id
from paceline.core.errors import DamagedRecordError, PacelineError
from paceline.events.follow import ColumnReader
from paceline.events.read import History, Line, Torn, read_events, read_history
from paceline.events.schema import StepRow
from paceline.events.summary import Summary, end_ns, summarise
from paceline.learn.lesson import (
    BenchmarkFacts,
    ComparedFacts,
    Facts,
    KillFacts,
    LeaderSample,
    RuleFacts,
    RunFacts,
    Trace,
)
from paceline.monitoring.alerts.engine import State
from paceline.monitoring.alerts.rule_file import default_rules, load_rules
from paceline.monitoring.alerts.rules import Rules
from paceline.monitoring.view.feed import Replay, read_snapshot
from paceline.plan.codec import read
from paceline.training.verify import verify_run

RULES_NAME = "rules.yaml"
COMPARISON = "comparison"
COORDINATOR = Path("runs", "coordinator")


# What Ray writes about a process of a worker that was killed.
_DEAD_WORKER = re.compile(r"^.*(?:ActorDiedError|Worker exit type|WorkerCrashedError|died).*$", re.M)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def gather(
    folder: Path, runs: Sequence[str], *, tries_rules: bool = True, benchmarks: Sequence[str] = ()
) -> Facts:
    """`folder` is the learner's working directory; `runs` and `benchmarks` are names in it."""
    run_dirs = {name: run_dir for name in runs if (run_dir := newest(folder, name)) is not None}
    rules, problem = _rules(folder, run_dirs) if tries_rules else ((), "")
    return Facts(
        runs={name: run_facts(run_dir, folder) for name, run_dir in run_dirs.items()},
        boot_id=boot_id(),
        kills=_kills(folder / COORDINATOR),
        nodes=_nodes(folder / COORDINATOR),
        rules=rules,
        rules_problem=problem,
        compared=_compared(folder / COMPARISON, folder),
        benchmarks={
            name: benchmark_facts(folder / name, folder)
            for name in benchmarks
            if (folder / name / "runs").is_dir()
        },
    )


def newest(folder: Path, name: str) -> Path | None:
    """The folder of the newest finished run of this name: NAME, or NAME-2 if it was repeated."""
    finished = [run_dir for run_dir in _named(folder, name) if (run_dir / "result.json").exists()]
    return max(finished, key=lambda run_dir: (run_dir / "result.json").stat().st_mtime, default=None)


def fingerprints(
    folder: Path, runs: Sequence[str], *, is_compared: bool, benchmarks: Sequence[str] = ()
) -> list[str]:
    """Fingerprints of all runs and benchmarks of these names; `is_compared`: also of the comparison."""
    run_dirs = [run_dir for name in runs for run_dir in _named(folder, name)]
    traces = [run_trace(run_dir, folder) for run_dir in run_dirs if (run_dir / "events.jsonl").exists()]
    compared = _compared(folder / COMPARISON, folder) if is_compared else None
    if compared is not None:
        traces += compared.traces
    measured = [trace for name in benchmarks for trace in benchmark_facts(folder / name, folder).traces]
    recorded = [trace for trace in traces if trace.first_step_ns is not None]
    return sorted({trace.fingerprint for trace in [*recorded, *measured]})


def _named(folder: Path, name: str) -> list[Path]:
    run_dirs = [path.parent for path in (folder / "runs").glob(f"{name}*/plan.json")]
    return [run_dir for run_dir in run_dirs if run_dir.name == name or _is_numbered(run_dir.name, name)]


def _is_numbered(folder: str, name: str) -> bool:
    return folder.removeprefix(f"{name}-").isdecimal()


def run_trace(run_dir: Path, folder: Path) -> Trace:
    return _trace(read_history(run_dir / "events.jsonl"), str(run_dir.relative_to(folder)))


def _trace(history: History, run_folder: str) -> Trace:
    starts_ns = [row.start_ns for rows in history.steps.values() for row in rows]
    return Trace(
        folder=run_folder,
        began_unix_s=history.started_unix_s,
        first_step_ns=min(starts_ns, default=None),
        fingerprint=_fingerprint(history),
    )


def _fingerprint(history: History) -> str:
    """SHA-256 of the measured durations: independent of start time, name and folder of the run."""
    digest = hashlib.sha256()
    for rank, rows in sorted(history.steps.items()):
        for row in rows:
            measured = (rank, row.step, row.data_ns, row.forward_ns, row.backward_ns, row.apply_ns)
            digest.update(repr(measured).encode())
    return digest.hexdigest()


def run_facts(run_dir: Path, folder: Path) -> RunFacts:
    plan = read(run_dir / "plan.json")
    history = read_history(run_dir / "events.jsonl")
    summary = summarise(history)
    stale = summary.staleness
    entered = [event.fields for event in history.plain if event.kind == "generation_entered"]
    rows = [row for own in history.steps.values() for row in own]
    unix_s = partial(_unix_s, history)
    trace = _trace(history, str(run_dir.relative_to(folder)))
    return RunFacts(
        folder=trace.folder,
        began_unix_s=trace.began_unix_s,
        first_step_ns=trace.first_step_ns,
        fingerprint=trace.fingerprint,
        is_consistent=_is_consistent(run_dir, summary),
        mode=plan.mode,
        workers=plan.processes,
        steps=plan.steps,
        pace_s=plan.pace_s,
        launcher=plan.launcher.value,
        slow={rule.worker: rule.factor for rule in plan.stragglers if rule.worker is not None},
        bound=plan.strategy.staleness,
        is_elastic=plan.elastic is not None,
        outcome=_outcome(history),
        samples=summary.samples,
        samples_per_s=summary.samples_per_s,
        updates=_updates(history),
        phases_s=summary.phases_s,
        own_s={rank: _mean_own_s(own) for rank, own in history.steps.items() if own},
        wait_s={rank: sum(row.wait_ns for row in own) / 1e9 for rank, own in history.steps.items()},
        speeds=_speeds(run_dir),
        stale_mean=None if stale is None else stale.mean,
        gap_max=None if stale is None else stale.max_gap,
        generations={number: unix_s(at_ns) for number, at_ns in _generations(history).items()},
        lost=_lost(history),
        healed_from=tuple(str(fields["healed_from"]) for fields in entered if fields.get("healed_from")),
        steps_unix_s=tuple(sorted(unix_s(end_ns(row)) for row in rows)),
        proofs=_proofs(run_dir) if plan.elastic is not None else (),
        leaders=tuple(_leaders(run_dir)) if plan.elastic is not None else (),
    )


def _is_consistent(run_dir: Path, summary: Summary) -> bool:
    """Whether result.json has the numbers that follow from the event log."""
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    return bool(result["samples"] == summary.samples and result["samples_per_s"] == summary.samples_per_s)


def _leaders(run_dir: Path) -> Iterator[LeaderSample]:
    """The leader and term of the coordinator, about once a second."""
    for line in read_events(run_dir / "events.jsonl", Torn()):
        if not isinstance(line, Line) or line.event.get("kind") != "coordinators":
            continue
        reported = ColumnReader(line.event).rows("term", "leader")
        known = [
            (term, leader) for term, leader in reported if isinstance(term, int) and isinstance(leader, int)
        ]
        term, leader = max(known, default=(None, None))
        yield LeaderSample(leader=leader, term=term)


def _outcome(history: History) -> str:
    ends = [str(event.fields["outcome"]) for event in history.plain if event.kind == "run_finished"]
    return ends[-1] if ends else "cut off"


def _unix_s(history: History, at_ns: int) -> float:
    return history.started_unix_s + (at_ns - history.t0_ns) / 1e9


def _generations(history: History) -> dict[int, int]:
    """By generation: when the first worker entered it."""
    first_ns: dict[int, int] = {}
    for event in history.plain:
        if event.kind == "generation_entered":
            number = int(str(event.fields["number"]))
            first_ns[number] = min(event.at_ns, first_ns.get(number, event.at_ns))
    return dict(sorted(first_ns.items()))


def _lost(history: History) -> tuple[str, ...]:
    """Workers of an elastic run that died, according to the launcher."""
    decisions = [str(event.fields["decision"]) for event in history.plain if event.kind == "supervision"]
    return tuple(parts[0] for line in decisions if len(parts := line.split(" was lost", 1)) == 2)


def _updates(history: History) -> int:
    applied = sum(row.op == "apply" for row in history.server)
    return applied or max((len(rows) for rows in history.steps.values()), default=0)


def _mean_own_s(rows: Sequence[StepRow]) -> float:
    own_ns = sum(row.data_ns + row.forward_ns + row.backward_ns + row.delay_ns for row in rows)
    return own_ns / len(rows) / 1e9


def _speeds(run_dir: Path) -> dict[int, float]:
    workers = read_snapshot(run_dir)["workers"]
    assert isinstance(workers, list), "a snapshot lists its workers"
    by_rank = {}
    for row in workers:
        assert isinstance(row, dict), "a worker is an object"
        name, _, rank = str(row["worker"]).rpartition("-")
        speed = row["relative_speed"]
        if name == "worker" and isinstance(speed, float | int):
            by_rank[int(rank)] = float(speed)
    return by_rank


def _proofs(run_dir: Path) -> tuple[tuple[bool, str], ...]:
    return tuple((finding.ok, f"{finding.what}: {finding.seen}") for finding in verify_run(run_dir))


def _kills(folder: Path) -> tuple[KillFacts, ...]:
    path = folder / nodes_file.KILLS_NAME
    if not path.exists():
        return ()
    try:
        return tuple(KillFacts(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    except (ValueError, TypeError) as error:
        hint = f"delete it, and run the block of the page again: rm {path}"
        raise DamagedRecordError(f"{path} cannot be read: {error}", hint) from error


def _nodes(folder: Path) -> int:
    return len(nodes_file.read_nodes_file(folder).nodes) if (folder / nodes_file.FILE_NAME).exists() else 0


def _rules(folder: Path, runs: dict[str, Path]) -> tuple[tuple[RuleFacts, ...], str]:
    """The learner's own rules, evaluated on these records; or why there are none."""
    path = folder / RULES_NAME
    if not path.exists():
        return (), f"there is no {RULES_NAME} in this folder"
    try:
        rules = load_rules(path)
    except PacelineError as error:
        return (), f"{RULES_NAME}: {error.problems[0].what}"
    default_names = {rule.name for rule in default_rules().rules}
    fired = {name: _fired(run_dir, rules) for name, run_dir in runs.items()}
    own = [rule for rule in rules.rules if rule.name not in default_names]
    return tuple(
        RuleFacts(
            name=rule.name,
            conditions=len(rule.conditions),
            fired={
                name: tuple(who for by, who in firings if by == rule.name) for name, firings in fired.items()
            },
        )
        for rule in own
    ), "" if own else f"{RULES_NAME} has no rule of your own"


def _fired(run_dir: Path, rules: Rules) -> list[tuple[str, str]]:
    """(rule, worker), once per start of firing."""
    replay = Replay(run_dir, rules=rules)
    replay.seek(replay.duration_s)
    return [
        (change.alert.rule.name, str(dict(change.alert.labels).get("worker", "run")))
        for change in replay.view.transitions
        if change.to is State.FIRING
    ]


def _compared(folder: Path, root: Path) -> ComparedFacts | None:
    path = folder / "comparison.json"
    if not path.exists():
        return None
    comparison = schema.read(path)
    run_dirs = [folder / "runs" / run for cell in comparison.cells.values() for run in cell.runs]
    recorded = [run_dir for run_dir in run_dirs if (run_dir / "events.jsonl").exists()]
    return ComparedFacts(
        comparison=comparison,
        has_page=(folder / "report.html").exists(),
        traces=tuple(run_trace(run_dir, root) for run_dir in recorded),
        missing=tuple(str(run_dir.relative_to(root)) for run_dir in run_dirs if run_dir not in recorded),
    )


def benchmark_facts(folder: Path, root: Path) -> BenchmarkFacts:
    """`folder` is that of --out; the benchmark may have failed."""
    run_dirs = sorted(path.parent for path in folder.glob(f"runs/*/{MEASURED}"))
    finished = {run_dir: read_measured(run_dir / MEASURED) for run_dir in run_dirs if _is_finished(run_dir)}
    path = folder / "comparison.json"
    result = read_benchmark(path) if path.exists() else None
    logs = [run_dir / LOG for run_dir in run_dirs if run_dir not in finished]
    deaths = [found[0] for log in logs if log.exists() and (found := _dead_workers(log))]
    return BenchmarkFacts(
        folder=str(folder.relative_to(root)),
        result=result,
        traces=tuple(
            Trace(
                folder=str(run_dir.relative_to(root)),
                began_unix_s=run.started_unix_s,
                fingerprint=_measured_fingerprint(run),
            )
            for run_dir, run in finished.items()
        ),
        dead_worker=deaths[0] if deaths else "",
        is_consistent=result is None or _agrees(result, list(finished.values())),
    )


def _is_finished(run_dir: Path) -> bool:
    """A side that has not ended, or failed, has an empty object."""
    return (run_dir / MEASURED).read_text(encoding="utf-8").strip() != "{}"


def _dead_workers(log: Path) -> list[str]:
    text = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))
    return [textwrap.shorten(line, width=120, placeholder=" …") for line in _DEAD_WORKER.findall(text)]


def _measured_fingerprint(run: Measured) -> str:
    seconds = [point.seconds for point in run.history]
    return hashlib.sha256(repr((run.total_s, run.first_step_s, seconds)).encode()).hexdigest()


def _agrees(result: Benchmark, runs: Sequence[Measured]) -> bool:
    shown = sorted(seconds for row in result.rows.values() for seconds in row.total_s_all)
    return shown == sorted(run.total_s for run in runs)
