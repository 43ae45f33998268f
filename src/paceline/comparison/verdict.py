"""Verdict of a comparison: the mode to use, with the table's own numbers. Pure.

Modes that lost too much of the baseline's quality are out. Where some modes learned clearly more from the
same work than one worker alone, only those count that are close to the best of them: a faster mode that
learned far less is no winner, and neither is the baseline. Otherwise only modes that are significantly
faster than one worker count. Of what is left the fastest is taken, or one that is close to it without a
significant difference and has fewer workers, less staleness and fewer parts.
"""

from collections.abc import Iterator, Mapping, Sequence

from paceline.comparison.assess import CLOSE, FASTER, INCONCLUSIVE, LOST_POINTS, LOST_SHARE, ONE_REPEAT
from paceline.comparison.report import formatting
from paceline.comparison.schema import Cell, Machine, Quality, Target, Verdict
from paceline.comparison.statistics import MIN_ROUNDS, is_different, quotient_interval
from paceline.plan.catalog import hides_waiting
from paceline.plan.describe import describe_straggler
from paceline.plan.plan import Launcher, Plan
from paceline.simulate.advice import simplicity

_MUCH_WAITING = 0.10


def judge(
    cells: Mapping[str, Cell], baseline: str, quality: Quality | None, target: Target | None
) -> Verdict:
    return _Judge(cells, baseline, quality, target).verdict()


def is_good_enough(cell: Cell, base: Cell, quality: Quality | None) -> bool:
    """Whether it kept what one worker learns; True where that is not measured."""
    if quality is None or cell is base:
        return True
    if cell.quality is None or base.quality is None:
        return base.quality is None
    return _gain(cell, base, quality) >= -1


def _gain(cell: Cell, base: Cell, quality: Quality | None) -> float:
    """How much more it learned than `base`, in units of the difference that matters; 0: not measured."""
    if quality is None or cell.quality is None or base.quality is None:
        return 0.0
    difference = cell.quality.value - base.quality.value
    if quality.is_share:
        return difference / LOST_POINTS
    matters = LOST_SHARE * abs(base.quality.value)
    return -difference / matters if matters > 0 else 0.0


