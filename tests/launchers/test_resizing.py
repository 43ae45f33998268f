"""Resizing: which workers start and leave on an operator's request, and which requests are refused."""

import pytest

from paceline.launchers.supervision import Granted, OperatorRequest, Refused, Workforce, answer_request

CREW = Workforce(here={"worker-0", "worker-2"}, leaving={"worker-1"}, fewest=1, most=4, names=12)


def test_new_workers_take_the_names_that_are_free() -> None:
    given = answer_request(OperatorRequest(7, "add", 2), CREW)
    assert given == Granted(
        7, start=("worker-3", "worker-4"), reason="worker-3, worker-4 added: 4 workers are wanted"
    )


def test_the_newest_leave_unless_one_is_named() -> None:
    newest = answer_request(OperatorRequest(7, "remove"), CREW)
    named = answer_request(OperatorRequest(8, "remove", worker="worker-0"), CREW)
    assert isinstance(newest, Granted)
    assert isinstance(named, Granted)
    assert (newest.leave, named.leave) == (("worker-2",), ("worker-0",))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (OperatorRequest(1, "add", 3), "it would have 5 workers, and takes 4 at most: as --max-workers says"),
        (OperatorRequest(1, "add", 0), "it takes 1 or more"),
        (OperatorRequest(1, "remove", 2), "it would have 0 workers, and needs 1, as --min-workers says"),
        (OperatorRequest(1, "remove", 9), "it would have 0 workers"),
        (OperatorRequest(1, "remove", worker="worker-9"), "worker-9 is not there"),
        (OperatorRequest(1, "explode"), "no action 'explode'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(wish: OperatorRequest, why: str) -> None:
    given = answer_request(wish, CREW)
    assert isinstance(given, Refused)
    assert why in given.reason


def test_more_workers_than_shards_are_refused_because_of_the_shards() -> None:
    full = Workforce(here={"worker-0", "worker-1"}, leaving=(), fewest=1, most=2, names=2)
    given = answer_request(OperatorRequest(1, "add"), full)
    assert isinstance(given, Refused)
    assert "it has no more shards" in given.reason


def test_a_name_is_free_once_its_worker_is_gone() -> None:
    leaving = Workforce(here={"worker-0"}, leaving={"worker-1"}, fewest=1, most=2, names=2)
    given = answer_request(OperatorRequest(1, "add"), leaving)
    assert isinstance(given, Refused)
    assert "still leaving" in given.reason


def test_a_checkpoint_moves_nobody() -> None:
    given = answer_request(OperatorRequest(7, "checkpoint"), Workforce({"worker-0"}, set(), 1, 2, 2))
    assert isinstance(given, Granted)
    assert given.is_saving
    assert (given.start, given.leave) == ((), ())
