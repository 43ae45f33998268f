"""`paceline.compare`: `paceline compare` as a function that returns a `Comparison`."""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.api.arguments import hints_in_traceback, import_name, parse_kwargs
from paceline.api.result import html_table
from paceline.api.run import Arguments, script_file
from paceline.comparison.layout import DEFAULT_MODES, DEFAULT_REPEATS, CompareRequest
from paceline.comparison.runner import StoppedError, UpcomingRun
from paceline.comparison.runner import compare as run_comparison
from paceline.comparison.schema import Cell, Estimate
from paceline.comparison.schema import Comparison as Report
from paceline.comparison.scripts import probe_for_rounds, script_problems
from paceline.config.load import load
from paceline.core.errors import ConfigError, Problem
from paceline.launchers.local import LocalLauncher
from paceline.training.progress import Progress, SilentWatcher, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison: speed and quality of every mode and number of workers, on equal work."""

    folder: Path  # of the runs, comparison.json, comparison.csv, plots and the report
    report: Path  # report.html in it: one page, without the network
    use: str  # label of the recommended cell
    headline: str  # the recommendation in a sentence
    reasons: tuple[str, ...]  # of the recommendation
    warnings: tuple[str, ...]  # caveats of the numbers
    cells: dict[str, Cell]  # by label, the baseline `single` first
    details: Report  # the content of comparison.json

    def _repr_html_(self) -> str:
        heads = ("", "seconds", "speedup", "efficiency", "quality", "staleness")
        rows = [
            (
                label,
                f"{cell.seconds:.3g}",
                _interval(cell.speedup),
                _interval(cell.efficiency),
                "" if cell.quality is None else _interval(cell.quality),
                "" if cell.staleness is None else f"{cell.staleness.mean:.3g}",
            )
            for label, cell in self.cells.items()
        ]
        return html_table(self.headline, heads, [*rows, ("report", str(self.report), "", "", "", "")])


def compare(
    task: str | Path | type | Callable[..., object] = "xor",
    *,
    arguments: Arguments = (),
    modes: Sequence[str | type] = DEFAULT_MODES,
    workers: int | Sequence[int] = 2,
    repeats: int = DEFAULT_REPEATS,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
    out: str | Path = "comparison",
    progress: bool = True,
    config: str | Path | None = None,
    **settings: object,
) -> Comparison:
    """Train one task, or your own loop, under several modes on equal work, and recommend one with reasons.

    Arguments:

    - `task`: a built-in name, `"module:Class"`, a class that a module defines, a training script
      (`"train.py"`), or a function as for `paceline.run`.
    - `arguments`: of the script, or further keyword arguments of the function.
    - `modes`: the modes to compare, named like `task`. The baseline `single` always runs too.
    - `workers`: the number of workers, or several numbers.
    - `repeats`: runs of each combination; three or more give intervals.
    - `target_loss`, `target_accuracy`: also measure the time until this training loss or accuracy.
    - `out`: the folder of the runs and the report. A call with the same arguments resumes an interrupted one.
    - `progress`: show the progress on stderr.
    - `config`: a YAML or TOML file with more settings.
    - `settings`: those of docs/reference/config.md, by the same names.

    Returns the comparison, which is also written to `out`.

    Raises ConfigError with every problem, and KeyboardInterrupt after Ctrl-C; finished runs stay.
    """
    with hints_in_traceback(), LocalLauncher(import_from=sys.path) as launcher:
        own = _own_loop(task, arguments)
        named_task = {} if own is not None else {"task": import_name(task, "task")}
        flags = parse_kwargs("compare", {**named_task, **settings})
        loaded = load(flags=flags, file=None if config is None else Path(config))
        problems = [*loaded.problems, *_single_run_problems(settings)]
        named = modes.split(",") if isinstance(modes, str) else modes
        request = CompareRequest(
            config=loaded.config,
            modes=tuple(import_name(mode, "mode") for mode in named),
            worker_counts=(workers,) if isinstance(workers, int) else tuple(workers),
            repeats=repeats,
            target_loss=target_loss,
            target_accuracy=target_accuracy,
        )
        folder = Path(out).resolve()
        if own is not None:
            request = _with_script(request, problems, own, launcher)
        watch = _announce if progress else _silent
        try:
            comparison = run_comparison(request, folder, watch, launcher=launcher, config_problems=problems)
        except StoppedError as stopped:
            if stopped.by in ("SIGTERM", "SIGHUP"):
                signal.raise_signal(signal.Signals[stopped.by])  # to the previous handler
            raise
    return Comparison(
        folder=folder,
        report=folder / "report.html",
        use=comparison.verdict.use,
        headline=comparison.verdict.headline,
        reasons=comparison.verdict.reasons,
        warnings=comparison.warnings,
        cells=comparison.cells,
        details=comparison,
    )


def _own_loop(
    task: str | Path | type | Callable[..., object], arguments: Arguments
) -> tuple[Path, tuple[str, ...]] | None:
    """The script and its arguments; None: a task is trained."""
    is_script = isinstance(task, Path) or (isinstance(task, str) and task.endswith(".py"))
    is_function = not isinstance(task, str | Path | type) and callable(task)
    return script_file(task, arguments, Path("runs")) if is_script or is_function else None


def _with_script(
    request: CompareRequest,
    problems: Sequence[Problem],
    own: tuple[Path, tuple[str, ...]],
    launcher: LocalLauncher,
) -> CompareRequest:
    script, words = own
    found = [*problems, *script_problems(request.config, script)]
    if found:
        raise ConfigError(found)
    compared = probe_for_rounds(
        request.config,
        script,
        words,
        Path(),
        launcher,
        worker_counts=request.worker_counts,
        repeats=request.repeats,
    )
    return replace(request, script=compared)


def _single_run_problems(settings: Mapping[str, object]) -> list[Problem]:
    plural = {"mode": "modes=['ssgd', 'asgd']", "num_workers": "workers=[2, 4]"}
    return [
        Problem(f"{name} is a setting of one run", f"write {instead}", f"compare({name}=…)")
        for name, instead in plural.items()
        if settings.get(name) is not None
    ]


def _silent(_: UpcomingRun) -> Watcher:
    return SilentWatcher()


def _announce(upcoming: UpcomingRun) -> Watcher:
    left = "" if upcoming.left_s is None else f", about {upcoming.left_s:.0f} s left"
    print(f"{upcoming.number}/{upcoming.count} {upcoming.turn.name}{left}", file=sys.stderr, flush=True)
    return _NotesOnly()


class _NotesOnly:
    """Shows the notes of a run, but not its progress."""

    def progress(self, progress: Progress) -> None: ...

    def note(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
