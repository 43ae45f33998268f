"""Real error texts are told apart: files of them, each with what it is.

`held_back_texts.jsonl` was labelled before there was any rule, and no rule was made by looking at it. When it
was first measured, 77 of its 79 texts were named right, and all 79 had the right class. `later_texts.jsonl`
came from other searches afterwards: 4 of its first 10 were right, and 8 of the next 10, after rules had been
added for the first. They are kept, so that what was learned stays learned.

Four labels changed since. A mount that times out, and a volume that is attached where no pod uses it,
were `wait` or `config` and are `infra`: another node or some minutes help.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.k8s.diagnose.classify import TEXTS, classify
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.kubectl_describe import parse_described

FOLDER = Path(__file__).parent


def texts(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def wrong(name: str) -> list[str]:
    missed = []
    for text in texts(name):
        recognised = classify(text["text"])
        got = (None, None) if recognised is None else (recognised.failure.name, recognised.failure.kind.value)
        if got != (text["kind"], text["class"]):
            missed.append(f"{got} instead of {text['kind']}: {text['text'][:80]}")
    return missed


def test_at_least_95_of_100_held_back_texts_are_classified_correctly() -> None:
    held_back = texts("held_back_texts.jsonl")
    assert sum(text["kind"] is not None for text in held_back) >= 60
    missed = wrong("held_back_texts.jsonl")
    assert len(missed) <= 0.05 * len(held_back), missed


def test_texts_that_were_once_misclassified_stay_correct() -> None:
    assert wrong("later_texts.jsonl") == []


@pytest.mark.parametrize("name", ["held_back_texts.jsonl", "later_texts.jsonl"])
def test_no_bug_of_a_program_is_taken_for_the_cluster_s(name: str) -> None:
    """The other way round costs an attempt less; this way round costs a night of GPUs."""
    for text in texts(name):
        recognised = classify(text["text"])
        if text["class"] == "app" and recognised is not None:
            assert recognised.failure.kind.value != "infra", text["text"]


def test_no_pattern_starts_with_a_wildcard() -> None:
    """Such words are tried from every letter to the end of the text: a long line would take minutes."""
    slow = re.compile(r"(?:\(\?P<\w+>|\(\?:|\(\?=)*(?:\[[^\]]*\]|\\S|\.)[*+]")
    assert [text.words.pattern for text in TEXTS if slow.match(text.words.pattern)] == []


ACTIONS = {"infra": "retry", "config": "stop", "app": "stop", "fixable": "stop", "wait": "wait"}


def explained(name: str) -> tuple[list[str], list[str]]:
    """Texts as people paste them, read like `job explain --from` does: wrong causes, wrong actions."""
    causes, actions = [], []
    for text in texts(name):
        finding = diagnose(parse_described(text["text"]))
        got = ("", "") if finding is None else (finding.failure.name, finding.kind.value)
        if got[0] not in text["kind"].split("|") or got[1] not in text["class"].split("|"):
            causes.append(f"{got} instead of {text['kind']}: {text['text'][:80]}")
        requested = {ACTIONS[kind] for kind in text["class"].split("|")}
        if got[1] in ACTIONS and ACTIONS[got[1]] not in requested:
            actions.append(f"{got} instead of {text['class']}: {text['text'][:80]}")
    return causes, actions


def test_texts_from_the_field_are_explained() -> None:
    """Rules were made with `field_texts.jsonl` in view; entries without a source were written for them.

    Each class has neighbours that look alike and need another action.
    """
    assert explained("field_texts.jsonl") == ([], [])


def test_texts_that_were_put_aside_are_explained_too() -> None:
    """Every third collected text was put aside while rules were made for the others.

    When they were first measured, 30 of 32 causes were right, and 2 actions wrong; both were corrected since.
    """
    causes, actions = explained("field_texts_aside.jsonl")
    number = len(texts("field_texts_aside.jsonl"))
    assert len(causes) <= 0.2 * number, causes
    assert len(actions) <= 0.03 * number, actions