class _Judge:
    def __init__(
        self, cells: Mapping[str, Cell], baseline: str, quality: Quality | None, target: Target | None
    ) -> None:
        self._cells = cells
        self._base = cells[baseline]
        self._quality = quality
        self._target = target
        self._counts = len(formatting.worker_counts(dict(cells), baseline))
        good = [cell for cell in cells.values() if is_good_enough(cell, self._base, quality)]
        better = [cell for cell in good if self._is_better(cell)]
        best = max(better, key=lambda cell: _gain(cell, self._base, quality), default=None)
        if best is not None:
            pool = [cell for cell in better if is_good_enough(cell, best, quality)]
        else:
            pool = [cell for cell in good if self._is_faster(cell)] or [self._base]
        self._has_learned_more = best is not None
        self._pool = pool
        fastest = min(pool, key=lambda cell: cell.seconds)
        self._level = [
            cell for cell in pool if cell.seconds <= CLOSE * fastest.seconds and not _is_slower(cell, fastest)
        ]
        self._use = min(self._level, key=lambda cell: (cell.workers, simplicity(cell.mode)))

    def verdict(self) -> Verdict:
        rejected = [cell for cell in self._cells.values() if cell is not self._use]
        return Verdict(
            use=self._use.label,
            headline=self._headline(),
            reasons=tuple(self._reasons()),
            others={cell.label: self._why_not(cell) for cell in rejected},
        )

    def _is_faster(self, cell: Cell) -> bool:
        """Than one worker alone, as far as can be determined; with one repeat, by the numbers alone."""
        return cell.speed_in_words in (FASTER, ONE_REPEAT) and cell.seconds < self._base.seconds

    def _is_better(self, cell: Cell) -> bool:
        """Learned clearly more from the same work than one worker alone."""
        is_certain = cell.quality_in_words not in (INCONCLUSIVE,)
        return cell is not self._base and is_certain and _gain(cell, self._base, self._quality) > 1

    def _name(self, cell: Cell) -> str:
        return formatting.cell_name(cell, self._counts)

    def _headline(self) -> str:
        use = self._use
        base = self._base
        if self._has_learned_more:
            return self._headline_of_quality()
        if use is base:
            rest = [cell for cell in self._cells.values() if cell is not base]
            if any(self._is_faster(cell) for cell in rest):
                return (
                    "Do not distribute this: every mode that was faster than one worker lost too much "
                    "quality."
                )
            best = min(rest, key=lambda cell: cell.seconds)
            return (
                "Do not distribute this: no mode was significantly faster than one worker (the fastest, "
                f"{self._name(best)}, took {formatting.seconds(best.seconds)}"
                f" against {formatting.seconds(base.seconds)})."
            )
        sure = formatting.between(use.speedup)
        sure = f" (95 %: {sure})" if sure else ""
        workers = f"with {use.workers} workers"
        return (
            f"Use {use.mode} {workers}: the same work in {formatting.seconds(use.seconds)} instead of"
            f" {formatting.seconds(base.seconds)} alone, {formatting.times(use.speedup.value)} as fast{sure}."
        )

    def _headline_of_quality(self) -> str:
        use = self._use
        base = self._base
        quality = self._quality
        assert quality is not None, "it decided"
        assert use.quality is not None, "it is better"
        assert base.quality is not None, "it was compared with"
        time = f"in {formatting.seconds(use.seconds)} against {formatting.seconds(base.seconds)}"
        return (
            f"Use {use.mode} with {use.workers} workers: after the same work"
            f" {formatting.quality(use.quality.value, quality)} {formatting.quality_name(quality)} instead of"
            f" {formatting.quality(base.quality.value, quality)} alone, {time}."
        )

    def _reasons(self) -> list[str]:
        use = self._use
        reasons = []
        if self._has_learned_more:
            reasons.append(
                "One worker learned less from these steps: with more steps or another learning rate it may "
                "catch up, so compare the time to a target (--target-loss) as well."
            )
        if use is not self._base and use.speedup.value > 1:
            share = formatting.percent(use.efficiency.value)
            reasons.append(f"That is {share} of the ideal speedup of {use.workers} workers.")
        if (kept := self._about_quality(use)) is not None:
            reasons.append(kept)
        reasons += self._about_waiting(use)
        if use.staleness is not None:
            reasons.append(
                f"Its cost: gradients were {use.staleness.mean:.1f} updates old when they were applied,"
                f" on average, and {use.staleness.max} at most."
            )
        ties = [cell for cell in self._level if cell is not use]
        if ties:
            named = _listed([self._name(cell) for cell in ties])
            reasons.append(
                f"No significant difference in time to {named}: {self._name(use)} is recommended, because "
                "it has fewer workers, less staleness or fewer components."
            )
        return [*reasons, *self._about_target()]

    def _about_quality(self, cell: Cell) -> str | None:
        if self._quality is None or cell.quality is None or self._base.quality is None or cell is self._base:
            return None
        name = formatting.quality_name(self._quality).capitalize()
        own_quality = formatting.quality(cell.quality.value, self._quality)
        base = formatting.quality(self._base.quality.value, self._quality)
        difference = formatting.quality_difference(cell.quality_difference, self._quality)
        unit = " points" if self._quality.is_share else ""
        verdict = cell.quality_in_words
        return f"{name} {own_quality}, alone {base} ({difference}{unit}): {verdict}."

    def _about_waiting(self, use: Cell) -> list[str]:
        waits = {
            c.label: c.phases.get("wait", 0.0) for c in self._cells.values() if not hides_waiting(c.mode)
        }
        if use.label not in waits or use is self._base:
            return []
        own_share = waits.pop(use.label)
        waiting = [
            f"{self._name(self._cells[label])} {formatting.percent(share)}"
            for label, share in waits.items()
            if share >= _MUCH_WAITING and share > 2 * own_share
        ]
        if not waiting:
            return [f"Its workers waited {formatting.percent(own_share)} of their time."]
        return [
            f"Its workers waited {formatting.percent(own_share)} of their time; those of {_listed(waiting)}."
        ]

    def _about_target(self) -> list[str]:
        if self._target is None:
            return []
        reached = [(c.target_s, c) for c in self._cells.values() if c.target_s is not None]
        if not reached:
            return [f"No mode reached {formatting.target(self._target)} in all runs."]
        first_s, first = min(reached, key=lambda pair: pair[0])
        target = formatting.target(self._target)
        text = f"First at {target}: {self._name(first)}, after {formatting.seconds(first_s)}"
        if first is not self._base and self._base.target_s is not None:
            text += f"; one worker alone after {formatting.seconds(self._base.target_s)}"
        if first is not self._use and self._use.target_s is not None and self._use is not self._base:
            text += f"; {self._name(self._use)} after {formatting.seconds(self._use.target_s)}"
        return [f"{text}."]

    def _why_not(self, cell: Cell) -> str:
        use = self._use
        if cell.quality is None and self._quality is not None:
            return "It diverged: its quality is not a number."
        if not is_good_enough(cell, self._base, self._quality):
            return f"It lost too much quality: {self._about_quality(cell)}"
        if self._has_learned_more and cell not in self._pool:
            own_quality = formatting.quality(
                None if cell.quality is None else cell.quality.value, self._quality
            )
            best = formatting.quality(None if use.quality is None else use.quality.value, self._quality)
            return f"It learned less from the same work: {own_quality}, {self._name(use)} {best}."
        if cell in self._level:
            return f"No significant difference in time to {self._name(use)}, which is simpler."
        slower = f"It took {cell.seconds / use.seconds:.2f} times as long as {self._name(use)}"
        wait = cell.phases.get("wait", 0.0)
        if not _is_slower(cell, use):
            return f"{slower}, but the repeats vary so much that this may be noise."
        if not hides_waiting(cell.mode) and wait >= _MUCH_WAITING:
            slower += f": its workers waited {formatting.percent(wait)} of their time"
        elif cell is self._base:
            slower += ": it is alone"
        return slower + "."


