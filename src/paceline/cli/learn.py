"""`paceline learn`: the course, part by part; steps are verified from the runs themselves."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.learn.course import Checked, Course, Track
    from paceline.learn.lesson import Options, Part
    from paceline.plan.codec import Json

_DEFAULT_DIR = Path("learn")
_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help=f"Folder of progress.json; the runs are in runs/ next to it. [default: {_DEFAULT_DIR}]",
)
_part = click.argument("part", type=int, required=False, metavar="[PART]")


@click.group("learn", invoke_without_command=True)
@click.option("--reset", is_flag=True, help="Delete the recorded predictions and answers; runs are kept.")
@_folder
@common_options
def learn(session: Session, folder: Path | None, reset: bool) -> None:
    """Learn distributed training in 8 parts and 75 minutes: predict, run, observe, answer.

    Parts 11 to 18 are a second track of 80 minutes, with Keras on a Ray cluster. Without a
    subcommand, show your progress. `start` names the page of a part. Answers are checked against
    your own runs.
    """
    if click.get_current_context().invoked_subcommand is not None:
        if reset:
            raise click.UsageError(
                "--reset takes no subcommand: paceline learn --reset", click.get_current_context()
            )
        return
    from paceline.learn.course import TRACKS, Course

    progress_dir = session.folder / (folder or _DEFAULT_DIR)
    course = Course.reset(progress_dir) if reset else Course(progress_dir)
    if not course.is_valid:
        print_message(session, "warning: progress.json has no valid checksum; `paceline learn check` fails")
    rows: list[Json] = [
        {
            "track": track.name,
            "part": part.number,
            "title": part.title,
            "minutes": part.minutes,
            "state": course.progress.state(part.number),
        }
        for track in TRACKS
        for part in track.parts
    ]
    lines = [line for track in TRACKS for line in _track_lines(course, track)]
    following = _next(session, course)
    emit(session, "learn", {"parts": rows, "next": following}, [*lines, "", f"next: {following}"])


@learn.command("start")
@_part
@_folder
@common_options
def start(session: Session, part: int | None, folder: Path | None) -> None:
    """Start PART (default: the first unfinished one): show its page and the prediction to make."""
    course = _course(session, folder)
    lesson = course.part(part)
    skipped = course.start(lesson)
    for number in skipped:
        print_message(session, f"note: part {number} is not done, and this part builds on it")
    questions: list[Json] = [
        {"question": n, "text": q.text, "options": _options_json(q.options)}
        for n, q in enumerate(lesson.questions, 1)
    ]
    data: Json = {
        "part": lesson.number,
        "title": lesson.title,
        "page": _page(session, lesson),
        "prediction": {"text": lesson.prediction.text, "options": _options_json(lesson.prediction.options)},
        "questions": questions,
        "not_done": list(skipped),
    }
    has_predicted = course.progress.state(lesson.number) in ("predicted", "done")
    lines = [*_part_lines(session, lesson), *(_question_lines(lesson) if has_predicted else ())]
    emit(session, "learn.start", data, lines)


@learn.command("predict")
@click.argument("part", type=int)
@click.argument("guess")
@_folder
@common_options
def predict(session: Session, part: int, guess: str, folder: Path | None) -> None:
    """Record the prediction GUESS for PART before the run. It is not graded."""
    course = _course(session, folder)
    lesson = course.part(part)
    course.predict(lesson, guess)
    lines = [
        f"part {lesson.number}: you predicted {guess}",
        f"next: run the commands under `Run` in {_page(session, lesson)}",
        *_question_lines(lesson),
    ]
    emit(session, "learn.predict", {"part": lesson.number, "guess": guess}, lines)


@learn.command("answer", context_settings={"ignore_unknown_options": True})
@click.argument("part", type=int)
@click.argument("question", type=int)
@click.argument("value")
@_folder
@common_options
def answer(session: Session, part: int, question: int, value: str, folder: Path | None) -> ExitCode:
    """Answer QUESTION of PART with VALUE, a number or a letter; exit code 8 if it is wrong.

    The answer is compared with your own runs, to the precision that they printed.
    """
    course = _course(session, folder)
    lesson = course.part(part)
    answered = course.answer(lesson, question, value)
    data: Json = {"part": lesson.number, "question": question, "value": value, **asdict(answered)}
    right = f"part {lesson.number}, question {question}: {value} is right"
    wrong = f"part {lesson.number}, question {question}: {value} does not match your runs"
    emit(
        session,
        "learn.answer",
        data,
        [right] if answered.is_right else [wrong, f"hint: {answered.hint}"],
    )
    return ExitCode.OK if answered.is_right else ExitCode.GATE_FAILED


@learn.command("check")
@_part
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Check every part of the track that was started last, or of that of PART.",
)
@_folder
@common_options
def check(session: Session, part: int | None, is_all: bool, folder: Path | None) -> ExitCode:
    """Check whether PART (default: the first unfinished one) is done; exit code 8 if not."""
    from paceline.learn.course import track_of

    course = _course(session, folder)
    parts_of_track = (course.track if part is None else track_of(part)).parts
    lessons = parts_of_track if is_all else (course.part(part),)
    checked_lessons = [course.check(lesson) for lesson in lessons]
    is_done = all(lesson.is_done for lesson in checked_lessons)
    parts: list[Json] = [
        {"part": c.part.number, "is_done": c.is_done, "findings": [dict(asdict(f)) for f in c.findings]}
        for c in checked_lessons
    ]
    lines = [line for lesson in checked_lessons for line in _check_lines(lesson, is_short=is_all)]
    done = sum(course.progress.is_done(p.number) for p in parts_of_track)
    following = _next(session, course)
    lines += ["", f"{done} of {len(parts_of_track)} parts are done; next: {following}"]
    emit(session, "learn.check", {"is_done": is_done, "parts": parts, "next": following}, lines)
    return ExitCode.OK if is_done else ExitCode.GATE_FAILED


def _course(session: Session, folder: Path | None) -> "Course":
    """The course in `--dir`, given before or after the command's name."""
    from paceline.learn.course import Course

    parent = click.get_current_context().parent
    assert parent is not None, "the command is one of the group `learn`"
    return Course(session.folder / (folder or parent.params["folder"] or _DEFAULT_DIR))


