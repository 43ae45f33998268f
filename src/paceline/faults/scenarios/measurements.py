"""Measurements of scenarios: the proofs after every scenario, delays, pauses and exclusions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline.events.read import History
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, at_most, exactly, percentile
from paceline.faults.scenarios.training import TrainingRun, commits_ns, events_of
from paceline.plan.codec import Json
from paceline.training.verify import replay_run, verify_run

NOTHING_LOST = "no work is lost or done twice"


def proofs(run_dir: Path, history: History, reporter: ScenarioReporter | None = None) -> list[Expectation]:
    """That nothing was lost or done twice, that the bits are right, and that no process is left."""
    reporter = reporter or ScenarioReporter()
    return [
        *run_proofs(run_dir, reporter),
        *reporter.settled([exactly("no process is left behind", _living(history), 0)]),
    ]


def run_proofs(run_dir: Path, reporter: ScenarioReporter) -> list[Expectation]:
    """The same without processes; those of hosts end with their host, and have other pids there."""
    findings = verify_proofs(run_dir, reporter)
    verdict = replay_run(run_dir, lambda *_: None)
    return [*findings, *reporter.settled([_same(verdict)])]


def verify_proofs(run_dir: Path, reporter: ScenarioReporter) -> list[Expectation]:
    """That nothing was lost or done twice. All that holds in modes whose sums torch orders."""
    findings = [Expectation(f.what, "holds", f.seen, f.ok) for f in verify_run(run_dir)]
    reporter.settled(findings)
    kept = sum(finding.ok for finding in findings)
    total = Expectation(NOTHING_LOST, "all", f"{kept} of {len(findings)} proofs", kept == len(findings))
    reporter.settled([total])  # the summary of the findings above
    return findings


def _same(verdict: Mapping[str, Json]) -> Expectation:
    return Expectation(
        "the parameters equal those of an undisturbed run (behind servers: of the recorded order)",
        "equal bit by bit",
        str(verdict["parted"] or "equal bit by bit"),
        bool(verdict["is_equal"]),
    )


def _living(history: History) -> int:
    pids = [int(str(e.fields["pid"])) for e in history.plain if e.kind == "worker_started"]
    return sum("paceline" in _command(pid) for pid in pids)


def _command(pid: int) -> str:
    """Empty when there is no such process."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""


_PRIMARIES = ("server_started", "server_promoted")


def primary(history: History) -> str:
    """The last server that became primary."""
    return [event.who for event in history.plain if event.kind in _PRIMARIES][-1]


def backup(history: History) -> str:
    """The last backup that was placed."""
    return str(events_of(history, "backup_placed")[-1].fields["backup"])


def is_guarded(history: History) -> bool:
    """Whether there is a primary, and a backup with its state that was not replaced since."""
    newest = [event for event in history.plain if event.kind in (*_PRIMARIES, "backup_placed")]
    if not newest or newest[-1].kind != "backup_placed":
        return False
    started = [e.at_ns for e in events_of(history, "worker_started") if e.who == backup(history)]
    # Lines of different hosts arrive in any order: its start may be missing still.
    return bool(started) and started[-1] < newest[-1].at_ns


def updates(history: History) -> int:
    """The number of recorded updates."""
    return max((row.version for row in history.server), default=0)


def applied_ns(history: History) -> list[int]:
    """When updates were applied, in order."""
    return sorted(row.at_ns for row in history.server if row.op == "apply")


def longest_delay_s(history: History, from_ns: int, to_ns: int, *, without: Collection[int] = ()) -> float:
    """Longest delay of a step committed between these times, over all workers but `without`."""
    return max(
        (_longest_s(history, rank, from_ns, to_ns) for rank in history.steps if rank not in without),
        default=float("inf"),
    )


def _longest_s(history: History, rank: int, from_ns: int, to_ns: int) -> float:
    gaps = [(later, (later - sooner) / 1e9) for sooner, later in pairwise(commits_ns(history, rank))]
    median_s = percentile([gap for _, gap in gaps], 0.5)
    # Without a commit in that time, the delay is unknown: infinite.
    return max((gap for later, gap in gaps if from_ns <= later <= to_ns), default=float("inf")) - median_s


def longest_pause_s(history: History, from_ns: int) -> float:
    """The longest time without a commit of any worker, or an update of any server."""
    committed = [end for rank in history.steps for end in commits_ns(history, rank)]
    ends = sorted(end for end in applied_ns(history) or committed if end >= from_ns)
    return max(((later - sooner) / 1e9 for sooner, later in pairwise(ends)), default=float("inf"))


def not_delayed(history: History, from_ns: int, to_ns: int, after: str) -> Expectation:
    delay_s = longest_delay_s(history, from_ns, to_ns)
    return at_most(f"training steps continue {after}, longest delay", delay_s, 0.25, "s")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A worker that was excluded from the generation for a while."""

    victim: str
    left_ns: int  # when it was excluded
    noticed_s: float
    back_s: float


def wait_until_excluded(run: TrainingRun, victim: str, after: int) -> int:
    """Wait until the others enter a generation after `after` without it; returns when."""
    run.until(lambda history: _without(history, victim, after) is not None, f"{victim} is left out")
    noticed_ns = _without(run.live(), victim, after)
    assert noticed_ns is not None, "it was just seen"
    return noticed_ns


def _without(history: History, victim: str, after: int) -> int | None:
    entered_ns = [
        event.at_ns
        for event in events_of(history, "generation_entered")
        if int(str(event.fields["number"])) > after and victim not in str(event.fields["workers"]).split(",")
    ]
    return min(entered_ns, default=None)


def fenced_and_alive(history: History, left_ns: Iterable[tuple[str, int]], workers: int) -> list[Expectation]:
    """`left_ns`: excluded workers, and when. They committed nothing then and returned as the same process."""
    commits = sum(_fenced_commits(history, victim, at_ns) for victim, at_ns in left_ns)
    restarts = len(events_of(history, "worker_started")) - workers
    return [
        exactly("it commits no step while excluded", commits, 0),
        exactly("no process is restarted", restarts, 0),
    ]


def _fenced_commits(history: History, victim: str, left_ns: int) -> int:
    """Steps that it committed between its exclusion and its next generation."""
    entered = [e.at_ns for e in events_of(history, "generation_entered") if e.who == victim]
    back_ns = min((at_ns for at_ns in entered if at_ns > left_ns), default=None)
    ends = commits_ns(history, int(victim.removeprefix("worker-")))
    return sum(end > left_ns and (back_ns is None or end < back_ns) for end in ends)