def _is_slower(cell: Cell, than: Cell) -> bool:
    """As far as can be determined; with one repeat, by the numbers alone."""
    if cell is than:
        return False
    interval = quotient_interval(cell.seconds_all, than.seconds_all)
    different = is_different(interval, shown=cell.seconds / than.seconds)
    return (cell.seconds > than.seconds) if different is None else different and cell.seconds > than.seconds


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


ENOUGH_REPEATS = 3
_BUSY = 0.5  # of the processors at work before anything was started
_SPREAD = 1.15  # the slowest repeat over the fastest


def find_warnings(
    cells: Mapping[str, Cell],
    plans: Mapping[str, Plan],
    baseline: str,
    quality: Quality | None,
    machines: Sequence[Machine],
) -> list[str]:
    return [
        *_about_repeats(len(cells[baseline].seconds_all)),
        *_about_machines(machines),
        *_about_processors(plans, machines[-1].processors),
        *_about_spread(cells),
        *_about_quality(cells, baseline, quality),
        *_about_data(cells),
    ]


def _about_repeats(repeats: int) -> Iterator[str]:
    if repeats < MIN_ROUNDS:
        cause = "One repeat has no variance" if repeats == 1 else "Two repeats are too few for a variance"
        yield f"{cause}: no confidence intervals, and a difference may be noise (--repeats {ENOUGH_REPEATS})."
    elif repeats < ENOUGH_REPEATS:
        yield f"Intervals from {repeats} repeats are very wide; {ENOUGH_REPEATS} or more make them narrower."


def _about_machines(machines: Sequence[Machine]) -> Iterator[str]:
    busy = [m for m in machines if m.load > _BUSY * m.processors]
    if busy:
        worst = max(busy, key=lambda m: m.load)
        yield (
            f"The machine was busy before the first run: {worst.load:.1f} processes were running on"
            f" {worst.processors} processors, so all times may be too long."
        )
    if len({(m.cpu, m.processors, m.torch, m.python) for m in machines}) > 1:
        yield "The comparison was interrupted and resumed on another machine or with other versions."


def _about_processors(plans: Mapping[str, Plan], processors: int) -> Iterator[str]:
    plan = next(iter(plans.values()))
    if plan.launcher is Launcher.VIRTUAL:
        yield "Times are virtual: they show the cost of waiting, not the compute speed of this machine."
        return
    most = max(plan.processes * plan.threads_per_worker for plan in plans.values())
    if plan.pace_s > 0:
        yield (
            "Each step was padded to a fixed duration (--pace): speedups show the cost of waiting with that "
            "many machines, not the compute speed of this one."
        )
    elif most > processors:
        yield (
            f"{most} workers shared {processors} processors, so they could not be {most} times as fast as"
            " one."
        )
    if len({plan.device for plan in plans.values()}) > 1:
        yield "Some modes computed on a GPU and others did not: their times are not comparable."