def _page(session: Session, part: "Part") -> str:
    """Path of the page from the working directory; in the repository if the package has no pages."""
    from paceline.learn.course import page_path

    path = page_path(part.page)
    if not path.exists():
        return f"docs/learn/{part.page}"
    return min(str(path), os.path.relpath(path, session.folder), key=len)


def _next(session: Session, course: "Course") -> str:
    from paceline.learn.progress import current

    part = current(course.track.parts, course.progress)
    if part is None:
        return "this track is complete; more experiments: paceline lab list"
    match course.progress.state(part.number):
        case "not begun":
            return f"paceline learn start {part.number}"
        case "begun":
            return f"paceline learn predict {part.number} GUESS"
        case _:
            return f"run the commands of {_page(session, part)}, then paceline learn check {part.number}"


def _track_lines(course: "Course", track: "Track") -> Iterator[str]:
    yield f"{track.title}:"
    for part in track.parts:
        state = course.progress.state(part.number)
        yield f"{part.number:>2}  {state:<10} {part.minutes:>3} min  {part.title}"


def _part_lines(session: Session, part: "Part") -> Iterator[str]:
    yield f"Part {part.number}: {part.title} ({part.minutes} minutes)"
    yield f"Page:    {_page(session, part)}"
    yield part.see
    yield ""
    yield f"Predict: {part.prediction.text}"
    yield from _option_lines(part.prediction.options)
    yield f"         paceline learn predict {part.number} GUESS"


def _question_lines(part: "Part") -> Iterator[str]:
    """Shown after the prediction only: some questions give it away."""
    yield ""
    yield f"Questions after the run (paceline learn answer {part.number} QUESTION VALUE):"
    for number, question in enumerate(part.questions, start=1):
        yield f"  {number}. {question.text}"
        yield from _option_lines(question.options)


def _option_lines(options: "Options") -> Iterator[str]:
    yield from (f"         {key}  {text}" for key, text in options)


def _options_json(options: "Options") -> "dict[str, Json]":
    return dict(options)


def _check_lines(checked: "Checked", *, is_short: bool) -> Iterator[str]:
    yield f"Part {checked.part.number}: {checked.part.title}"
    for finding in checked.findings:
        if is_short and finding.ok:
            continue
        yield f"  {'ok  ' if finding.ok else 'not '} {finding.what}"
        if not finding.ok and finding.hint:
            yield f"       {finding.hint}"
    if checked.is_done:
        yield f"  done. {checked.part.moral}"
