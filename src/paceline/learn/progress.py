"""Progress of a learner: one JSON file; every change returns a new `Progress`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.learn.lesson import Facts, Finding, NotSeenError, Part, Question, is_right

SCHEMA = "paceline.learn/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    value: str
    at_unix_s: float
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProgress:
    begun_unix_s: float
    prediction: RecordedAnswer | None = None
    answers: dict[str, RecordedAnswer] = field(default_factory=dict)  # by question
    done_unix_s: float | None = None

    @property
    def state(self) -> str:
        if self.done_unix_s is not None:
            return "done"
        return "begun" if self.prediction is None else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    parts: dict[str, PartProgress] = field(default_factory=dict)
    schema: str = SCHEMA

    def of(self, number: int) -> PartProgress | None:
        return self.parts.get(str(number))

    def state(self, number: int) -> str:
        part = self.of(number)
        return "not begun" if part is None else part.state

    def is_done(self, number: int) -> bool:
        return self.state(number) == "done"

    def begin(self, number: int, now_s: float) -> "Progress":
        """A part that was started before stays as it is."""
        return self if self.of(number) is not None else self._with(number, PartProgress(begun_unix_s=now_s))

    def predict(self, number: int, value: str, now_s: float) -> "Progress":
        part = self._begun(number)
        return self._with(number, replace(part, prediction=RecordedAnswer(value=value, at_unix_s=now_s)))

    def answer(self, number: int, question: int, value: str, now_s: float) -> "Progress":
        part = self._begun(number)
        before = part.answers.get(str(question))
        recorded = RecordedAnswer(
            value=value, at_unix_s=now_s, tries=1 if before is None else before.tries + 1
        )
        return self._with(number, replace(part, answers={**part.answers, str(question): recorded}))

    def judged(self, number: int, now_s: float, *, is_done: bool) -> "Progress":
        part = self._begun(number)
        done_s = (part.done_unix_s or now_s) if is_done else None
        return self._with(number, replace(part, done_unix_s=done_s))

    def _begun(self, number: int) -> PartProgress:
        part = self.of(number)
        assert part is not None, "a part is begun before anything else"
        return part

    def _with(self, number: int, part: PartProgress) -> "Progress":
        return replace(self, parts={**self.parts, str(number): part})


def check(part: Part, progress: PartProgress | None, facts: Facts) -> list[Finding]:
    """All findings, in the order of the lesson."""
    if progress is None:
        return [Finding(False, f"part {part.number} was not begun", f"paceline learn start {part.number}")]
    return [
        *_prediction_findings(part, progress, facts),
        *_run_findings(part, facts),
        *_answer_findings(part, progress, facts),
    ]


def verdict(question: Question, given: str, facts: Facts) -> bool:
    """Raises NotSeenError if its runs do not exist."""
    return is_right(given, question.right(facts), question.options)


def skipped(number: int, progress: Progress) -> list[int]:
    """Parts before this one that are not done."""
    return [before for before in range(1, number) if not progress.is_done(before)]


def current(parts: Sequence[Part], progress: Progress) -> Part | None:
    """The first one that is not done; None: all are."""
    return next((part for part in parts if not progress.is_done(part.number)), None)


def _prediction_findings(part: Part, progress: PartProgress, facts: Facts) -> list[Finding]:
    prediction = progress.prediction
    if prediction is None:
        return [
            Finding(
                False,
                "nothing was predicted",
                f"guess first, it cannot be wrong: paceline learn predict {part.number} GUESS",
            )
        ]
    again = "predict, then observe: type its command again (a new folder is made, and the newest counts)"
    findings = [
        Finding(False, f"{run.folder} began before the prediction", again)
        for name in part.new_runs
        if (run := facts.runs.get(name)) is not None and run.began_unix_s < prediction.at_unix_s
    ]
    compared = facts.compared if part.is_compared else None
    if compared is not None and compared.written_unix_s < prediction.at_unix_s:
        message = "the comparison was made before the prediction"
        findings.append(Finding(False, message, "predict, then observe: type its command again"))
    return findings or [Finding(True, f"predicted: {prediction.value}{_observed(part, facts)}")]


def _observed(part: Part, facts: Facts) -> str:
    try:
        return f"; seen: {part.prediction.seen(facts)}"
    except NotSeenError:
        return ""


def _run_findings(part: Part, facts: Facts) -> list[Finding]:
    try:
        return part.check(facts)
    except NotSeenError as error:
        return [Finding(False, error.what, error.hint)]


def _answer_findings(part: Part, progress: PartProgress, facts: Facts) -> list[Finding]:
    return [
        _check_question(part, number, question, progress, facts)
        for number, question in enumerate(part.questions, start=1)
    ]


def _check_question(
    part: Part, number: int, question: Question, progress: PartProgress, facts: Facts
) -> Finding:
    given = progress.answers.get(str(number))
    command = f"paceline learn answer {part.number} {number} VALUE"
    if given is None:
        return Finding(False, f"question {number} is open: {question.text}", command)
    try:
        if verdict(question, given.value, facts):
            return Finding(True, f"question {number}: {given.value} is right")
    except NotSeenError as error:
        return Finding(False, f"question {number}: {error.what}", error.hint)
    return Finding(False, f"question {number}: {given.value} is not what your run says", question.hint)
