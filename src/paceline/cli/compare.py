"""`paceline compare`, `report` and `demo`: several modes on equal work, and a report about them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.errors import Terminated
from paceline.cli.options import (
    RunPath,
    SettingsCommand,
    common_options,
    config_options_without,
    given_settings,
    run_names,
)
from paceline.cli.output import emit, print_message
from paceline.comparison.report import formatting
from paceline.comparison.schema import Cell, Comparison
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, Problem
from paceline.core.humanize import short_duration
from paceline.training.session import Common, Session

if TYPE_CHECKING:
    from paceline.comparison.demo import DemoRow
    from paceline.comparison.layout import CompareRequest
    from paceline.comparison.runner import UpcomingRun
    from paceline.comparison.schema import Comparison
    from paceline.k8s.spec.ray import RayTool
    from paceline.plan.codec import Json
    from paceline.training.progress import Watcher
    from paceline.training.run import LocalCommandLauncher


_OWN_SETTINGS = ("mode", "num_workers", "run_dir")  # several modes and numbers, and --out


@click.command("compare", cls=SettingsCommand, context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path), metavar="[SCRIPT]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option(
    "--modes",
    metavar="MODE[,MODE…]",
    help="Modes to compare; the baseline single always runs too. [default: single,ssgd,asgd,ssp,localsgd]",
)
@click.option("--num-workers", metavar="N[,N…]", help="Numbers of workers to compare. [default: 2]")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=3, show_default=True, help="Number of runs per mode."
)
@click.option(
    "--target-loss",
    type=click.FloatRange(min=0, min_open=True),
    help="Training loss for the time-to-target column. [default: the best loss that every run reaches]",
)
@click.option(
    "--target-accuracy",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Accuracy for the time-to-target column; needs --evaluate-every, or run.log in the script.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("comparison"),
    show_default=True,
    help="Folder for runs and report; a partial comparison in it is resumed.",
)
@config_options_without(*_OWN_SETTINGS)
@common_options
def compare(
    session: Session,
    flags: Sequence[RawSetting],
    script: Path | None,
    arguments: Sequence[str],
    modes: str | None,
    num_workers: str | None,
    repeats: int,
    target_loss: float | None,
    target_accuracy: float | None,
    out: Path,
) -> None:
    """Train one task, or your training SCRIPT, under several modes on equal work, and recommend one.

    Runs are interleaved, so that drift of the machine affects all modes alike. Run the same
    command again to resume an interrupted comparison. Settings are those of `train`; with a
    straggler a step takes at least 10 ms, unless --pace is set. Of a script, the numbers of run.log are
    compared; options of paceline come before SCRIPT, those of the script after it.
    """
    # First of all: workers take a second to start, while what follows here is quick.
    with session.start_launcher() as launcher:
        from paceline.comparison.layout import lay_out
        from paceline.comparison.runner import StoppedError, execute, facts_for
        from paceline.training.request import count_samples

        base_request, found = _request(session, flags, modes, num_workers, repeats)
        request = replace(base_request, target_loss=target_loss, target_accuracy=target_accuracy)
        if script is not None:
            request = _with_script(session, request, found, script, arguments, launcher)
        layout = lay_out(
            request,
            facts_for(request),
            config_problems=found,
            count=lambda config: count_samples(config, launcher),
        )
        folder = session.folder / out
        print_message(
            session, f"comparing {', '.join(layout.contenders)}: {len(layout.turns)} runs, in {folder}"
        )
        for remark in layout.remarks:
            print_message(session, f"note: {remark}")
        try:
            comparison = execute(
                layout, request, folder, lambda coming: _watcher(session, coming), launcher=launcher
            )
        except StoppedError as stopped:
            if stopped.by != "SIGINT":
                raise Terminated(stopped.by) from stopped
            raise
    _show_comparison(session, comparison, folder)


def _request(
    session: Session,
    flags: Sequence[RawSetting],
    modes: str | None,
    num_workers: str | None,
    repeats: int,
) -> "tuple[CompareRequest, list[Problem]]":
    from paceline.comparison.layout import DEFAULT_MODES, CompareRequest
    from paceline.config.load import from_set_flags, load

    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = loaded.config
    named = (config.mode,) if config.mode is not None else DEFAULT_MODES
    request = CompareRequest(
        config=config,
        modes=named if modes is None else tuple(part.strip() for part in modes.split(",") if part.strip()),
        worker_counts=(config.num_workers or 2,) if num_workers is None else _counts(num_workers),
        repeats=repeats,
    )
    return request, [*sets.problems, *loaded.problems]


def compare_on_ray(session: Session, words: Sequence[str]) -> "RayTool":
    """`compare WORDS` as the command of a job on a Ray cluster, with the plans of its runs.

    Raises ConfigError, as the command itself would, for settings that the cluster's pods do not have.
    """
    from paceline.comparison.layout import lay_out
    from paceline.config.values import RawSetting
    from paceline.k8s.spec.command import SAMPLES_ELSEWHERE, facts_in_pods
    from paceline.k8s.spec.ray import RayTool

    context = compare.make_context("paceline compare", list(words), obj=session)
    params = context.params
    flags = given_settings(params, *_OWN_SETTINGS)
    problems = _elsewhere_problems(params, flags)
    if problems:
        raise ConfigError(problems)
    on_ray = {"launcher": "ray", "address": "auto"}
    flags += [RawSetting(key=key, raw=value, where=f"--{key}") for key, value in on_ray.items()]
    alone = Session(folder=session.folder, common=Common(sets=params["sets"]))
    request, found = _request(alone, flags, params["modes"], params["num_workers"], params["repeats"])
    facts = facts_in_pods(request.config)
    named = frozenset(mode.partition(":")[0] for mode in request.modes if ":" in mode)
    facts = replace(facts, modules=facts.modules | named)
    layout = lay_out(request, facts, config_problems=found, count=lambda _: SAMPLES_ELSEWHERE)
    launched = [word for key, value in on_ray.items() for word in (f"--{key}", value)]
    return RayTool(
        name="compare",
        words=("paceline", "compare", *launched, *words),
        plans=tuple(layout.contenders.values()),
    )


def _elsewhere_problems(params: "dict[str, Any]", flags: "Sequence[RawSetting]") -> list[Problem]:
    problems: list[Problem] = []
    if params["script"] is not None:
        message = (
            f"a comparison of the script {params['script']} starts it first, which only works where it runs"
        )
        hint = "run it in one pod: --target job --command -- paceline compare …"
        problems.append(Problem(message, hint, "SCRIPT"))
    if params["config"] is not None:
        hint = "write its settings as flags after compare"
        problems.append(Problem("a settings file is not in the pods", hint, "--config"))
    for flag in flags:
        if flag.key in ("launcher", "address"):
            problems.append(Problem(f"{flag.key} is set by the job", "leave it out", flag.where))
    return problems


def _with_script(
    session: Session,
    request: "CompareRequest",
    found: "list[Problem]",
    script: Path,
    arguments: Sequence[str],
    launcher: "LocalCommandLauncher",
) -> "CompareRequest":
    from paceline.comparison.scripts import probe_for_rounds, script_problems

    file = session.folder / script
    problems = [*found, *script_problems(request.config, file)]
    if problems:
        raise ConfigError(problems)
    print_message(session, f"starting {script} alone, for its samples and its length")
    compared = probe_for_rounds(
        request.config,
        file,
        arguments,
        session.folder,
        launcher,
        worker_counts=request.worker_counts,
        repeats=request.repeats,
    )
    return replace(request, script=compared)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        what = f"num_workers is {text!r}, but it must be whole numbers"
        hint = "write for example --num-workers 4 or --num-workers 2,4"
        raise ConfigError([Problem(what, hint, "--num-workers")]) from None


def _watcher(session: Session, coming: "UpcomingRun") -> "Watcher":
    from paceline.training.progress import SilentWatcher

    left = "" if coming.left_s is None else f", about {short_duration(coming.left_s)} left"
    print_message(session, f"  {coming.number}/{coming.count}  {coming.turn.name}{left}")
    return SilentWatcher() if session.is_silent else _NotesOnly(session)


class _NotesOnly:
    """Of a run among many only changes of state are shown."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def progress(self, progress: object) -> None: ...

    def note(self, text: str) -> None:
        print_message(self._session, f"        {text}")


