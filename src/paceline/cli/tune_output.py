"""Output of `paceline tune`: a line when a trial starts, is evaluated or ends, and the table of trials."""

from collections.abc import Mapping

from paceline.cli.output import print_message
from paceline.core.clock import monotonic_s
from paceline.core.humanize import short_duration
from paceline.training.session import Session
from paceline.tune.experiment import Record, Status, Trial, Tuning

_PROGRESS_EVERY_S = 10.0  # between progress lines of a trial without evaluations


class TuneProgress:
    def __init__(self, session: Session, tuning: Tuning) -> None:
        self._session = session
        self._count = len(tuning.trials)
        self._asha = tuning.asha
        self._shown_s: dict[int, float] = {}
        self._has_noted_late = False

    def began(self, trial: Trial, over: int) -> None:
        self._shown_s[trial.number] = monotonic_s()
        print_message(
            self._session, f"  trial {trial.number}  {trial.description}  ({over} of {self._count} finished)"
        )

    def evaluated(self, trial: Trial, record: Record) -> None:
        self._shown_s[trial.number] = monotonic_s()
        print_message(self._session, f"  trial {trial.number}  step {record.step:,}: {_value(record)}")

    def progress(self, trial: Trial, step: int) -> None:
        if monotonic_s() - self._shown_s.get(trial.number, 0.0) >= _PROGRESS_EVERY_S:
            self._shown_s[trial.number] = monotonic_s()
            print_message(self._session, f"  trial {trial.number}  step {step:,} of {trial.plan.steps:,}")

    def ended(self, trial: Trial, record: Record) -> None:
        detail = ""
        if record.why:
            detail = f": {record.why}"
        elif record.metric:
            detail = f" with {_value(record)}"
        print_message(self._session, f"  trial {trial.number}  {record.status.value}{detail}")
        if self._asha is None or self._has_noted_late:
            return
        if record.status is Status.FINISHED and len(record.evaluations) == 1 and trial.plan.evaluation:
            self._has_noted_late = True
            self.note(f"{record.metric} is measured only at the end of a trial, so no trial is stopped early")

    def note(self, text: str) -> None:
        print_message(self._session, f"note: {text}")


def _value(record: Record) -> str:
    return f"{record.metric} {'nan' if record.value is None else format(record.value, '.5g')}"


_ORDER = {Status.FINISHED: 0, Status.STOPPED: 1}
_MAX_CELL = 20  # characters


def trial_table(tuning: Tuning, records: Mapping[int, Record], best: Trial | None = None) -> list[str]:
    """Finished trials first, by value; then stopped ones, then all others."""
    sign = 1.0 if tuning.lower_is_better else -1.0

    def sort_key(trial: Trial) -> tuple[int, float, int]:
        record = records.get(trial.number)
        if record is None or record.value is None:
            return 2, 0.0, trial.number
        return _ORDER.get(record.status, 2), sign * record.value, trial.number

    metric = next((record.metric for record in records.values() if record.metric), "value")
    head = ["trial", *tuning.searches, *([metric, "evaluated", "step", "time", "status"] if records else [])]
    rows = [
        _row(trial, tuning, records.get(trial.number), is_best=trial == best, has_records=bool(records))
        for trial in sorted(tuning.trials, key=sort_key)
    ]
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = "  ".join(f"{cell:>{width}}" for cell, width in zip(head, widths, strict=True))
    return [title, "-" * len(title), *(line.rstrip() for line in lines)]


def _row(
    trial: Trial, tuning: Tuning, record: Record | None, *, is_best: bool, has_records: bool
) -> list[str]:
    cells = [f"{'*' if is_best else ''}{trial.number}"]
    cells += [trial.settings.get(name, "-")[:_MAX_CELL] for name in tuning.searches]
    if not has_records:
        return cells
    if record is None:
        return [*cells, "", "", "", "", "waiting"]
    value = "-" if record.value is None else f"{record.value:.5g}"
    spent = short_duration(record.seconds) if record.seconds else "-"
    return [*cells, value, str(len(record.evaluations)), str(record.step), spent, record.status.value]
