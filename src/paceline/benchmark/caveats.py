"""What does a benchmark say in sentences, and what must its reader know before believing it? Pure."""

from collections.abc import Iterator, Mapping

from paceline.benchmark.compared import Row
from paceline.report import words
from paceline.report.comparison import Machine, Quality

ALLOWED_LOSS = 0.02  # of an accuracy
_ENOUGH_REPEATS = 3
_BUSY = 0.5  # of the processors at work before anything was started
_SHORT = 0.5  # a run whose start is more than this share of it shows its start

Rows = Mapping[str, Row]


def says(rows: Rows, baseline: str, subject: str, quality: Quality | None) -> Iterator[str]:
    yield _speed(rows[subject], rows[baseline])
    yield about_batch(rows)
    if (text := _quality(rows[subject], rows[baseline], quality)) is not None:
        yield text


def about_batch(rows: Rows) -> str:
    batches = {row.global_batch for row in rows.values()}
    if len(batches) > 1:
        listed = ", ".join(f"{row.title} {row.global_batch}" for row in rows.values())
        return f"The global batch was not the same for all: {listed}."
    (batch,) = batches
    shares = sorted({(row.workers, row.worker_batch) for row in rows.values()})
    each = ", ".join(f"{share} for each of {n}" if n > 1 else f"{share} for one" for n, share in shares)
    sides = "on both sides" if len(rows) == 2 else "on all sides"
    return f"The global batch was {batch} {sides}: {each}."


def _speed(mine: Row, base: Row) -> str:
    total = (
        f"{mine.title} with {mine.workers} {'worker' if mine.workers == 1 else 'workers'} took"
        f" {words.seconds(mine.total_s)} in all, {base.title} {words.seconds(base.total_s)}:"
        f" a speedup of {words.times(mine.speedup_total.value)},"
        f" efficiency {words.percent(mine.efficiency_total.value)}."
    )
    if mine.speedup_steady is None or mine.efficiency_steady is None:
        return f"{total} The runs were too short for a steady rate."
    return (
        f"{total} After {mine.warm_up} it was {words.times(mine.speedup_steady.value)} as fast,"
        f" efficiency {words.percent(mine.efficiency_steady.value)}."
    )


def _quality(mine: Row, base: Row, quality: Quality | None) -> str | None:
    if quality is None or mine.quality is None or base.quality is None or mine.quality_difference is None:
        return None
    name = words.quality_name(quality).capitalize()
    both = (
        f"{words.quality(mine.quality.value, quality)}, against {words.quality(base.quality.value, quality)}"
    )
    unit = " points" if quality.is_share else ""
    return f"{name} was {both}: {words.quality_difference(mine.quality_difference, quality)}{unit}."


def warnings(rows: Rows, baseline: str, quality: Quality | None, machine: Machine) -> Iterator[str]:
    repeats = len(rows[baseline].total_s_all)
    if len({row.global_batch for row in rows.values()}) > 1:
        yield about_batch(rows)
    if len({row.samples for row in rows.values()}) > 1:
        listed = ", ".join(f"{row.title} {row.samples:,}" for row in rows.values())
        yield f"Not all trained on as many samples, so total times are of different work: {listed}."
    if repeats < _ENOUGH_REPEATS:
        known = "One repeat has no spread" if repeats == 1 else f"{repeats} repeats have wide intervals"
        yield f"{known}: a difference may be chance (--repeats {_ENOUGH_REPEATS})."
    if machine.load > _BUSY * machine.processors:
        yield (
            f"The machine was busy before the first run: {machine.load:.1f} processes were at work on"
            f" {machine.processors} processors, so all times may be too long."
        )
    yield from _about_processors(rows, machine)
    yield from _about_starts(rows)
    yield from _about_quality(rows, baseline, quality)


def _about_processors(rows: Rows, machine: Machine) -> Iterator[str]:
    most = max(row.workers for row in rows.values())
    spread = any(row.cluster is not None and row.cluster.nodes > 1 for row in rows.values())
    if most > machine.processors and not spread:
        yield (
            f"{most} workers shared {machine.processors} processors, so they could not be {most} times as"
            " fast as one."
        )


def _about_starts(rows: Rows) -> Iterator[str]:
    slow = [
        row.title
        for row in rows.values()
        if row.first_step_s is not None and row.first_step_s > _SHORT * row.total_s
    ]
    if slow:
        yield (
            f"Most of the total time was spent before the first step ({', '.join(slow)}): total times are of"
            " starting, not of training; train longer, or look at the steady rate."
        )


def _about_quality(rows: Rows, baseline: str, quality: Quality | None) -> Iterator[str]:
    if quality is None:
        yield "No accuracy and no loss that all have was measured, so only times are compared."
        return
    if rows[baseline].quality is None:
        name = words.quality_name(quality)
        yield f"{rows[baseline].title} has no finite {name}, so nobody is compared to it."
    for row in rows.values():
        difference = row.quality_difference
        if quality.is_share and difference is not None and difference.value < -ALLOWED_LOSS:
            lost = f"{row.title} lost {-100 * difference.value:.1f} points of {words.quality_name(quality)}"
            is_faster = row.speedup_total.value > 1
            cost = "what it gained in time cost accuracy" if is_faster else "and it was not faster either"
            yield f"{lost}, more than {100 * ALLOWED_LOSS:g}: {cost}."


def how(rows: Rows) -> dict[str, str]:
    left_out = "; ".join(dict.fromkeys(f"without {row.warm_up}" for row in rows.values()))
    return {
        "Order": "Everybody once in every round, one after another; who is first changes.",
        "Batch": about_batch(rows),
        "Total time": "From the call to its result: processes, imports, the cluster, the training, the end.",
        "Start": "From the call to the beginning of the first step.",
        "Steady rate": f"Samples a second of all workers together, {left_out}.",
        "Speedup": "The baseline over the contender, of total times and of steady rates; efficiency is that"
        " over its workers.",
    }
