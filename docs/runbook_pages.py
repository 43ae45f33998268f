# ruff: noqa: E501  # one sentence a line
"""Runbooks: one page for each of the default alert rules."""

from pathlib import Path

from docs.tables import code, table
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.alerts.rules import Rule
from paceline.monitoring.metrics.provisioning import duration, expression

FOLDER = Path(__file__).parent / "runbooks"
_NOTE = "<!-- Written by `make docs` from docs/runbook_pages.py and the default rules. Do not edit. -->"

# rule: (meaning, checks, actions)
TEXTS: dict[str, tuple[str, list[str], list[str]]] = {
    "TrainingStalled": (
        "The run is training, and no worker has finished a step for a minute. Under a synchronous strategy one hanging worker is enough.",
        ["`paceline status RUN`: the last activity of each worker, paused and lost workers", "`paceline events RUN`: what happened just before", "`logs/` in the run's folder"],
        ["A paused worker (`❚❚`): resume it, `p` in `paceline status --watch`", "A hanging worker of an elastic run: kill it; it is replaced", "Steps that are that long: write your own rule with a longer time"],
    ),
    "LossNotFinite": (
        "A step's loss was NaN or infinite in the last five minutes. Under most strategies, training since then is worthless.",
        ["`paceline events RUN --kind step_skipped`", "The loss curve: a rise before it, or one bad batch"],
        ["Lower `--lr`, or set `--clip-norm`", "Skip such steps: `--on-nan skip` (mode `ssgd`, elastic)", "Resume from a checkpoint before it happened: `paceline checkpoint list RUN`"],
    ),
    "WorkerQuorumLost": (
        "Fewer workers are alive than `--min-workers`, so the run waits.",
        ["`paceline workers list RUN`", "`paceline events RUN --kind supervision`: why they were lost, and whether they are replaced"],
        ["`paceline workers add RUN`", "Fix the cause of the losses: memory, a full disk, a wrong file"],
    ),
    "StalenessBoundViolated": (
        "A gradient was applied that was further ahead than the bound of `ssp` or `dssp` allows. This must never happen: it indicates a bug in Paceline.",
        ["`paceline verify RUN`", "`paceline laws --mode ssp`"],
        ["Keep the run's folder, and report it", "Continue with another strategy meanwhile"],
    ),
    "CoordinatorNoLeader": (
        "The coordinator has had no leader for five seconds: no worker can join, leave or be replaced. The current generation continues to train.",
        ["`paceline coordinator status`: which nodes respond", "The nodes' machines: up, and reachable from each other"],
        ["Start the nodes that are missing; a majority is enough", "Embedded coordinator (no separate nodes): the command that started the run was killed, so `paceline train --resume RUN`"],
    ),
    "CheckpointFailing": (
        "Two or more snapshots could not be written in a quarter of an hour. Training continues, but a failure costs everything since the last good one.",
        ["`paceline events RUN --kind checkpoint_failed`: the reason", "`df` of the run folder; for `--checkpoint-store` the permissions on the bucket"],
        ["Free space, or grant permissions; the next checkpoint is tried automatically", "A smaller `--keep-checkpoints`"],
    ),
    "GpuUncorrectableErrors": (
        "The GPU's memory had errors that ECC could not correct. Results since then may be wrong.",
        ["`nvidia-smi -q -d ECC`", "Which workers run on that node"],
        ["Drain the node, and have the card checked", "Resume from a checkpoint before the first error"],
    ),
    "MetricsMissing": (
        "The log has no end of the run, but nothing was written for half a minute. Most likely the command that started it was killed.",
        ["Whether the process exists: `ps`, or the job on the cluster", "Whether the disk of the run folder is full or gone"],
        ["`paceline train --resume RUN`"],
    ),
    "LossDiverging": (
        "The smoothed loss has been more than twice its best of the last half hour for a minute.",
        ["The loss curve and events: a new generation, an adaptation, the end of a schedule", "Staleness, under asynchronous strategies"],
        ["Lower `--lr`, or use `--lr-schedule`", "Asynchronous: `--asgd staleness-aware`, or a bound with `ssp`"],
    ),
    "GradientExploding": (
        "In the last half minute the norm of a worker's gradient was more than ten times its median of five minutes. One bad batch can cause it too; if the loss follows, training starts to diverge.",
        ["`paceline_gradient_norm` of all workers: one of them (its data) or all (the model and the rate)", "The loss curve, and whether `LossDiverging` or `LossNotFinite` follows", "`paceline events RUN --kind fault_injected`: whether it was injected"],
        ["`--clip-norm 1.0`", "Lower `--lr`, or warm it up: `--lr-warmup 100`", "Norms are sampled every tenth step; more often: `--gradient-norm-every 1`"],
    ),
    "ThroughputDropped": (
        "The run trains at less than 70 % of what it reached in the last quarter of an hour.",
        ["`paceline status RUN`: the trend shows the time of the change and the event near it", "A worker that is slow, or a phase that grew"],
        ["See the runbook of the other firing alert", "Remote data: check the share of `data`"],
    ),
    "WorkerDown": (
        "A worker was lost and is not back after 15 seconds.",
        ["`paceline events RUN --kind supervision`: why, and when it is replaced", "`logs/` in the run's folder"],
        ["Nothing, if only its restart delay has grown", "`paceline workers add RUN` if it was excluded"],
    ),
    "WorkersBelowDesired": (
        "The run has continued for more than a minute with fewer workers than it started with.",
        ["`paceline workers list RUN`", "`paceline events RUN --kind supervision`"],
        ["`paceline workers add RUN`", "Or nothing: the result is the same, but takes longer"],
    ),
    "WorkerStraggling": (
        "A worker's own part of a step takes much longer than the median worker's. Under synchronous strategies all workers wait for it.",
        ["`paceline status RUN`: its speed and its phases", "Its machine: another process, heat, a slow disk"],
        ["Elastic runs: `--on-slow rebalance` or `replace`", "A strategy that waits less: `backup`, `ssp`, `asgd`, `localsgd`; run `paceline advise RUN`"],
    ),
    "WorkerFlapping": (
        "A worker was restarted four times or more in ten minutes: it fails repeatedly.",
        ["`paceline events RUN --kind supervision`", "`logs/` in the run's folder"],
        ["Fix the cause; until then the run replaces it with growing delays", "`paceline workers remove RUN WORKER`"],
    ),
    "RecoverySlow": (
        "From the last step before a loss to the first after it took more than a minute.",
        ["The generations of `paceline status RUN --json`: which stage was long (detect, stop, reform, restore, resume)"],
        ["Detect: an expired lease on another machine is slower than a process exit", "Restore: the state is large, or the network slow"],
    ),
    "StalenessHigh": (
        "95 % of gradients are applied up to more than two updates per worker later than they were read.",
        ["`paceline status RUN`: the worker with the largest staleness is slow, the others are fast"],
        ["`ssp` with a bound, `--asgd staleness-aware` or `ringmaster`", "Smaller batches on the slow worker: `--batch-size 32,32,16`"],
    ),
    "CoordinatorQuorumAtRisk": (
        "One more lost voter leaves no majority.",
        ["`paceline coordinator status`"],
        ["Restart the missing node; it catches up automatically", "A node that is lost for good: `paceline coordinator remove`"],
    ),
    "CoordinatorLeaderFlapping": (
        "Leadership changed four times or more in a quarter of an hour.",
        ["Round trips of the coordinator's nodes", "CPU and disk of their machines"],
        ["Give the nodes their own cores and disks", "Distant nodes: longer election timeouts"],
    ),
    "CoordinatorCommitSlow": (
        "One of a hundred commands of the last five minutes took the leader more than a quarter of a second, from its arrival until a majority had it on disk and it was applied.",
        ["`paceline_coordinator_fsync_duration_seconds` of each node: a slow disk is the usual cause", "`paceline_coordinator_peer_round_trip_seconds`: which of the other nodes responds late"],
        ["Give the nodes separate disks; other writers on the same disk delay every fsync", "Move a node that is far away, or overloaded, and transfer leadership: `paceline coordinator step-down`"],
    ),
    "CoordinatorSlow": (
        "One of a hundred responses of a coordinator node takes more than a quarter of a second.",
        ["CPU, disk and network of that node"],
        ["Move it to a quieter machine"],
    ),
    "CheckpointStale": (
        "The run saves periodically, but the newest checkpoint is older than half an hour.",
        ["`paceline checkpoint list RUN`", "`paceline events RUN --kind checkpoint_skipped`"],
        ["A smaller `--checkpoint-every` at the next start", "Skipped checkpoints: writing takes longer than the interval; save less often, or to a faster disk"],
    ),
    "DiskWillFill": (
        "By linear extrapolation of the last half hour, the disk with the run folder is full within four hours.",
        ["`df`, and what grows: `du -s runs/*`"],
        ["Delete old runs", "A smaller `--keep-checkpoints`"],
    ),
    "HostMemoryHigh": (
        "More than 90 % of a machine's memory is in use for a minute. The kernel may kill a worker.",
        ["`paceline status --watch`: memory of each worker, sorted by `s`"],
        ["Smaller batches, or fewer workers on that machine"],
    ),
    "GpuIdle": (
        "A GPU was busy for less than a fifth of five minutes, while the run trains.",
        ["The phases of the workers there: `data`, `wait` or `comm` is large"],
        ["`data`: a faster store, see `paceline data shard`", "`wait`: a strategy that waits less; `comm`: compression or local steps"],
    ),
    "GpuThrottled": (
        "The GPU was throttled by its power limit or temperature for more than a tenth of five minutes.",
        ["`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`"],
        ["Cooling; a higher power limit, if the machine allows one"],
    ),
    "NotificationsFailing": (
        "Notifications could not be delivered after all retries.",
        ["`paceline events RUN --kind notified`", "The warnings of the command that sends them"],
        ["`paceline alerts test NOTIFIER --rules FILE`"],
    ),
    "BoundBlocksWorkers": (
        "Workers spend more than half of their time waiting, under a strategy with a staleness bound.",
        ["`paceline status RUN`: workers that are far behind"],
        ["A larger `--staleness`", "`dssp`, whose bound adapts"],
    ),
    "CommunicationBound": (
        "More than half of the workers' time is communication and reduction.",
        ["Bandwidth of each worker (`bandwidth_bytes_per_s` in `paceline status --json`)"],
        ["Larger batches, `localsgd` or `diloco`", "`--compress fp16` or stronger"],
    ),
    "GpuMemoryNearFull": (
        "More than 95 % of a GPU's memory is in use. torch caches allocated memory, so this may be normal.",
        ["`nvidia-smi`"],
        ["Nothing, unless workers run out of memory; then smaller batches"],
    ),
}  # fmt: skip


