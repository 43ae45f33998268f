"""Is a part done? What was predicted, what was seen, what was answered: each is one finding."""

from collections.abc import Sequence

from paceline.learn.facts import Facts, NotSeenError
from paceline.learn.judge import is_right
from paceline.learn.lesson import Finding, Part, Question
from paceline.learn.progress import PartProgress, Progress


def check(part: Part, progress: PartProgress | None, facts: Facts) -> list[Finding]:
    """All of them, in the order in which a learner meets them."""
    if progress is None:
        return [Finding(False, f"part {part.number} was not begun", f"paceline learn start {part.number}")]
    return [*_predicted(part, progress, facts), *_seen(part, facts), *_answered(part, progress, facts)]


def verdict(question: Question, said: str, facts: Facts) -> bool:
    """Raises NotSeenError when the runs it is about are not there."""
    return is_right(said, question.right(facts), question.options)


def skipped(number: int, progress: Progress) -> list[int]:
    """Parts before this one that are not done."""
    return [before for before in range(1, number) if not progress.is_done(before)]


def current(parts: Sequence[Part], progress: Progress) -> Part | None:
    """The first one that is not done; None: all are."""
    return next((part for part in parts if not progress.is_done(part.number)), None)


def _predicted(part: Part, progress: PartProgress, facts: Facts) -> list[Finding]:
    said = progress.prediction
    if said is None:
        return [
            Finding(
                False,
                "nothing was predicted",
                f"guess first, it cannot be wrong: paceline learn predict {part.number} GUESS",
            )
        ]
    again = "predict, then observe: type its command again (a new folder is made, and the newest counts)"
    found = [
        Finding(False, f"{run.folder} began before the prediction", again)
        for name in part.new_runs
        if (run := facts.runs.get(name)) is not None and run.began_unix_s < said.at_unix_s
    ]
    compared = facts.compared if part.is_compared else None
    if compared is not None and compared.written_unix_s < said.at_unix_s:
        made = "the comparison was made before the prediction"
        found.append(Finding(False, made, "predict, then observe: type its command again"))
    return found or [Finding(True, f"predicted: {said.value}{_beside(part, facts)}")]


def _beside(part: Part, facts: Facts) -> str:
    try:
        return f"; seen: {part.prediction.seen(facts)}"
    except NotSeenError:
        return ""


def _seen(part: Part, facts: Facts) -> list[Finding]:
    try:
        return part.check(facts)
    except NotSeenError as error:
        return [Finding(False, error.what, error.hint)]


def _answered(part: Part, progress: PartProgress, facts: Facts) -> list[Finding]:
    return [
        _one(part, number, question, progress, facts)
        for number, question in enumerate(part.questions, start=1)
    ]


def _one(part: Part, number: int, question: Question, progress: PartProgress, facts: Facts) -> Finding:
    said = progress.answers.get(str(number))
    command = f"paceline learn answer {part.number} {number} VALUE"
    if said is None:
        return Finding(False, f"question {number} is open: {question.text}", command)
    try:
        if verdict(question, said.value, facts):
            return Finding(True, f"question {number}: {said.value} is right")
    except NotSeenError as error:
        return Finding(False, f"question {number}: {error.what}", error.hint)
    return Finding(False, f"question {number}: {said.value} is not what your run says", question.hint)
