"""Progress of a learner: one JSON file; every change returns a new `Progress`.

A prediction must precede the runs of its part. Times that a text editor can change do not decide
this. A prediction lists the fingerprints of the runs that existed when it was made, and the host's
monotonic clock, which is also in every recorded step. The file ends with a checksum, so that an edit
of it is noticed; the edited file keeps an invalid checksum until `--reset`.

This detects edited times and reused runs. It does not stop a learner who writes a program that
computes the checksum or a complete event log.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.learn.lesson import Facts, Finding, NotSeenError, Part, Question, Trace, is_right
from paceline.plan.codec import Json, from_json, to_json

SCHEMA = "paceline.learn/2"
FIRST_SCHEMA = "paceline.learn/1"  # without checksum, monotonic clock and fingerprints
_SEAL = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Now, by all clocks."""

    unix_s: float
    monotonic_ns: int
    boot_id: str  # of the host; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    value: str
    at_unix_s: float
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrediction:
    value: str
    at_unix_s: float
    tries: int = 1
    at_monotonic_ns: int = 0
    boot_id: str = ""
    existing: tuple[str, ...] = ()  # fingerprints of the runs that had been made by then

    def precedes(self, run: Trace, boot_id: str) -> bool:
        """Whether the run was started after this prediction. `boot_id`: of the host now."""
        if run.fingerprint in self.existing:
            return False
        if boot_id and boot_id == self.boot_id and run.first_step_ns is not None:
            return run.first_step_ns > self.at_monotonic_ns
        return run.began_unix_s >= self.at_unix_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProgress:
    begun_unix_s: float
    prediction: RecordedPrediction | None = None
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

    def predict(self, number: int, value: str, now: Moment, existing: Sequence[str] = ()) -> "Progress":
        """`existing`: fingerprints of the runs that exist already; they cannot be the predicted ones."""
        prediction = RecordedPrediction(
            value=value,
            at_unix_s=now.unix_s,
            at_monotonic_ns=now.monotonic_ns,
            boot_id=now.boot_id,
            existing=tuple(sorted(existing)),
        )
        return self._with(number, replace(self._begun(number), prediction=prediction))

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
        assert part is not None, "a part is started before anything else is recorded"
        return part

    def _with(self, number: int, part: PartProgress) -> "Progress":
        return replace(self, parts={**self.parts, str(number): part})


def dumps(progress: Progress, *, is_valid: bool = True) -> str:
    """`is_valid=False`: the file was edited; it stays invalid."""
    values = to_json(progress)
    assert isinstance(values, dict), "a dataclass becomes an object"
    return json.dumps({**values, _SEAL: _checksum(values) if is_valid else ""}, indent=2) + "\n"


def loads(text: str) -> tuple[Progress, bool]:
    """The progress, and whether its checksum is valid. Raises ValueError."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    recorded = values.pop(_SEAL, "")
    is_valid = recorded == _checksum(values)
    if values.get("schema") == FIRST_SCHEMA:
        values = _upgraded(values)
    if values.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {values.get('schema')!r}, this version reads {SCHEMA!r}")
    progress = from_json(Progress, values)
    assert isinstance(progress, Progress), "from_json(Progress, …) builds one"
    return progress, is_valid


def _checksum(values: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _upgraded(values: dict[str, Json]) -> dict[str, Json]:
    """A file of the first schema, with the defaults of the fields that it lacks."""
    added: dict[str, Json] = {"at_monotonic_ns": 0, "boot_id": "", "existing": []}
    parts = values.get("parts")
    upgraded: dict[str, Json] = {}
    for number, part in (parts if isinstance(parts, dict) else {}).items():
        if not isinstance(part, dict):
            raise ValueError(f"part {number} is not an object")
        prediction = part.get("prediction")
        if isinstance(prediction, dict):
            part = {**part, "prediction": {**added, **prediction}}
        upgraded[number] = part
    return {**values, "parts": upgraded, "schema": SCHEMA}


def check(part: Part, progress: PartProgress | None, facts: Facts, *, is_valid: bool = True) -> list[Finding]:
    """All findings, in the order of the lesson. `is_valid`: the file's checksum is."""
    if progress is None:
        return [Finding(False, f"part {part.number} was not started", f"paceline learn start {part.number}")]
    edited = Finding(
        False,
        "progress.json has no valid checksum: it was edited, or written by an earlier version",
        "start over (runs are kept, but must be repeated after the prediction): paceline learn --reset",
    )
    tampered = [] if is_valid else [edited]
    return [
        *tampered,
        *_prediction_findings(part, progress, facts),
        *_consistency_findings(part, facts),
        *_run_findings(part, facts),
        *_answer_findings(part, progress, facts),
    ]


