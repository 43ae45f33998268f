"""How is a search shown in a terminal? A line for each trial, the best first."""

from collections.abc import Mapping

from paceline.app.tune_folder import Record, Status
from paceline.app.tune_plan import Trial, Tuning
from paceline.cli.units import short_duration

_ORDER = {Status.FINISHED: 0, Status.STOPPED: 1}
_MOST = 20  # of a cell


def table(tuning: Tuning, records: Mapping[int, Record], best: Trial | None = None) -> list[str]:
    """Those that finished first, by their value; then those that were stopped, then all others."""
    sign = 1.0 if tuning.lower_is_better else -1.0

    def place(trial: Trial) -> tuple[int, float, int]:
        record = records.get(trial.number)
        if record is None or record.value is None:
            return 2, 0.0, trial.number
        return _ORDER.get(record.status, 2), sign * record.value, trial.number

    metric = next((record.metric for record in records.values() if record.metric), "value")
    head = ["trial", *tuning.searches, *([metric, "evaluated", "step", "time", "status"] if records else [])]
    rows = [
        _row(trial, tuning, records.get(trial.number), is_best=trial == best, has_records=bool(records))
        for trial in sorted(tuning.trials, key=place)
    ]
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = "  ".join(f"{cell:>{width}}" for cell, width in zip(head, widths, strict=True))
    return [title, "-" * len(title), *(line.rstrip() for line in lines)]


def _row(
    trial: Trial, tuning: Tuning, record: Record | None, *, is_best: bool, has_records: bool
) -> list[str]:
    cells = [f"{'*' if is_best else ''}{trial.number}"]
    cells += [trial.settings.get(name, "-")[:_MOST] for name in tuning.searches]
    if not has_records:
        return cells
    if record is None:
        return [*cells, "", "", "", "", "waiting"]
    value = "-" if record.value is None else f"{record.value:.5g}"
    spent = short_duration(record.seconds) if record.seconds else "-"
    return [*cells, value, str(len(record.evaluations)), str(record.step), spent, record.status.value]
