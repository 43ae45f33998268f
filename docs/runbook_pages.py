# ruff: noqa: E501  # one sentence a line
"""What does somebody do when an alert fires? One page for each of the default rules."""

from pathlib import Path

from docs.tables import code, table
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.alerts.rules import Rule
from paceline.monitoring.metrics.provisioning import duration, expression

FOLDER = Path(__file__).parent / "runbooks"
_NOTE = "<!-- Written by `make docs` from docs/runbook_pages.py and the default rules. Do not edit. -->"

# rule: (what it means, where to look, what to do)
TEXTS: dict[str, tuple[str, list[str], list[str]]] = {
    "TrainingStalled": (
        "The run is training, and no worker has finished a step for a minute. Under synchronous modes one worker that hangs is enough.",
        ["`paceline status RUN`: who was seen last, who is paused or lost", "`paceline events RUN`: what happened just before", "`logs/` in the run's folder"],
        ["A paused worker (`❚❚`): let it go on, `p` in `paceline top`", "A hanging worker of an elastic run: kill it, it is replaced", "Steps that really take so long: write a rule of your own with a longer time"],
    ),
    "LossNotFinite": (
        "A step's loss was NaN or infinite in the last five minutes. What is trained since is worthless in most modes.",
        ["`paceline events RUN --kind step_skipped`", "The loss curve: did it rise before, or was it one bad batch?"],
        ["Lower `--lr`, or set `--clip-norm`", "Let such steps be left out: `--on-nan skip` (mode `ssgd`, elastic)", "Go on from a checkpoint before it happened: `paceline checkpoint list RUN`"],
    ),
    "WorkerQuorumLost": (
        "Fewer workers live than `--min-workers` asks for, so the run waits.",
        ["`paceline workers list RUN`", "`paceline events RUN --kind supervision`: why they were lost, and whether they are replaced"],
        ["`paceline workers add RUN`", "Mend what kills them: memory, a full disk, a wrong file"],
    ),
    "StalenessBoundViolated": (
        "A gradient was applied that was further ahead than the bound of `ssp` or `dssp` allows. This should never happen: it is an alarm about Paceline itself.",
        ["`paceline verify RUN`", "`paceline laws --mode ssp`"],
        ["Keep the run's folder, and report it", "Go on with another mode meanwhile"],
    ),
    "CoordinatorNoLeader": (
        "No node of the coordinator leads for five seconds: nobody can join, leave or be replaced. Workers that are together train on.",
        ["`paceline coordinator status`: which nodes answer", "The nodes' own machines: are they up, and can they reach each other?"],
        ["Start the nodes that are missing; a majority is enough", "Of an embedded coordinator (no nodes of your own): the command that began the run was killed, so `paceline train --resume RUN`"],
    ),
    "CheckpointFailing": (
        "Two or more snapshots could not be written in a quarter of an hour. Training goes on, but a loss costs everything since the last good one.",
        ["`paceline events RUN --kind checkpoint_failed`: the reason", "`df` of the run's folder; for `--checkpoint-store` the bucket's rights"],
        ["Make room, or give rights; the next checkpoint is tried by itself", "`--keep-checkpoints` smaller"],
    ),
    "GpuUncorrectableErrors": (
        "The GPU's memory had errors that ECC could not correct. What it computed since may be wrong.",
        ["`nvidia-smi -q -d ECC`", "Which workers run on that node"],
        ["Take the node out, and have the card looked at", "Go on from a checkpoint before the first error"],
    ),
    "MetricsMissing": (
        "The run is not over by its log, but nothing was written for half a minute. Most likely the command that began it was killed.",
        ["Is the process there? `ps`, or the job on the cluster", "Is the disk of the run's folder full or gone?"],
        ["`paceline train --resume RUN`"],
    ),
    "LossDiverging": (
        "The smoothed loss has been more than twice its best of the last half hour for a minute.",
        ["The loss curve beside events: a new generation, an adaptation, a schedule's end", "Staleness, under asynchronous modes"],
        ["Lower `--lr`, or use `--lr-schedule`", "Asynchronous: `--asgd staleness-aware`, or a bound with `ssp`"],
    ),
    "GradientExploding": (
        "In the last half minute the norm of a worker's gradient was more than ten times its median of five minutes. One bad batch does that too; a loss that follows it up is the beginning of a divergence.",
        ["`paceline_gradient_norm` of all workers: one of them (its data) or all (the model and the rate)", "The loss curve, and whether `LossDiverging` or `LossNotFinite` follows", "`paceline events RUN --kind fault_injected`: was it done on purpose?"],
        ["`--clip-norm 1.0`", "Lower `--lr`, or warm it up: `--lr-warmup 100`", "Norms are looked at every tenth step; nearer: `--gradient-norm-every 1`"],
    ),
    "ThroughputDropped": (
        "The run trains at less than 70 % of what it reached in the last quarter of an hour.",
        ["`paceline status RUN`: the trend names the moment, and what happened then", "A worker that is slow, or a phase that grew"],
        ["See the page of the alert that fires beside it", "Data that comes from elsewhere: see the share of `data`"],
    ),
    "WorkerDown": (
        "A worker was lost and is not back after 15 seconds.",
        ["`paceline events RUN --kind supervision`: why, and when it is replaced", "`logs/` in the run's folder"],
        ["Nothing, if it is only waiting longer each time it is lost", "`paceline workers add RUN` if it was given up"],
    ),
    "WorkersBelowDesired": (
        "The run goes on, but with fewer workers than it was begun with, for more than a minute.",
        ["`paceline workers list RUN`", "`paceline events RUN --kind supervision`"],
        ["`paceline workers add RUN`", "Or leave it: the result is the same, it takes longer"],
    ),
    "WorkerStraggling": (
        "A worker's own part of a step takes much longer than the median worker's. Under synchronous modes everybody waits for it.",
        ["`paceline status RUN`: its speed and its phases", "Its machine: another process, heat, a slow disk"],
        ["Elastic runs: `--on-slow rebalance` or `replace`", "A mode that waits less: `backup`, `ssp`, `asgd`, `localsgd`; ask `paceline advise RUN`"],
    ),
    "WorkerFlapping": (
        "A worker was started again four times or more in ten minutes: it meets the same end each time.",
        ["`paceline events RUN --kind supervision`", "`logs/` in the run's folder"],
        ["Mend the cause; until then the run replaces it ever more rarely", "`paceline workers remove RUN WORKER`"],
    ),
    "RecoverySlow": (
        "From the last step before a loss to the first after it took more than a minute.",
        ["The generations of `paceline status RUN --json`: which stage was long (detect, stop, reform, restore, resume)"],
        ["Detect: a lease that runs out on another machine is slower than a process whose end is seen", "Restore: the state is large, or the network slow"],
    ),
    "StalenessHigh": (
        "95 % of gradients are applied up to more than two updates per worker later than they were read.",
        ["`paceline status RUN`: who has the largest staleness; it is slow, the others are fast"],
        ["`ssp` with a bound, `--asgd staleness-aware` or `ringmaster`", "Smaller batches on the slow worker: `--batch-size 32,32,16`"],
    ),
    "CoordinatorQuorumAtRisk": (
        "So many voters are missing that one more loss leaves no majority.",
        ["`paceline coordinator status`"],
        ["Start the missing node again; it catches up by itself", "A node that will not come back: `paceline coordinator remove`"],
    ),
    "CoordinatorLeaderFlapping": (
        "The lead changed four times or more in a quarter of an hour.",
        ["Round trips of the coordinator's nodes", "CPU and disk of their machines"],
        ["Give the nodes their own cores and disks", "Far apart? Longer election times"],
    ),
    "CoordinatorCommitSlow": (
        "One of a hundred commands of the last five minutes took the leader more than a quarter of a second, from its arrival until a majority had it on disk and it was applied.",
        ["`paceline_coordinator_fsync_duration_seconds` of each node: a slow disk is the usual cause", "`paceline_coordinator_peer_round_trip_seconds`: which of the other nodes answers late"],
        ["Give the nodes a disk of their own; other writers on the same one hold up every fsync", "Move a node that is far away, or overloaded, and hand over the lead: `paceline coordinator step-down`"],
    ),
    "CoordinatorSlow": (
        "One of a hundred answers of a coordinator's node takes more than a quarter of a second.",
        ["CPU, disk and network of that node"],
        ["Move it to a quieter machine"],
    ),
    "CheckpointStale": (
        "The run saves on its way, but the newest checkpoint is older than half an hour.",
        ["`paceline checkpoint list RUN`", "`paceline events RUN --kind checkpoint_skipped`"],
        ["`--checkpoint-every` smaller at the next start", "Skipped ones: writing takes longer than the time between two; save more rarely or to a faster disk"],
    ),
    "DiskWillFill": (
        "A straight line through the last half hour says that the disk with the run's folder is full within four hours.",
        ["`df`, and what grows: `du -s runs/*`"],
        ["Delete old runs", "`--keep-checkpoints` smaller"],
    ),
    "HostMemoryHigh": (
        "More than 90 % of a machine's memory is in use for a minute. The kernel may kill a worker.",
        ["`paceline top`: memory of each worker, sorted by `s`"],
        ["Smaller batches, or fewer workers on that machine"],
    ),
    "GpuIdle": (
        "A GPU was busy for less than a fifth of five minutes, while the run trains.",
        ["The phases of the workers there: `data`, `wait` or `comm` is large"],
        ["`data`: a faster store, see `paceline data shard`", "`wait`: a mode that waits less; `comm`: compression or local steps"],
    ),
    "GpuThrottled": (
        "The GPU's clock was held down by its power limit or its heat for more than a tenth of five minutes.",
        ["`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`"],
        ["Cooling; a higher power limit, if the machine allows one"],
    ),
    "NotificationsFailing": (
        "Messages about alerts could not be delivered, however often they were tried.",
        ["`paceline events RUN --kind notified`", "The warnings of the command that sends them"],
        ["`paceline alerts test NOTIFIER --rules FILE`"],
    ),
    "BoundBlocksWorkers": (
        "Workers spend more than half of their time waiting, under a mode with a staleness bound.",
        ["`paceline status RUN`: who is far behind"],
        ["A larger `--staleness`", "`dssp`, which moves its bound by itself"],
    ),
    "CommunicationBound": (
        "More than half of the workers' time goes into moving and reducing numbers.",
        ["Bandwidth of each worker (`bandwidth_bytes_per_s` in `paceline status --json`)"],
        ["Larger batches, `localsgd` or `diloco`", "`--compress fp16` or stronger"],
    ),
    "GpuMemoryNearFull": (
        "More than 95 % of a GPU's memory is in use. torch keeps what it once had, so this may be usual.",
        ["`nvidia-smi`"],
        ["Nothing, unless workers die of it; then smaller batches"],
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
        "## Look at",
        "",
        *(f"- {one}" for one in look),
        "",
        "## What to do",
        "",
        *(f"- {one}" for one in do),
        "",
        "Known and wanted? `paceline alerts silence RUN --rule " + rule.name + " --for 1h`. All alerts:",
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
        "The default rules. How they are changed, and who is told: [alerts](../guides/alerts.md). Each has a page that",
        "says what to do.",
        "",
        *table(("alert", "severity", "component", "times", "as Prometheus reads it"), rows),
        "",
        "## What mutes what",
        "",
        "While the first fires, nobody is told about the others with the same labels.",
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
