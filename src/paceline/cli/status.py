"""`paceline status` and `paceline status --watch`: state, pace, workers, alerts and health of a run."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import read_from_anywhere
from paceline.cli.options import common_options, optional_run_argument
from paceline.cli.output import emit
from paceline.core.errors import ExitCode, MissingPackageError
from paceline.core.humanize import short_number
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json


GLYPHS = {"training": "●", "starting": "◐", "paused": "❚❚", "slow": "▲", "lost": "✕", "finished": "✔"}

ENDED_STATES = ("finished", "stopped", "failed")

HEADS = (
    "worker",
    "state",
    "step",
    "lag",
    "step time",
    "speed",
    "wait",
    "comm",
    "staleness",
    "memory",
    "restarts",
)


@click.command("status")
@optional_run_argument
@click.option("--watch", "-w", "is_watched", is_flag=True, help="Watch the workers in the whole terminal.")
@click.option("--readonly", is_flag=True, help="With --watch: disable the keys that pause or kill workers.")
@common_options
@read_from_anywhere()
def status(session: Session, run: Path | None, is_watched: bool, readonly: bool) -> ExitCode:
    """Show the state of RUN, a run folder or its store [default: the newest under runs/].

    Keys of --watch: ? help, / filter, s sort, p pause, K kill, q quit.
    """
    from paceline.monitoring.view.feed import find_run, read_snapshot

    run_dir = find_run(session.folder, run)
    if is_watched and sys.stdout.isatty() and not session.common.json:
        return _watch(run_dir, is_readonly=readonly)
    snapshot = read_snapshot(run_dir)
    emit(session, "status", snapshot, lines_of(snapshot, str(run_dir)))
    return ExitCode.OK


def lines_of(snapshot: "dict[str, Json]", where: str) -> list[str]:
    run = _dict(snapshot["run"])
    progress = _dict(snapshot["progress"])
    pace = _dict(snapshot["throughput"])
    loss = _dict(snapshot["loss"])
    health = _dict(snapshot["health"])
    eta = progress["eta_s"]
    counts = _dict(snapshot["counts"])
    return [
        f"{run['name']} ({run['mode']}, {run['task']}, {run['launcher']}) is {snapshot['state']}: {where}",
        f"step      {progress['step']} of {progress['steps']}"
        + (f", {_seconds(eta)} left" if eta is not None else f" in {_seconds(progress['elapsed_s'])}"),
        f"loss      {_loss(loss)}",
        f"speed     {_short(pace['samples_per_s'])} samples/s{_change(pace['change_share'])}",
        f"workers   {_worker_counts(counts, is_over=snapshot['state'] in ENDED_STATES)}",
        f"health    {_health(health)}",
        *_coordinator_lines(snapshot),
        *(f"trend     {_dict(trend)['words']}" for trend in _list(snapshot["trends"])),
        *_abandoned_lines(snapshot, where),
        "",
        *worker_table(snapshot),
        *_alert_lines(snapshot),
    ]


def _coordinator_lines(snapshot: "dict[str, Json]") -> list[str]:
    """The leader and the reachable nodes, for an elastic run whose coordinator was sampled."""
    if snapshot["coordinator"] is None:
        return []
    coordinator = _dict(snapshot["coordinator"])
    leader = (
        f"node {coordinator['leader']}, term {coordinator['term']}"
        if coordinator["has_leader"]
        else "no leader"
    )
    voters = int(str(coordinator["voters"]))
    up = voters - int(str(coordinator["missing"]))
    return [f"leader    {leader}; {up} of {voters} coordinator nodes are up"]


def _abandoned_lines(snapshot: "dict[str, Json]", where: str) -> list[str]:
    if not snapshot.get("is_deserted"):
        return []
    word = "the numbers above are old: no process of this run is alive"
    return [f"dead      {word}; resume it: paceline train --resume {where}"]


def _health(health: "dict[str, Json]") -> str:
    """`100/100`, or the score with its deductions."""
    score = health["score"]
    if score is None:
        return "unknown: no data"
    if not _list(health["penalties"]):
        return f"{score}/100"
    return f"{score}/100: {health['arithmetic']}"


def _loss(loss: "dict[str, Json]") -> str:
    """For a finished run, the final loss that `train` printed."""
    running = _number(loss["smooth"])
    best = _number(loss["best"])
    if loss["final"] is None:
        return f"{running} (best {best})"
    return f"{_number(loss['final'])} final (running mean {running}, best {best})"


def _worker_counts(counts: "dict[str, Json]", *, is_over: bool) -> str:
    """Living workers; for a finished run, how many ended in which state."""
    if not is_over:
        return f"{counts['alive']} of {counts['desired']} alive"
    states = {name: count for name, count in counts.items() if name not in ("alive", "desired")}
    parts = [f"{count} {name}" for name, count in states.items() if count]
    return ", ".join(parts) or "none"


def worker_table(snapshot: "dict[str, Json]") -> list[str]:
    rows = [HEADS, *(row_of(_dict(worker)) for worker in _list(snapshot["workers"]))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def row_of(worker: "dict[str, Json]") -> tuple[str, ...]:
    phases = _dict(worker["phases"])
    memory = worker["memory_bytes"]
    speed = worker["relative_speed"]
    step_s = worker["step_p50_s"]
    state = str(worker["state"])
    return (
        str(worker["worker"]),
        f"{GLYPHS.get(state, '?')} {state}",
        str(worker["step"]),
        str(worker["lag"]),
        "-" if step_s is None else f"{float(str(step_s)) * 1000:.3g} ms",
        "-" if speed is None else f"{float(str(speed)):.2f}",
        _percent(phases.get("wait")),
        _percent(phases.get("comm")),
        _number(worker["staleness_p95"]),
        "-" if memory is None else f"{float(str(memory)) / 1e6:.0f} MB",
        str(worker["restarts"]),
    )


def _alert_lines(snapshot: "dict[str, Json]") -> list[str]:
    lines = []
    for alert in map(_dict, _list(snapshot["alerts"])):
        if alert["state"] == "resolved":
            continue
        left = alert["fires_in_s"]
        when = "" if left is None else f" (in {float(str(left)):.0f} s)"
        lines.append(
            f"{alert['state']}{when} {str(alert['severity']).upper()} {alert['rule']}: {alert['summary']}"
        )
    return ["", *lines] if lines else []


def _dict(value: "Json") -> "dict[str, Json]":
    assert isinstance(value, dict), "a snapshot has an object here"
    return value


def _list(value: "Json") -> "list[Json]":
    assert isinstance(value, list), "a snapshot has a list here"
    return value


def _short(value: "Json") -> str:
    """As `train` prints it: 81.9k."""
    return short_number(value) if isinstance(value, int | float) else "-"


def _number(value: "Json") -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _percent(value: "Json") -> str:
    return f"{value * 100:.0f}%" if isinstance(value, int | float) else "-"


def _change(value: "Json") -> str:
    if not isinstance(value, int | float) or abs(value) < 0.02:
        return ""
    return f", {abs(value) * 100:.0f} % {'more' if value > 0 else 'less'} than before"


def _seconds(value: "Json") -> str:
    if not isinstance(value, int | float):
        return "?"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


@click.command("top")
@optional_run_argument
@click.option("-1", "--once", is_flag=True, help="Print once and exit, as when stdout is not a terminal.")
@click.option("--readonly", is_flag=True, help="Disable the keys that pause or kill workers.")
@common_options
@read_from_anywhere()
def top(session: Session, run: Path | None, once: bool, readonly: bool) -> ExitCode:
    """Watch RUN; the former name of `paceline status --watch`."""
    from paceline.monitoring.view.feed import find_run, read_snapshot

    run_dir = find_run(session.folder, run)
    if once or session.common.json or not sys.stdout.isatty():
        snapshot = read_snapshot(run_dir)
        emit(session, "top", snapshot, lines_of(snapshot, str(run_dir)))
        return ExitCode.OK
    return _watch(run_dir, is_readonly=readonly)


def _watch(run_dir: Path, *, is_readonly: bool) -> ExitCode:
    try:
        from paceline.cli.top_app import TopApp
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"--watch needs {error.name}, which is not installed",
            "pip install 'paceline[tui]', or use: paceline status",
        ) from error
    app = TopApp(run_dir, is_readonly=is_readonly)
    # An exception in the middle of drawing would leave the terminal in raw mode.
    signal.signal(signal.SIGTERM, lambda *_: app.exit(return_code=ExitCode.TERMINATED))
    app.run()
    return ExitCode(app.return_code or 0)
