"""The exercises of docs/learn work as typed, page after page, in one folder.

Where a page says `paceline learn check`, the answers are taken from the answers' page, so text,
answers and checks cannot drift apart.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.pages import ROOT, Order, Run, orders
from tests.fixtures.processes.shell_blocks import type_all, type_one

from paceline.learn.course import PARTS

FOLDER = ROOT / "docs" / "learn"
HEADINGS = (
    "What you will see",
    "Predict",
    "Run",
    "Observe",
    "Explain",
    "Checkpoint",
    "One experiment more",
)


def _text(page: str) -> str:
    return (FOLDER / page).read_text(encoding="utf-8")


def _answers() -> dict[int, list[Order]]:
    """By part; 0: what stands before all of them."""
    pieces = re.split(r"^## Part (\d)$", _text("answers.md"), flags=re.M)
    numbered = zip(pieces[1::2], pieces[2::2], strict=True)
    return {0: list(orders(pieces[0])), **{int(n): list(orders(text)) for n, text in numbered}}


def _as_typed(number: int, answers: list[Order]) -> Iterator[Order]:
    """What a learner types for a part: the page, and the answers before its check."""
    for order in orders(_text(f"part-{number}.md")):
        if isinstance(order, Run) and order.text.startswith(f"paceline learn check {number}"):
            yield from answers
        yield order


@pytest.mark.timeout(900)
def test_a_learner_who_follows_the_pages_finishes_the_exercise(tmp_path: Path) -> None:
    type_all(orders(_text("index.md")), tmp_path)
    exercise, answers = tmp_path / "exercise", _answers()
    type_all(answers[0], exercise)
    for part in PARTS:
        type_all(_as_typed(part.number, answers[part.number]), exercise)
    data = json.loads(type_one("paceline learn --json", exercise).stdout)
    assert [row["state"] for row in data["data"]["parts"]] == ["done"] * len(PARTS)
    _wrong_answers_are_told(exercise)
    _skipped_parts_are_told(exercise)


def _wrong_answers_are_told(exercise: Path) -> None:
    """By a learner who has the same runs, and gives other answers."""
    wrong = type_one("paceline learn answer 3 1 1.5", exercise)
    assert wrong.returncode == 8
    assert "1.5 " in wrong.stdout
    hint = PARTS[2].questions[0].hint
    assert " ".join(hint.split()) in " ".join(wrong.stdout.split())
    again = type_one("paceline learn check 3", exercise)
    assert again.returncode == 8, "a wrong answer takes the tick away"
    assert "question 3: " in again.stdout


def _skipped_parts_are_told(exercise: Path) -> None:
    """By a learner who skipped everything and begins with part 4."""
    type_one("paceline learn --reset", exercise)
    begun = type_one("paceline learn start 4", exercise)
    assert "part 1 " in begun.stderr
    assert "part 3 " in begun.stderr
    late = type_one("paceline learn predict 4 3; paceline learn check 4", exercise)
    assert "prediction" in late.stdout
    every = type_one("paceline learn check --all", exercise)
    assert every.returncode == 8
    assert "part 1 " in every.stdout
    assert "0 of 8 " in every.stdout


# What an undisturbed machine ends with; of part 1 the limit, which the result nearly reaches.
RESULTS = {1: "1280", 2: "3.7", 3: "3", 4: "3", 5: "0", 6: "0", 7: "b", 8: "d"}


@pytest.mark.parametrize(("part", "result"), RESULTS.items())
def test_the_guess_that_a_page_shows_as_an_example_is_not_the_result(part: int, result: str) -> None:
    (guess,) = re.findall(rf"^paceline learn predict {part} (\S+)$", _text(f"part-{part}.md"), re.M)
    assert guess != result


def test_questions_are_shown_only_after_the_prediction(tmp_path: Path) -> None:
    questions = PARTS[3].questions
    start = " ".join(type_one("paceline learn start 4", tmp_path).stdout.split())
    assert not any(question.text in start for question in questions)
    predicted = " ".join(type_one("paceline learn predict 4 1", tmp_path).stdout.split())
    assert all(question.text in predicted for question in questions)


def test_start_names_a_page_that_exists(tmp_path: Path) -> None:
    folder = tmp_path / "exercise"
    folder.mkdir()
    shown = json.loads(type_one("paceline learn start 1 --json", folder).stdout)["data"]["page"]
    assert (folder / shown).is_file()


def test_every_part_has_its_page_with_its_questions_and_minutes() -> None:
    overview, answers = _text("index.md"), _answers()
    assert [part.number for part in PARTS] == list(range(1, 9))
    assert sum(part.minutes for part in PARTS) == 75
    for part in PARTS:
        text = " ".join(_text(part.page).split())
        assert f"]({part.page}) | {part.minutes} |" in overview
        assert f"{part.minutes} minutes." in text
        for number in range(1, len(part.questions) + 1):
            assert f"paceline learn answer {part.number} {number} " in text
            typed = "".join(item.text for item in answers[part.number] if isinstance(item, Run))
            assert f"paceline learn answer {part.number} {number} " in typed
        for heading in HEADINGS:
            assert f"## {heading}" in text
        assert "../concepts/" in text or "../reference/" in text
