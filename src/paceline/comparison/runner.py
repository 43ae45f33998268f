"""Comparison runner: every mode on equal work, in turns, and the verdict.

The folder: `runs/` with a run folder per turn, `comparison.json` and `.csv`,
`report.html`, `plots/`, and a results file per contender. What is finished is
not repeated: the same command resumes where it was interrupted.
See docs/guides/compare.md.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import __version__
from paceline.comparison.assess import assess, quality_of, scaling_of, target_of
from paceline.comparison.layout import CompareRequest, Layout, Turn, lay_out
from paceline.comparison.measurement import Measured, inspect_machine, is_finished, read_run
from paceline.comparison.schema import Comparison, Machine
from paceline.comparison.verdict import describe_method, find_warnings, judge
from paceline.config.environment import Facts, probe_machine
from paceline.core.clock import monotonic_s
from paceline.core.disk import LOCK_NAME, exclusive, write_durably
from paceline.core.errors import DamagedRecordError, Problem, RunFolderError
from paceline.plan.codec import decode, plan_hash, to_json
from paceline.plan.plan import Plan
from paceline.plan.resolve import BASELINE
from paceline.training.progress import Watcher
from paceline.training.request import count_samples
from paceline.training.run import LocalCommandLauncher, train

# `compare.json` says which runs belong to it, by the hashes of their plans, and on
# which machine each session ran something. More repeats or more modes may be added; a run
# that is there with another plan, or that is none of ours, is refused.

FOLDER_SCHEMA = "paceline.compared-runs/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    plans: dict[str, str]  # by name of the run, the hash of its plan
    machines: tuple[Machine, ...]  # of each session
    schema: str = FOLDER_SCHEMA


class CompareFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, turn: Turn) -> Path:
        return self.path / "runs" / turn.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """FolderInUseError while another command works on this comparison."""
        if self.path.exists() and not self.path.is_dir():
            raise self._taken()
        self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path):
            yield

    def begin(self, layout: Layout) -> None:
        """Raises ConfigError if the folder holds something else."""
        plans = {turn.name: plan_hash(turn.plan) for turn in layout.turns}
        before = self._record()
        if before is not None:
            changed = [name for name, known in before.plans.items() if plans.get(name) != known]
            if changed:
                message = f"{self.path} holds another comparison: {_listed(changed)} differ from the request"
                hint = "run the same command to resume it, or name another folder with --out"
                raise RunFolderError([Problem(message, hint, "--out")])
        elif self.path.exists() and any(path.name != LOCK_NAME for path in self.path.iterdir()):
            raise self._taken()
        (self.path / "runs").mkdir(parents=True, exist_ok=True)
        self._write(_Record(plans=plans, machines=() if before is None else before.machines))

    def note_machine(self, machine: Machine) -> None:
        """Record the machine of the runs from here on; reading finished runs changes nothing."""
        record = self._existing_record()
        self._write(replace(record, machines=(*record.machines, machine)))

    def machines(self) -> tuple[Machine, ...]:
        return self._existing_record().machines

    def write(self, comparison: Comparison) -> None:
        from paceline.comparison.report.comparison import write_all

        write_all(comparison, self.path)

    def _taken(self) -> RunFolderError:
        message = f"{self.path} is not empty, and holds no comparison to resume"
        return RunFolderError([Problem(message, "name a new folder with --out", "--out")])

    def _existing_record(self) -> _Record:
        record = self._record()
        assert record is not None, "a comparison begins with its record"
        return record

    def _write(self, record: _Record) -> None:
        write_durably(self.path / "compare.json", [(json.dumps(to_json(record), indent=2) + "\n").encode()])

    def _record(self) -> _Record | None:
        path = self.path / "compare.json"
        try:
            record = decode(_Record, path.read_text(encoding="utf-8"), schema=FOLDER_SCHEMA)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise DamagedRecordError(
                f"{path} cannot be read: {error}", "name another folder with --out"
            ) from error
        assert isinstance(record, _Record), "decode(_Record, …) builds one"
        return record


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingRun:
    """Data that a watcher receives before each run."""

    turn: Turn
    number: int  # from 1, of all turns
    count: int
    left_s: float | None  # a guess; None: nothing is known yet


WatcherFactory = Callable[[UpcomingRun], Watcher]


class StoppedError(KeyboardInterrupt):
    """The comparison was requested to stop; finished runs stay, and the same command resumes it."""

    def __init__(self, by: str) -> None:
        super().__init__(f"stopped by {by}")
        self.by = by  # SIGINT or SIGTERM


def compare(
    request: CompareRequest,
    out: Path,
    watch: WatcherFactory,
    *,
    launcher: LocalCommandLauncher,
    config_problems: Sequence[Problem] = (),
) -> Comparison:
    """Run what is not finished yet, write everything into `out`, and answer with what was found.

    `config_problems` are problems from reading the settings; ConfigError reports them with all others.
    """
    layout = lay_out(
        request,
        facts_for(request),
        config_problems=config_problems,
        count=lambda config: count_samples(config, launcher),
    )
    return execute(layout, request, out, watch, launcher=launcher)


def facts_for(request: CompareRequest) -> Facts:
    """Facts of this machine, with the modules of all modes."""
    config = request.config
    probed = [probe_machine(replace(config, mode=mode)) for mode in (*request.modes, None)]
    return replace(probed[-1], modules=frozenset[str]().union(*(facts.modules for facts in probed)))


def execute(
    layout: Layout,
    request: CompareRequest,
    out: Path,
    watch: WatcherFactory,
    *,
    launcher: LocalCommandLauncher,
) -> Comparison:
    if request.script is None:
        num_samples: int | None = count_samples(request.config, launcher)  # a task without data fails here
    else:
        num_samples = request.script.num_samples
    folder = CompareFolder(out)
    with folder.locked():
        return _execute(layout, request, folder, watch, launcher, num_samples)


def _execute(
    layout: Layout,
    request: CompareRequest,
    folder: CompareFolder,
    watch: WatcherFactory,
    launcher: LocalCommandLauncher,
    num_samples: int | None,
) -> Comparison:
    folder.begin(layout)
    waiting = [turn for turn in layout.turns if not is_finished(folder.run(turn), turn.plan)]
    if waiting:
        _check_room([turn.plan for turn in waiting])
        folder.note_machine(inspect_machine())
    started_s = monotonic_s()
    done = len(layout.turns) - len(waiting)
    for number, turn in enumerate(waiting):
        spent_s = monotonic_s() - started_s
        left_s = spent_s / number * (len(waiting) - number) if number else None
        coming = UpcomingRun(turn=turn, number=done + number + 1, count=len(layout.turns), left_s=left_s)
        _run(folder.run(turn), turn, watch(coming), launcher)
    comparison = conclude(layout, request, folder, num_samples=num_samples)
    folder.write(comparison)
    return comparison


def _check_room(plans: Sequence[Plan]) -> None:
    """A cluster that is too small for any of the runs is reported before the first one."""
    if any(plan.ray is not None for plan in plans):
        from paceline.launchers.ray.launcher import check_capacity  # brings Ray, which other runs do not need

        check_capacity(plans)


def _run(place: Path, turn: Turn, watcher: Watcher, launcher: LocalCommandLauncher) -> None:
    if place.exists():
        shutil.rmtree(place)  # an incomplete run is no result; `begin` has checked that Paceline made it
    result = train(turn.plan, place, watcher, warm=launcher)
    if result["stopped_early"] or "stopped_by" in result:
        raise StoppedError(str(result.get("stopped_by", "SIGINT")))


def conclude(
    layout: Layout, request: CompareRequest, folder: CompareFolder, *, num_samples: int | None
) -> Comparison:
    """Comparison from the run folders alone; `num_samples` are those of the task, for counting epochs."""
    runs: dict[str, list[Measured]] = {label: [] for label in layout.contenders}
    for turn in sorted(layout.turns, key=lambda turn: turn.round):
        runs[turn.label].append(read_run(folder.run(turn)))
    quality = quality_of(runs)
    target = target_of(runs, wanted_loss=request.target_loss, wanted_accuracy=request.target_accuracy)
    cells = assess(runs, BASELINE, quality, target, training_samples=num_samples)
    machines = folder.machines()
    base = layout.contenders[BASELINE]
    widest = max(layout.contenders.values(), key=lambda plan: plan.num_workers)
    started = sorted((run.started_unix_s, run.name) for group in runs.values() for run in group)
    return Comparison(
        paceline=__version__,
        task=base.task if request.script is None else request.script.name,
        baseline=BASELINE,
        repeats=request.repeats,
        steps=base.steps,
        samples=base.total_samples,
        samples_per_step=base.global_batch,
        pace_s=widest.pace_s,
        quality=quality,
        target=target,
        cells=cells,
        scaling=scaling_of(cells),
        verdict=judge(cells, BASELINE, quality, target),
        warnings=tuple(find_warnings(cells, layout.contenders, BASELINE, quality, machines)),
        how=describe_method(layout.contenders, BASELINE, quality, target, num_samples),
        machine=_busiest(machines),
        order=tuple(name for _, name in started),
    )


def _busiest(machines: Sequence[Machine]) -> Machine:
    return max(machines, key=lambda machine: machine.load)
