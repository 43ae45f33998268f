"""Verdict of a comparison: the mode to use, with the table's own numbers. Pure.

Modes that lost too much of the baseline's quality are out. Where some modes learned clearly more from the
same work than one worker alone, only those count that are close to the best of them: a faster mode that
learned far less is no winner, and neither is the baseline. Otherwise only modes that are significantly
faster than one worker count. Of what is left the fastest is taken, or one that is close to it without a
significant difference and has fewer workers, less staleness and fewer parts.
"""

from collections.abc import Mapping

from paceline.plan.catalog import hides_waiting
from paceline.report import words
from paceline.report.assess import CLOSE, FASTER, INCONCLUSIVE, LOST_POINTS, LOST_SHARE, ONE_REPEAT
from paceline.report.comparison import Cell, Quality, Target, Verdict
from paceline.report.statistics import is_different, quotient_interval
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
        self._cells, self._base, self._quality, self._target = cells, cells[baseline], quality, target
        self._counts = len(words.worker_counts(dict(cells), baseline))
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
        others = [cell for cell in self._cells.values() if cell is not self._use]
        return Verdict(
            use=self._use.label,
            headline=self._headline(),
            reasons=tuple(self._reasons()),
            others={cell.label: self._why_not(cell) for cell in others},
        )

    def _is_faster(self, cell: Cell) -> bool:
        """Than one worker alone, as far as can be told; with one repeat, by the numbers alone."""
        return cell.speed_in_words in (FASTER, ONE_REPEAT) and cell.seconds < self._base.seconds

    def _is_better(self, cell: Cell) -> bool:
        """Learned clearly more from the same work than one worker alone."""
        is_certain = cell.quality_in_words not in (INCONCLUSIVE,)
        return cell is not self._base and is_certain and _gain(cell, self._base, self._quality) > 1

    def _name(self, cell: Cell) -> str:
        return words.called(cell, self._counts)

    def _headline(self) -> str:
        use, base = self._use, self._base
        if self._has_learned_more:
            return self._headline_of_quality()
        if use is base:
            rest = [cell for cell in self._cells.values() if cell is not base]
            if any(self._is_faster(cell) for cell in rest):
                return "Do not distribute this: whatever was faster than one worker lost too much quality."
            best = min(rest, key=lambda cell: cell.seconds)
            return (
                "Do not distribute this: no mode was significantly faster than one worker alone"
                f" (the fastest, {self._name(best)}, took {words.seconds(best.seconds)}"
                f" against {words.seconds(base.seconds)})."
            )
        sure = words.between(use.speedup)
        sure = f" (95 %: {sure})" if sure else ""
        workers = f"with {use.workers} workers"
        return (
            f"Use {use.mode} {workers}: the same work in {words.seconds(use.seconds)} instead of"
            f" {words.seconds(base.seconds)} alone, {words.times(use.speedup.value)} as fast{sure}."
        )

    def _headline_of_quality(self) -> str:
        use, base, quality = self._use, self._base, self._quality
        assert quality is not None, "it decided"
        assert use.quality is not None, "it is better"
        assert base.quality is not None, "it was compared with"
        time = f"in {words.seconds(use.seconds)} against {words.seconds(base.seconds)}"
        return (
            f"Use {use.mode} with {use.workers} workers: after the same work"
            f" {words.quality(use.quality.value, quality)} {words.quality_name(quality)} instead of"
            f" {words.quality(base.quality.value, quality)} alone, {time}."
        )

    def _reasons(self) -> list[str]:
        use = self._use
        found = []
        if self._has_learned_more:
            found.append(
                "One worker alone had not learned as much from these steps: with more steps or another"
                " learning rate it may catch up, so compare the time to a target (--target-loss) as well."
            )
        if use is not self._base and use.speedup.value > 1:
            share = words.percent(use.efficiency.value)
            found.append(f"That is {share} of what {use.workers} workers could give at best.")
        if (kept := self._about_quality(use)) is not None:
            found.append(kept)
        found += self._about_waiting(use)
        if use.staleness is not None:
            found.append(
                f"Its price: gradients were {use.staleness.mean:.1f} updates old when they were applied,"
                f" on average, and {use.staleness.max} at most."
            )
        ties = [cell for cell in self._level if cell is not use]
        if ties:
            named = _listed([self._name(cell) for cell in ties])
            found.append(
                f"No significant difference in time to {named}: {self._name(use)} is taken, as it has fewer"
                " workers, less staleness or fewer parts."
            )
        return [*found, *self._about_target()]

    def _about_quality(self, cell: Cell) -> str | None:
        if self._quality is None or cell.quality is None or self._base.quality is None or cell is self._base:
            return None
        name = words.quality_name(self._quality).capitalize()
        mine = words.quality(cell.quality.value, self._quality)
        base = words.quality(self._base.quality.value, self._quality)
        difference = words.quality_difference(cell.quality_difference, self._quality)
        unit = " points" if self._quality.is_share else ""
        said = cell.quality_in_words
        return f"{name} {mine}, alone {base} ({difference}{unit}): {said}."

    def _about_waiting(self, use: Cell) -> list[str]:
        waits = {
            c.label: c.phases.get("wait", 0.0) for c in self._cells.values() if not hides_waiting(c.mode)
        }
        if use.label not in waits or use is self._base:
            return []
        mine = waits.pop(use.label)
        others = [
            f"{self._name(self._cells[label])} {words.percent(share)}"
            for label, share in waits.items()
            if share >= _MUCH_WAITING and share > 2 * mine
        ]
        if not others:
            return [f"Its workers waited {words.percent(mine)} of their time."]
        return [f"Its workers waited {words.percent(mine)} of their time; those of {_listed(others)}."]

    def _about_target(self) -> list[str]:
        if self._target is None:
            return []
        reached = [(c.target_s, c) for c in self._cells.values() if c.target_s is not None]
        if not reached:
            return [f"Nobody always reached {words.target(self._target)}."]
        first_s, first = min(reached, key=lambda pair: pair[0])
        text = f"First at {words.target(self._target)}: {self._name(first)}, after {words.seconds(first_s)}"
        if first is not self._base and self._base.target_s is not None:
            text += f"; one worker alone after {words.seconds(self._base.target_s)}"
        if first is not self._use and self._use.target_s is not None and self._use is not self._base:
            text += f"; {self._name(self._use)} after {words.seconds(self._use.target_s)}"
        return [f"{text}."]

    def _why_not(self, cell: Cell) -> str:
        use = self._use
        if cell.quality is None and self._quality is not None:
            return "It diverged: its quality is not a number."
        if not is_good_enough(cell, self._base, self._quality):
            return f"It lost too much: {self._about_quality(cell)}"
        if self._has_learned_more and cell not in self._pool:
            mine = words.quality(None if cell.quality is None else cell.quality.value, self._quality)
            best = words.quality(None if use.quality is None else use.quality.value, self._quality)
            return f"It learned less from the same work: {mine}, {self._name(use)} {best}."
        if cell in self._level:
            return f"No significant difference in time to {self._name(use)}, which is simpler."
        slower = f"It took {cell.seconds / use.seconds:.2f} times as long as {self._name(use)}"
        wait = cell.phases.get("wait", 0.0)
        if not _is_slower(cell, use):
            return f"{slower}, but repeats differ so much that this may be chance."
        if not hides_waiting(cell.mode) and wait >= _MUCH_WAITING:
            slower += f": its workers waited {words.percent(wait)} of their time"
        elif cell is self._base:
            slower += ": it is alone"
        return slower + "."


def _is_slower(cell: Cell, than: Cell) -> bool:
    """As far as can be told; with one repeat, by the numbers alone."""
    if cell is than:
        return False
    interval = quotient_interval(cell.seconds_all, than.seconds_all)
    different = is_different(interval, shown=cell.seconds / than.seconds)
    return (cell.seconds > than.seconds) if different is None else different and cell.seconds > than.seconds


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
