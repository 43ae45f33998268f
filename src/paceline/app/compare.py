"""What is distributing worth here? Runs everybody on equal work, in turns, and says who to take.

The folder: `runs/` with a run folder per turn, `comparison.json` and `.csv`,
`report.html`, `plots/`, and a results file per contender. What is finished is
not repeated: the same command goes on where it was interrupted.
See docs/guides/compare.md.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import __version__
from paceline.app.compare_folder import CompareFolder
from paceline.app.compare_plan import CompareRequest, Layout, Turn, lay_out
from paceline.app.machine import look_at_machine
from paceline.app.progress import Watcher
from paceline.app.train import count_samples, train
from paceline.clock import monotonic_s
from paceline.config.facts import Facts, look_up_facts
from paceline.errors import Problem
from paceline.launchers.local import LocalLauncher
from paceline.plan.per_mode import BASELINE
from paceline.plan.plan import Plan
from paceline.report.assess import assess, quality_of, scaling_of, target_of
from paceline.report.caveats import how_of, warnings_of
from paceline.report.comparison import Comparison, Machine
from paceline.report.measured import Measured, is_finished, read_run
from paceline.report.verdict import judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """What a watcher is told before each run."""

    turn: Turn
    number: int  # from 1, of all turns
    count: int
    left_s: float | None  # a guess; None: nothing is known yet


Watch = Callable[[Coming], Watcher]


class StoppedError(KeyboardInterrupt):
    """Somebody asked the comparison to stop; what is finished stays, and the same command goes on."""

    def __init__(self, by: str) -> None:
        super().__init__(f"stopped by {by}")
        self.by = by  # SIGINT or SIGTERM


def compare(
    request: CompareRequest,
    out: Path,
    watch: Watch,
    *,
    launcher: LocalLauncher,
    found: Sequence[Problem] = (),
) -> Comparison:
    """Run what is not finished yet, write everything into `out`, and answer with what was found.

    `found` are problems from reading the settings; ConfigError reports them with all others.
    """
    layout = lay_out(
        request,
        facts_for(request),
        found=found,
        count=lambda config: count_samples(config, launcher),
    )
    return carry_out(layout, request, out, watch, launcher=launcher)


def facts_for(request: CompareRequest) -> Facts:
    """Of this machine, with the modules of all modes."""
    config = request.config
    looked = [look_up_facts(replace(config, mode=mode)) for mode in (*request.modes, None)]
    return replace(looked[-1], modules=frozenset[str]().union(*(facts.modules for facts in looked)))


def carry_out(
    layout: Layout, request: CompareRequest, out: Path, watch: Watch, *, launcher: LocalLauncher
) -> Comparison:
    num_samples = count_samples(request.config, launcher)  # a task without its data says so here
    folder = CompareFolder(out)
    with folder.locked():
        return _carry_out(layout, request, folder, watch, launcher, num_samples)


def _carry_out(
    layout: Layout,
    request: CompareRequest,
    folder: CompareFolder,
    watch: Watch,
    launcher: LocalLauncher,
    num_samples: int,
) -> Comparison:
    folder.begin(layout)
    waiting = [turn for turn in layout.turns if not is_finished(folder.run(turn), turn.plan)]
    if waiting:
        _check_room([turn.plan for turn in waiting])
        folder.note_machine(look_at_machine())
    started_s, done = monotonic_s(), len(layout.turns) - len(waiting)
    for number, turn in enumerate(waiting):
        spent_s = monotonic_s() - started_s
        left_s = spent_s / number * (len(waiting) - number) if number else None
        coming = Coming(turn=turn, number=done + number + 1, count=len(layout.turns), left_s=left_s)
        _run(folder.run(turn), turn, watch(coming), launcher)
    comparison = conclude(layout, request, folder, num_samples=num_samples)
    folder.write(comparison)
    return comparison


def _check_room(plans: Sequence[Plan]) -> None:
    """A cluster that is too small for any of the runs is reported before the first one."""
    if any(plan.ray is not None for plan in plans):
        from paceline.launchers.ray import check_room  # brings Ray, which other runs do not need

        check_room(plans)


def _run(place: Path, turn: Turn, watcher: Watcher, launcher: LocalLauncher) -> None:
    if place.exists():
        shutil.rmtree(place)  # half a run says nothing; `begin` has seen that it is one of ours
    result = train(turn.plan, place, watcher, warm=launcher)
    if result["stopped_early"] or "stopped_by" in result:
        raise StoppedError(str(result.get("stopped_by", "SIGINT")))


def conclude(
    layout: Layout, request: CompareRequest, folder: CompareFolder, *, num_samples: int
) -> Comparison:
    """From the run folders alone; `num_samples` are those of the task, for counting epochs."""
    runs: dict[str, list[Measured]] = {label: [] for label in layout.contenders}
    for turn in sorted(layout.turns, key=lambda turn: turn.round):
        runs[turn.label].append(read_run(folder.run(turn)))
    quality = quality_of(runs)
    target = target_of(runs, wanted_loss=request.target_loss, wanted_accuracy=request.target_accuracy)
    cells = assess(runs, BASELINE, quality, target, training_samples=num_samples)
    machines = folder.machines()
    base = layout.contenders[BASELINE]
    widest = max(layout.contenders.values(), key=lambda plan: plan.num_workers)
    started = sorted((run.started_unix_s, run.name) for mine in runs.values() for run in mine)
    return Comparison(
        paceline=__version__,
        task=base.task,
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
        warnings=tuple(warnings_of(cells, layout.contenders, BASELINE, quality, machines)),
        how=how_of(layout.contenders, BASELINE, quality, target, num_samples),
        machine=_busiest(machines),
        order=tuple(name for _, name in started),
    )


def _busiest(machines: Sequence[Machine]) -> Machine:
    return max(machines, key=lambda machine: machine.load)
