"""Resizing: which workers start and leave on an operator's request, and which requests are refused."""

import pytest
from tests.fixtures.wording import Wording

from paceline.launchers.supervision import (
    Effect,
    Granted,
    OperatorRequest,
    Refused,
    Workforce,
    answer_request,
)

CREW = Workforce(here={"worker-0", "worker-2"}, leaving={"worker-1"}, fewest=1, most=4, names=12)


def test_new_workers_take_the_names_that_are_free(wording: Wording) -> None:
    given = answer_request(OperatorRequest(7, "add", 2), CREW)
    assert given == Granted(7, start=("worker-3", "worker-4"), reason=given.reason)
    wording(given.reason)


def test_the_newest_leave_unless_one_is_named() -> None:
    newest = answer_request(OperatorRequest(7, "remove"), CREW)
    named = answer_request(OperatorRequest(8, "remove", worker="worker-0"), CREW)
    assert isinstance(newest, Granted)
    assert isinstance(named, Granted)
    assert (newest.leave, named.leave) == (("worker-2",), ("worker-0",))


@pytest.mark.parametrize(
    "request_",
    [
        OperatorRequest(1, "add", 3),
        OperatorRequest(1, "add", 0),
        OperatorRequest(1, "remove", 2),
        OperatorRequest(1, "remove", 9),
        OperatorRequest(1, "remove", worker="worker-9"),
        OperatorRequest(1, "explode"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(request_: OperatorRequest, wording: Wording) -> None:
    given = answer_request(request_, CREW)
    assert isinstance(given, Refused)
    wording(given.reason)


def test_more_workers_than_shards_are_refused_because_of_the_shards(wording: Wording) -> None:
    full = Workforce(here={"worker-0", "worker-1"}, leaving=(), fewest=1, most=2, names=2)
    given = answer_request(OperatorRequest(1, "add"), full)
    assert isinstance(given, Refused)
    wording(given.reason)


def test_a_name_is_free_once_its_worker_is_gone(wording: Wording) -> None:
    leaving = Workforce(here={"worker-0"}, leaving={"worker-1"}, fewest=1, most=2, names=2)
    given = answer_request(OperatorRequest(1, "add"), leaving)
    assert isinstance(given, Refused)
    wording(given.reason)


def test_a_checkpoint_moves_no_worker() -> None:
    given = answer_request(OperatorRequest(7, "checkpoint"), Workforce({"worker-0"}, set(), 1, 2, 2))
    assert isinstance(given, Granted)
    assert given.effect is Effect.CHECKPOINT
    assert (given.start, given.leave) == ((), ())