def _about_spread(cells: Mapping[str, Cell]) -> Iterator[str]:
    wide = [
        f"{label} {min(c.seconds_all):.2f} to {max(c.seconds_all):.2f} s"
        for label, c in cells.items()
        if max(c.seconds_all) > _SPREAD * min(c.seconds_all)
    ]
    if wide:
        yield f"Repeats varied widely in time, so another process may have interfered: {', '.join(wide)}."


def _about_quality(cells: Mapping[str, Cell], baseline: str, quality: Quality | None) -> Iterator[str]:
    if quality is None:
        yield "The task measures neither an accuracy nor a loss, so only times are compared."
        return
    base = cells[baseline]
    for label, cell in cells.items():
        if cell.quality is None:
            yield f"{label} diverged: its {formatting.quality_name(quality)} is not a number."
        elif not is_good_enough(cell, base, quality):
            lost = formatting.quality_difference(cell.quality_difference, quality)
            unit = " points" if quality.is_share else ""
            yield f"{label} lost {formatting.quality_name(quality)}: {lost}{unit} against one worker alone."


def _about_data(cells: Mapping[str, Cell]) -> Iterator[str]:
    kinds = sorted({cell.data for cell in cells.values() if "synthetic" in cell.data})
    if kinds:
        yield f"The data is not real ({', '.join(kinds)}): quality does not apply to the real task."


def describe_method(
    plans: Mapping[str, Plan],
    baseline: str,
    quality: Quality | None,
    target: Target | None,
    num_samples: int | None,
) -> dict[str, str]:
    """How it was measured, by topic."""
    base = plans[baseline]
    widest = max((p for label, p in plans.items() if label != baseline), key=lambda p: p.num_workers)
    how = {
        "Equal work": f"Every run made {base.steps} steps over {base.global_batch} samples each,"
        f" {base.total_samples:,} in all{_in_epochs(base, num_samples)}, the same ones in the same order."
        " With N workers a step's samples are divided among N.",
        "Baseline": f"One worker that trains the same {base.steps} steps over the same {base.global_batch}"
        " samples alone. Straggler rules for a numbered worker do not apply to it.",
        "Order": "In rounds: every mode once, with the same seed, in an order that rotates from round to"
        " round, from one warm process. Slowdowns of a whole round cancel out.",
        "Time": "From the start of the first step to the end of the last one, by the machine's monotonic"
        " clock; process startup and evaluations during training are excluded.",
        "Intervals": "95 %, Student's t over the rounds, of the ratio (or difference) to the baseline's run "
        "of the same round. Significant: the interval excludes 1 (or 0), and for times the difference is at "
        "least 2 %.",
        "Slow workers": "; ".join(describe_straggler(rule) for rule in widest.stragglers)
        or "no worker was slowed down",
        "Pace": _pace(widest, base),
        "Loss": "The training loss is the mean over the last samples, each on the parameters that its"
        " gradient was computed on: a worker's own under localsgd, older ones under asgd.",
    }
    if quality is not None:
        how["Quality"] = (
            f"{formatting.quality_name(quality)} of the final model, mean over the rounds' seeds."
        )
    if target is not None:
        chosen = ", the best that every run reached" if target.is_chosen else ""
        how["Target"] = f"{formatting.target(target)}{chosen}; the time is the median over the rounds."
    return how


def _in_epochs(base: Plan, num_samples: int | None) -> str:
    if num_samples is None:
        return ""
    return f" ({base.total_samples / num_samples:.3g} times all {num_samples:,} training samples)"


def _pace(widest: Plan, base: Plan) -> str:
    if not widest.pace_s:
        return "not limited"
    return (
        f"A step of one of {widest.num_workers} workers lasts at least {widest.pace_s * 1e3:g} ms, and "
        f"one of the baseline, which has the samples of all workers, {base.pace_s * 1e3:g} ms."
    )
