"""What must a reader know before believing a comparison? Few repeats, a busy machine, quality lost. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from paceline.plan.plan import Launcher, Plan
from paceline.plan.stragglers_in_words import in_words
from paceline.report import words
from paceline.report.comparison import Cell, Machine, Quality, Target
from paceline.report.statistics import LEAST_ROUNDS
from paceline.report.verdict import is_good_enough

ENOUGH_REPEATS = 3
_BUSY = 0.5  # of the processors at work before anything was started
_SPREAD = 1.15  # the slowest repeat over the fastest


def warnings_of(
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
    if repeats < LEAST_ROUNDS:
        said = "One repeat has no spread" if repeats == 1 else "Two repeats say little about their spread"
        yield f"{said}: no intervals, and a difference may be chance (--repeats {ENOUGH_REPEATS})."
    elif repeats < ENOUGH_REPEATS:
        yield f"Intervals from {repeats} repeats are very wide; {ENOUGH_REPEATS} or more tell more apart."


def _about_machines(machines: Sequence[Machine]) -> Iterator[str]:
    busy = [m for m in machines if m.load > _BUSY * m.processors]
    if busy:
        worst = max(busy, key=lambda m: m.load)
        yield (
            f"The machine was busy before the first run: {worst.load:.1f} processes were at work on"
            f" {worst.processors} processors, so all times may be too long."
        )
    if len({(m.cpu, m.processors, m.torch, m.python) for m in machines}) > 1:
        yield "The comparison was interrupted and went on on another machine or with other versions."


def _about_processors(plans: Mapping[str, Plan], processors: int) -> Iterator[str]:
    some = next(iter(plans.values()))
    if some.launcher is Launcher.VIRTUAL:
        yield "Times are virtual: they show who waits for whom, not how fast this machine computes."
        return
    most = max(plan.processes * plan.threads_per_worker for plan in plans.values())
    if some.pace_s > 0:
        yield (
            "A step was made to last a given time (--pace): speedups show what waiting costs with so many"
            " machines, not how fast this one computes."
        )
    elif most > processors:
        yield (
            f"{most} workers shared {processors} processors, so they could not be {most} times as fast as"
            " one."
        )
    if len({plan.device for plan in plans.values()}) > 1:
        yield "Some modes computed on a GPU and others did not: their times say nothing about each other."


def _about_spread(cells: Mapping[str, Cell]) -> Iterator[str]:
    wide = [
        f"{label} {min(c.seconds_all):.2f} to {max(c.seconds_all):.2f} s"
        for label, c in cells.items()
        if max(c.seconds_all) > _SPREAD * min(c.seconds_all)
    ]
    if wide:
        yield f"Repeats differed widely in time, so something else may have been at work: {', '.join(wide)}."


def _about_quality(cells: Mapping[str, Cell], baseline: str, quality: Quality | None) -> Iterator[str]:
    if quality is None:
        yield "The task measures neither an accuracy nor a loss, so only times are compared."
        return
    base = cells[baseline]
    for label, cell in cells.items():
        if cell.quality is None:
            yield f"{label} diverged: its {words.quality_name(quality)} is not a number."
        elif not is_good_enough(cell, base, quality):
            lost = words.quality_difference(cell.quality_difference, quality)
            unit = " points" if quality.is_share else ""
            yield f"{label} lost {words.quality_name(quality)}: {lost}{unit} against one worker alone."


def _about_data(cells: Mapping[str, Cell]) -> Iterator[str]:
    said = sorted({cell.data for cell in cells.values() if "synthetic" in cell.data})
    if said:
        yield f"The data is not real ({', '.join(said)}): what was learnt says nothing about the real task."


def how_of(
    plans: Mapping[str, Plan],
    baseline: str,
    quality: Quality | None,
    target: Target | None,
    num_samples: int,
) -> dict[str, str]:
    """How it was measured, by topic."""
    base = plans[baseline]
    widest = max((p for label, p in plans.items() if label != baseline), key=lambda p: p.num_workers)
    how = {
        "Equal work": f"Every run made {base.steps} steps over {base.global_batch} samples each,"
        f" {base.total_samples:,} in all ({base.total_samples / num_samples:.3g} times all"
        f" {num_samples:,} training samples), the same ones in the same order. With N workers a step's"
        " samples are dealt to N.",
        "Baseline": f"One worker that makes the same {base.steps} steps over the same {base.global_batch}"
        " samples alone. A rule that slows down a worker by its number does not concern it.",
        "Order": "In rounds: everybody once, with the same seed, in an order that is rotated from round to"
        " round, from one warm process. What slows a whole round down cancels out.",
        "Time": "From the start of the first step to the end of the last one, by the machine's monotonic"
        " clock; starting processes is not in it, and neither are evaluations on the way.",
        "Intervals": "95 %, Student's t over the rounds, of the quotient (or difference) to the baseline's"
        " run of the same round. Significant: the interval leaves out 1 (or 0), and for times the"
        " difference is at least 2 %.",
        "Slow workers": "; ".join(in_words(rule) for rule in widest.stragglers) or "nobody was slowed down",
        "Pace": _pace(widest, base),
        "Loss": "The training loss is the mean over the last samples, each on the parameters that its"
        " gradient was computed on: a worker's own under localsgd, older ones under asgd.",
    }
    if quality is not None:
        how["Quality"] = f"{words.quality_name(quality)} of the final model, mean over the rounds' seeds."
    if target is not None:
        chosen = ", the best that every run reached" if target.is_chosen else ""
        how["Target"] = f"{words.target(target)}{chosen}; the time is the median over the rounds."
    return how


def _pace(widest: Plan, base: Plan) -> str:
    if not widest.pace_s:
        return "as fast as it goes"
    return (
        f"A step of one of {widest.num_workers} workers lasts at least {widest.pace_s * 1e3:g} ms, and one of"
        f" the baseline, which has the samples of all of them, {base.pace_s * 1e3:g} ms."
    )