def _show_comparison(session: Session, comparison: "Comparison", folder: Path) -> None:
    from paceline.comparison.schema import finite
    from paceline.plan.codec import to_json

    warnings = [f"warning: {text}" for text in comparison.warnings]
    verdict = [comparison.verdict.headline, *(f"  {reason}" for reason in comparison.verdict.reasons)]
    lines = [*comparison_table(comparison), "", *warnings, *verdict, f"report: {folder / 'report.html'}"]
    emit(session, "compare", {"out": str(folder), "comparison": finite(to_json(comparison))}, lines)


def comparison_table(comparison: Comparison) -> list[str]:
    names = formatting.names(comparison)
    width = max(14, *(len(name) + 2 for name in names.values()))
    quality = "quality" if comparison.quality is None else formatting.quality_name(comparison.quality)
    head = f"{'mode':<{width}}{'seconds':>9}{'speedup':>9}  {'95 %':<15}{'efficiency':>10}"
    head += f"{quality[:14]:>15}{'difference':>12}{'to target':>11}{'MB sent':>10}{'stale':>7}"
    lines = [head, "-" * len(head)]
    return lines + [
        _comparison_line(names[label], width, cell, comparison) for label, cell in comparison.cells.items()
    ]


def _comparison_line(name: str, width: int, cell: Cell, comparison: Comparison) -> str:
    mark = "*" if cell.label == comparison.verdict.use else " "
    value = None if cell.quality is None else cell.quality.value
    stale = "-" if cell.staleness is None else f"{cell.staleness.mean:.2f}"
    reached = "-" if cell.target_s is None else f"{cell.target_s:.2f}s"
    return (
        f"{mark + name:<{width}}{cell.seconds:>9.2f}{cell.speedup.value:>8.2f}x"
        f"  {formatting.between(cell.speedup):<15}{cell.efficiency.value:>10.0%}"
        f"{formatting.quality(value, comparison.quality):>15}"
        f"{formatting.quality_difference(cell.quality_difference, comparison.quality):>12}"
        f"{reached:>11}{cell.bytes_out / 1e6:>10.2f}{stale:>7}"
    )


