"""What is said while a search goes on? A line for each trial's beginning, evaluations and end."""

from paceline.app.tune_folder import Record, Status
from paceline.app.tune_plan import Trial, Tuning
from paceline.cli.output import say
from paceline.cli.session import Session
from paceline.clock import monotonic_s

_TALK_S = 10.0  # between two signs of life of a trial that has nothing else to say


class Talk:
    def __init__(self, session: Session, tuning: Tuning) -> None:
        self._session, self._count, self._asha = session, len(tuning.trials), tuning.asha
        self._said_s: dict[int, float] = {}
        self._has_said_late = False

    def began(self, trial: Trial, over: int) -> None:
        self._said_s[trial.number] = monotonic_s()
        say(self._session, f"  trial {trial.number}  {trial.words}  ({over} of {self._count} are over)")

    def evaluated(self, trial: Trial, record: Record) -> None:
        self._said_s[trial.number] = monotonic_s()
        say(self._session, f"  trial {trial.number}  step {record.step:,}: {_value(record)}")

    def progress(self, trial: Trial, step: int) -> None:
        if monotonic_s() - self._said_s.get(trial.number, 0.0) >= _TALK_S:
            self._said_s[trial.number] = monotonic_s()
            say(self._session, f"  trial {trial.number}  step {step:,} of {trial.plan.steps:,}")

    def ended(self, trial: Trial, record: Record) -> None:
        how = f": {record.why}" if record.why else f" with {_value(record)}" if record.metric else ""
        say(self._session, f"  trial {trial.number}  {record.status.value}{how}")
        if self._asha is None or self._has_said_late:
            return
        if record.status is Status.FINISHED and len(record.evaluations) == 1 and trial.plan.evaluation:
            self._has_said_late = True
            self.note(f"{record.metric} is known at the end of a trial only, so none is stopped early")

    def note(self, text: str) -> None:
        say(self._session, f"note: {text}")


def _value(record: Record) -> str:
    return f"{record.metric} {'nan' if record.value is None else format(record.value, '.5g')}"