def verdict(question: Question, given: str, facts: Facts) -> bool:
    """Raises NotSeenError if its runs do not exist."""
    return is_right(given, question.right(facts), question.options)


def skipped(number: int, progress: Progress, first: int = 1) -> list[int]:
    """Parts of the track before this one that are not done; `first` is the track's first part."""
    return [before for before in range(first, number) if not progress.is_done(before)]


def current(parts: Sequence[Part], progress: Progress) -> Part | None:
    """The first one that is not done; None: all are."""
    return next((part for part in parts if not progress.is_done(part.number)), None)


def _prediction_findings(part: Part, progress: PartProgress, facts: Facts) -> list[Finding]:
    prediction = progress.prediction
    if prediction is None:
        return [
            Finding(
                False,
                "there is no prediction",
                f"predict first; a wrong guess is fine: paceline learn predict {part.number} GUESS",
            )
        ]
    again = "predict first, then run the command again: it makes a new folder, and the newest run counts"
    findings = [
        Finding(False, f"{run.folder} was started before the prediction", again)
        for name in part.new_runs
        if (run := facts.runs.get(name)) is not None and not prediction.precedes(run.trace, facts.boot_id)
    ]
    findings += [
        Finding(False, f"{trace.folder} was started before the prediction", again)
        for name in part.new_benchmarks
        if (made := facts.benchmarks.get(name)) is not None
        for trace in made.traces
        if not prediction.precedes(trace, facts.boot_id)
    ]
    findings += _comparison_findings(prediction, facts) if part.is_compared else []
    return findings or [Finding(True, f"predicted: {prediction.value}{_observed(part, facts)}")]


def _comparison_findings(prediction: RecordedPrediction, facts: Facts) -> list[Finding]:
    if facts.compared is None:
        return []
    again = "predict first, then: rm -r comparison, and run `paceline compare` as on the page"
    missing = [
        Finding(False, f"{folder}, a run of the comparison, does not exist", again)
        for folder in facts.compared.missing
    ]
    early = [run.folder for run in facts.compared.traces if not prediction.precedes(run, facts.boot_id)]
    if early:
        message = f"the comparison has runs that were started before the prediction: {', '.join(early)}"
        missing.append(Finding(False, message, again))
    return missing


def _consistency_findings(part: Part, facts: Facts) -> list[Finding]:
    return [
        Finding(
            False,
            f"{run.folder}: result.json does not have the numbers of events.jsonl",
            "one of the two files was changed: run the command again",
        )
        for name in part.runs
        if (run := facts.runs.get(name)) is not None and not run.is_consistent
    ] + [
        Finding(
            False,
            f"{made.folder}/comparison.json does not have the times of its runs",
            f"one of its files was changed: rm -r {made.folder}, and run the command again",
        )
        for name in part.benchmarks
        if (made := facts.benchmarks.get(name)) is not None and not made.is_consistent
    ]


def _observed(part: Part, facts: Facts) -> str:
    try:
        return f"; result: {part.prediction.seen(facts)}"
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
        return Finding(False, f"question {number} is not answered: {question.text}", command)
    try:
        if verdict(question, given.value, facts):
            return Finding(True, f"question {number}: {given.value} is right")
    except NotSeenError as error:
        return Finding(False, f"question {number}: {error.what}", error.hint)
    return Finding(False, f"question {number}: {given.value} does not match your run", question.hint)
