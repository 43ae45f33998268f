"""`paceline tune`: hyper-parameter search with Ray Tune."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import SettingsCommand, common_options, config_options_without
from paceline.cli.output import emit, print_message
from paceline.config.environment import Facts, probe_machine
from paceline.config.load import LoadedConfig, from_set_flags, load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ExitCode, Problem, SearchError, TrainingError
from paceline.plan.decide import task_of, task_options_of
from paceline.training.request import count_samples
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json
    from paceline.training.run import Launcher
    from paceline.tune.experiment import TuneFolder, TuneRequest, Tuning
    from paceline.tune.runner import Outcome


@click.command("tune", cls=SettingsCommand)
@click.option(
    "--search",
    "searches",
    multiple=True,
    metavar="KEY=VALUES",
    help="Search space: lr=log:0.001..1, batch_size=8..64, mode=ssgd,localsgd, task_option.hidden=8,16.",
)
@click.option(
    "--trials", type=click.IntRange(1, 10_000), help="Number of trials. [default: 10, or all combinations]"
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Maximum number of concurrent trials.",
)
@click.option(
    "--metric",
    metavar="NAME[:min|max]",
    help="Metric to minimize; accuracies are maximized. [default: valid_loss, or test_loss]",
)
@click.option(
    "--scheduler",
    type=click.Choice(["asha", "none"]),
    help="Early-stopping scheduler. [default: asha, if trials are evaluated during training]",
)
@click.option(
    "--grace", type=click.IntRange(1), help="Evaluations before a trial may be stopped. [default: 1]"
)
@click.option(
    "--reduction",
    type=click.FloatRange(1, min_open=True),
    help="Reduction factor: one of this many trials continues past a rung. [default: 3]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the search. [default: tuning]")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="DIR", help="Folder of a search to resume."
)
@click.option("--address", default="local", show_default=True, help="Ray address: local, auto or HOST:PORT.")
@click.option("--dry-run", "-n", is_flag=True, help="Print the trials and exit.")
@config_options_without("address", "placement", "restarts", "export", "run_dir", "save_dir")
@common_options
def tune(
    session: Session,
    flags: Sequence[RawSetting],
    searches: tuple[str, ...],
    trials: int | None,
    parallel: int,
    metric: str | None,
    scheduler: str | None,
    grace: int | None,
    reduction: float | None,
    out: Path | None,
    resume: Path | None,
    address: str,
    dry_run: bool,
) -> ExitCode:
    """Search hyperparameters with Ray Tune, with any mode inside each trial.

    Every setting of `train` and every option of the task can be searched. Each trial is a
    run; bad ones are stopped early (ASHA). The best settings are printed, and written to a
    file for `paceline train --config`. To resume: paceline tune --resume DIR.
    """
    given = {
        "--search": searches, "--trials": trials, "--metric": metric, "--scheduler": scheduler,
        "--grace": grace, "--reduction": reduction, "--out": out,
    }  # fmt: skip
    if resume is not None:
        _refuse_changes([name for name, value in given.items() if value], flags, session, resume)
    folder = session.folder / (resume or out or Path("tuning"))
    how = _How(folder=folder, address=address, parallel=parallel, dry_run=dry_run)
    if resume is not None:
        return _resume(session, how)
    request, problems = _request(searches, trials, metric, scheduler, grace, reduction)
    return _start(session, flags, request, problems, how)


def _refuse_changes(given: list[str], flags: Sequence[RawSetting], session: Session, resume: Path) -> None:
    changed = [*given, *(flag.where for flag in flags), *(["--set"] if session.common.sets else [])]
    if changed or session.common.config is not None:
        message = (
            f"{', '.join([*changed, *(['--config'] if session.common.config else [])])} cannot be changed"
        )
        hint = f"leave it out (the settings are in {resume}/tune.json), or start a new search"
        raise SearchError([Problem(f"{message} when a search is resumed", hint, "--resume")])


def _request(
    searches: Sequence[str],
    trials: int | None,
    metric: str | None,
    scheduler: str | None,
    grace: int | None,
    reduction: float | None,
) -> "tuple[TuneRequest, list[Problem]]":
    from paceline.tune.experiment import TuneRequest
    from paceline.tune.search_space import read_searches

    parsed, problems = read_searches(searches)
    request = TuneRequest(
        searches=parsed,
        trials=trials,
        metric=metric,
        wants_asha=None if scheduler is None else scheduler == "asha",
        grace=grace or 1,
        reduction=reduction or 3.0,
    )
    return request, problems


def _start(
    session: Session,
    flags: Sequence[RawSetting],
    request: "TuneRequest",
    problems: list[Problem],
    how: "_How",
) -> ExitCode:
    from paceline.tune.experiment import TuneFolder
    from paceline.tune.layout import lay_out

    folder = TuneFolder(how.folder)
    if not how.dry_run:
        folder.check_is_free()
    with ExitStack() as resources:
        inputs = SessionInputs(session, flags, resources)
        tuning, remarks = lay_out(request, inputs, config_problems=[*problems, *inputs.problems])
    for remark in remarks:
        print_message(session, f"note: {remark}")
    return _run(session, tuning, folder, how, is_new=True)


def _resume(session: Session, how: "_How") -> ExitCode:
    from paceline.tune.experiment import TuneFolder

    folder = TuneFolder(how.folder)
    return _run(session, folder.tuning(), folder, how, is_new=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    folder: Path
    address: str
    parallel: int
    dry_run: bool


def _run(session: Session, tuning: "Tuning", folder: "TuneFolder", how: _How, *, is_new: bool) -> ExitCode:
    from paceline.cli.tune_output import TuneProgress
    from paceline.tune.runner import check_address
    from paceline.tune.runner import tune as carry_out

    if how.dry_run:
        return _show_plan(session, tuning)
    check_address(how.address)
    stops = "" if tuning.asha is None else ", poor ones stopped early (ASHA)"
    print_message(
        session, f"tuning {', '.join(tuning.searches)}: {len(tuning.trials)} trials in {folder.path}{stops}"
    )
    watcher = TuneProgress(session, tuning)
    outcome = carry_out(tuning, folder, watcher, address=how.address, parallel=how.parallel, is_new=is_new)
    return _conclude(session, outcome, folder.path)


def _show_plan(session: Session, tuning: "Tuning") -> ExitCode:
    from paceline.cli.tune_output import trial_table

    count = len(tuning.trials)
    listed: list[Json] = [{"number": t.number, "settings": {**t.settings}} for t in tuning.trials]
    data: dict[str, Json] = {"trials": listed, "metric": list(tuning.metric), "asha": tuning.asha is not None}
    lines = [*trial_table(tuning, {}), "", f"{count} trials, {_goal(tuning)}; dry run: nothing was started"]
    emit(session, "tune.plan", data, lines)
    return ExitCode.OK


def _goal(tuning: "Tuning") -> str:
    return f"{'smallest' if tuning.lower_is_better else 'largest'} {' or '.join(tuning.metric)}"


def _conclude(session: Session, outcome: "Outcome", path: Path) -> ExitCode:
    from paceline.cli.tune_output import trial_table
    from paceline.plan.codec import to_json
    from paceline.tune.experiment import Status, stopped_ahead

    tuning = outcome.tuning
    best = outcome.best
    lost = [number for number, record in outcome.records.items() if record.status is Status.LOST]
    if best is None and not lost and not outcome.stopped_by:
        why = next((record.why for record in outcome.records.values() if record.why), "")
        what = f"no trial finished with a {' or '.join(tuning.metric)}{f': {why}' if why else ''}"
        raise TrainingError(what, f"see {path}/trials.csv; try smaller ranges, or --scheduler none")
    again = f"paceline tune --resume {path}"
    lines = trial_table(tuning, outcome.records, best)
    if best is not None:
        record = outcome.records[best.number]
        lines += ["", f"best       trial {best.number}: {best.description}"]
        lines += [f"           {record.metric} {record.value:.6g}"]
        lines += [f"next       paceline train --config {path / 'best.yaml'}"]
        if (ahead := stopped_ahead(tuning, outcome.records, best)) is not None:
            value = outcome.records[ahead.number].value
            lines += [
                f"note       trial {ahead.number} was stopped early at {value:.6g}, and the best got worse"
                " later: try --scheduler none, or a larger --grace"
            ]
    if lost or outcome.stopped_by:
        lines += [f"resume     {again}"]
    records: list[Json] = [to_json(record) for record in outcome.records.values()]
    data: dict[str, Json] = {
        "out": str(path),
        "best": None if best is None else {"number": best.number, "settings": {**best.settings}},
        "best_file": None if best is None else str(path / "best.yaml"),
        "trials": records,
        "stopped_by": outcome.stopped_by or None,
    }
    emit(session, "tune", data, lines)
    if outcome.stopped_by:
        return ExitCode.INTERRUPTED if outcome.stopped_by == "SIGINT" else ExitCode.TERMINATED
    return ExitCode.TRAINING_FAILED if lost else ExitCode.OK


class SessionInputs:
    """`Environment` of tune/layout.py, read from the command's flags and this machine.

    A process with torch is started only if samples must be counted, or a searched option of the task must
    be tried; `resources` closes it.
    """

    def __init__(self, session: Session, flags: Sequence[RawSetting], resources: ExitStack) -> None:
        sets = from_set_flags(session.common.sets)
        self.problems = sets.problems
        self._session = session
        self._flags = (*flags, *sets.entries)
        self._resources = resources
        self._launcher: Launcher | None = None
        self._facts: dict[tuple[str | None, ...], Facts] = {}
        self._counted: dict[str, int] = {}

    def read(self, drawn: Sequence[RawSetting]) -> LoadedConfig:
        """The user's settings, with these on top."""
        common = self._session.common
        return load(flags=[*self._flags, *drawn], variables=self._session.variables, file=common.config)

    def facts(self, config: TrainConfig) -> Facts:
        named = (config.task, config.mode, config.aggregate)
        if named not in self._facts:
            self._facts[named] = probe_machine(config)
        return self._facts[named]

    def count(self, config: TrainConfig) -> int:
        """Training samples of its task; its own error if that cannot be built."""
        key = repr((task_of(config), sorted(task_options_of(config).items()), config.seed, config.dtype))
        if key not in self._counted:
            if self._launcher is None:
                self._launcher = self._resources.enter_context(self._session.start_launcher())
            self._counted[key] = count_samples(config, self._launcher)
        return self._counted[key]
