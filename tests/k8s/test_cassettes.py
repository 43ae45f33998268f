"""Every known failure is recognised as it unfolds, and handled as the table says. On a virtual clock."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.k8s.replay import CASSETTES, Look, frames, play, read

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.classify import FAILURES
from paceline.k8s.diagnose.diagnosis import diagnose
from paceline.k8s.diagnose.retry import Resubmit, Stop


@pytest.mark.parametrize("path", CASSETTES, ids=lambda path: path.stem)
def test_a_failure_is_recognised_reported_and_handled(path: Path, wording: Wording) -> None:
    cassette = read(path)
    expect, looks = cassette["expect"], play(cassette)
    assert [look.verdict.action for look in looks] == expect["actions"]
    last = [look for look in looks if look.finding is not None][-1]
    finding = last.finding
    assert finding is not None
    assert (finding.failure.name, finding.kind.value) == (expect["failure"], expect["class"])
    text = "\n".join([*finding.lines(), last.verdict.says])
    wording(text)
    assert len(finding.lines()) <= 8
    assert finding.evidence, "a cause without evidence is a guess"
    assert "{" not in finding.command.replace("{.", "")
    _is_answered(last, expect)


def _is_answered(last: Look, expect: dict[str, Any]) -> None:
    verdict = last.verdict
    if "exit_code" in expect:
        assert isinstance(verdict, Stop)
        assert verdict.exit_code == ExitCode(expect["exit_code"])
        assert verdict.remove
    if isinstance(verdict, Resubmit):
        assert verdict.budget == expect.get("budget", verdict.budget)
        assert list(verdict.excluded) == expect.get("excluded", list(verdict.excluded))
        assert verdict.change == expect.get("change", verdict.change)
        assert " step " in verdict.says
        assert verdict.not_before_s > last.at_s


def test_each_of_the_first_fifty_rows_has_a_cassette_and_no_number_is_missing() -> None:
    assert {failure.number for failure in FAILURES} == set(
        range(1, 1 + max(failure.number for failure in FAILURES))
    )
    assert {read(path)["row"] for path in CASSETTES} == set(range(1, 51))


def test_a_wrong_tag_is_reported_at_the_first_event_and_stopped_within_20_seconds() -> None:
    (path,) = [path for path in CASSETTES if path.stem == "16-image-not-found"]
    cassette = read(path)
    looks = play(cassette)
    first_s = frames(cassette)[0].at_s + 3  # the event says 10:00:05, the first look is at 10:00:02
    reported = next(look for look in looks if look.finding is not None)
    stopped = next(look for look in looks if isinstance(look.verdict, Stop))
    assert reported.finding is not None
    assert "example.com/x:2" in reported.finding.cause
    assert reported.at_s - first_s <= 20
    assert stopped.at_s - first_s <= 20
    assert isinstance(stopped.verdict, Stop)
    assert stopped.verdict.remove
    assert stopped.verdict.exit_code is ExitCode.BAD_CONFIG


@pytest.mark.parametrize("path", CASSETTES, ids=lambda path: path.stem)
def test_a_program_s_own_failure_is_never_tried_again_unasked(path: Path) -> None:
    cassette = read(path)
    for look in play({**cassette, "policy": {}}):
        if look.finding is not None and look.finding.failure.name in (
            "user-exception",
            "crash-loop",
            "unknown",
        ):
            assert not isinstance(look.verdict, Resubmit)


@pytest.mark.parametrize("path", CASSETTES, ids=lambda path: path.stem)
def test_the_order_in_which_objects_are_listed_does_not_matter(path: Path) -> None:

    for snapshot in frames(read(path)):
        turned = replace(snapshot, objects=snapshot.objects[::-1], logs=snapshot.logs[::-1])
        one, other = diagnose(snapshot), diagnose(turned)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.failure.name, one.kind) == (other.failure.name, other.kind)