@click.command("demo")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder for the runs, one subfolder per mode.",
)
@common_options
def demo(session: Session, run_dir: Path) -> None:
    """Train XOR under every mode with one 3x straggler, on equal work, and compare."""
    from paceline.launchers.local import LocalLauncher

    with LocalLauncher() as launcher:
        from paceline.comparison import demo as the_demo
        from paceline.plan.catalog import MODES
        from paceline.plan.codec import to_json
        from paceline.training.progress import SilentWatcher

        print_message(session, the_demo.INTRODUCTION)

        def watch(mode: str) -> "Watcher":
            print_message(session, f"  {mode} ({MODES[mode].title}) …")
            return SilentWatcher()

        rows = the_demo.run_demo(session.folder / run_dir, watch, launcher=launcher)
        meaning = the_demo.meaning(rows)
    data: list[Json] = [to_json(row) for row in rows]
    emit(session, "demo", {"rows": data, "meaning": meaning}, [*demo_table(rows), "", meaning])


def demo_table(rows: "list[DemoRow]") -> list[str]:
    """One line per mode, at most 100 columns wide."""
    from paceline.plan.catalog import MODES

    heads = f"{'mode':<8}{'seconds':>8}{'samples/s':>10}{'vs ssgd':>8}{'wait':>6}{'MB sent':>8}{'stale':>7}"
    heads += f"{'accuracy':>9}"
    lines = [f"{heads}  strategy", "-" * 100]
    for row in rows:
        stale = "-" if row.staleness is None else f"{row.staleness:.2f}"
        waiting = "-" if row.waiting is None else f"{row.waiting:.0%}"
        lines.append(
            f"{row.mode:<8}{row.seconds:>8.2f}{row.samples_per_s:>10,.0f}{row.versus_ssgd:>7.2f}x"
            f"{waiting:>6}{row.megabytes:>8.2f}{stale:>7}{row.accuracy:>9.1%}  {MODES[row.mode].title}"
        )
    return [
        *lines,
        "wait: share of the workers' time; MB sent: by all workers; stale: mean number of updates that",
        "other workers made between reading the parameters and applying the gradient.",
    ]


@click.command("report")
@click.argument("runs", shell_complete=run_names, nargs=-1, required=True, type=RunPath(), metavar="RUN…")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for report.html and plots/. [default: the run folder, or ./report for several runs]",
)
@common_options
def report(session: Session, runs: tuple[Path, ...], out: Path | None) -> None:
    """Write an HTML report of one finished run, of several side by side, or of a comparison."""
    from paceline.comparison.report.runs import report as make_report

    folders = [session.folder / run for run in runs]
    if out is not None:
        target = session.folder / out
    elif len(runs) == 1:
        target = folders[0]
    else:
        target = session.folder / "report"
    figures = make_report(folders, target)
    path = str(target / "report.html")
    emit(
        session,
        "report",
        {"report": path, "figures": [figure.name for figure in figures]},
        [f"report: {path}"],
    )