def runbooks() -> dict[str, str]:
    """The text of every page, by file name."""
    return {f"{rule.name}.md": _page(rule) for rule in default_rules().rules}


def _page(rule: Rule) -> str:
    means, look, do = TEXTS[rule.name]
    facts = [
        f"Severity: {rule.severity.word}.",
        f"Holds for: {duration(rule.hold_s) if rule.hold_s else 'no time'}.",
    ]
    if rule.keep_firing_s:
        facts.append(f"Kept for: {duration(rule.keep_firing_s)}.")
    lines = [
        f"# {rule.name}",
        "",
        _NOTE,
        "",
        f"> {rule.summary}",
        "",
        " ".join(facts) + f" Component of [health](../concepts/health.md): {rule.component}.",
        "",
        "## What it means",
        "",
        means,
        "",
        f"```promql\n{expression(rule)}\n```",
        "",
        "## Check",
        "",
        *(f"- {one}" for one in look),
        "",
        "## What to do",
        "",
        *(f"- {one}" for one in do),
        "",
        "To silence it: `paceline alerts silence RUN --rule " + rule.name + " --for 1h`. All alerts:",
        "[reference](../reference/alerts.md).",
    ]
    return "\n".join(lines) + "\n"


def alerts_page() -> list[str]:
    rules = default_rules()
    rows = (
        (
            f"[{code(r.name)}](../runbooks/{r.name}.md)",
            r.severity.word,
            r.component,
            _times(r),
            code(expression(r)),
        )
        for r in rules.rules
    )
    return [
        "# Alerts",
        "",
        "The default rules. How to change them and to receive notifications: [alerts](../guides/monitoring.md#receive-alerts). Each",
        "has a runbook.",
        "",
        *table(("alert", "severity", "component", "times", "Prometheus expression"), rows),
        "",
        "## Inhibition",
        "",
        "While the first alert fires, no notification is sent for the others with the same labels.",
        "",
        *table(
            ("fires", "muted", "same"),
            (
                (code(i.source), ", ".join(map(code, i.targets)), ", ".join(i.equal))
                for i in rules.inhibitions
            ),
        ),
    ]


def _times(rule: Rule) -> str:
    held = f"after {duration(rule.hold_s)}" if rule.hold_s else "at once"
    return f"{held}, kept {duration(rule.keep_firing_s)}" if rule.keep_firing_s else held


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in runbooks().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote docs/runbooks ({len(runbooks())} pages)")
