"""The checker accepts exactly the histories that one register could have produced."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.raft_simulation.linearizability import NEVER, Operation, is_linearizable


def write(value: str, requested: int, answered: int = NEVER, key: str = "a") -> Operation:
    return Operation(key, True, value, requested, answered)


def read(value: str, requested: int, answered: int = NEVER, key: str = "a") -> Operation:
    return Operation(key, False, value, requested, answered)


POSSIBLE = {
    "nothing happened": [],
    "a read after a write": [write("1", 1, 2), read("1", 3, 4)],
    "a fresh register": [read("", 1, 2), write("1", 3, 4)],
    "a read during a write sees the old value": [write("1", 1, 9), read("", 2, 3)],
    "a read during a write sees the new value": [write("1", 1, 9), read("1", 2, 3)],
    "overlapping writes in either order": [write("1", 1, 9), write("2", 2, 8), read("1", 10, 11)],
    "an unanswered write took effect late": [write("1", 1), read("", 2, 3), read("1", 4, 5)],
    "an unanswered write never took effect": [write("1", 1), read("", 2, 3), read("", 90, 99)],
    "an unanswered read says nothing": [write("1", 1, 2), read("7", 3)],
    "keys do not matter to each other": [write("1", 1, 2), read("", 3, 4, key="b")],
}

IMPOSSIBLE = {
    "a stale read": [write("1", 1, 2), write("2", 3, 4), read("1", 5, 6)],
    "a lost write": [write("1", 1, 2), read("", 3, 4)],
    "a value that was never written": [write("1", 1, 2), read("7", 3, 4)],
    "a value before it was written": [read("1", 1, 2), write("1", 3, 4)],
    "back to the old value": [write("1", 1, 9), read("1", 2, 3), read("", 4, 5)],
    "two readers disagree about the order": [
        write("1", 1, 20),
        write("2", 1, 20),
        read("1", 2, 3),
        read("2", 4, 5),
        read("1", 6, 7),
    ],
    "an unanswered write takes effect once": [
        write("1", 1),
        read("1", 2, 3),
        write("2", 4, 5),
        read("1", 6, 7),
    ],
    "one bad key among good ones": [write("1", 1, 2, key="b"), read("1", 3, 4, key="b"), read("1", 5, 6)],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_accepts(name: str) -> None:
    assert is_linearizable(POSSIBLE[name])


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_rejects(name: str) -> None:
    assert not is_linearizable(IMPOSSIBLE[name])


def by_trying_everything(operations: list[Operation]) -> bool:
    """The definition, word for word: some order of the answered ones and some of the others explains all."""
    known = [o for o in operations if o.answered < NEVER]
    unknown = [o for o in operations if o.answered == NEVER and o.is_write]
    for chosen in range(1 << len(unknown)):
        taken = known + [o for n, o in enumerate(unknown) if chosen >> n & 1]
        if any(_explains(order) for order in permutations(taken)):
            return True
    return False


def _explains(order: tuple[Operation, ...]) -> bool:
    value = ""
    for place, operation in enumerate(order):
        if any(later.answered < operation.asked for later in order[place + 1 :]):
            return False
        if operation.is_write:
            value = operation.value
        elif operation.value != value:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    results = []
    for number in range(draw(st.integers(0, 5))):
        requested = draw(st.integers(0, 8))
        answered = draw(st.one_of(st.integers(requested, 9), st.just(NEVER)))
        if draw(st.booleans()):
            results.append(write(str(number), requested, answered))
        else:
            results.append(read(draw(st.sampled_from(["", "0", "1", "2", "3", "4"])), requested, answered))
    return results


@settings(max_examples=300, deadline=None)
@given(histories())
def test_agrees_with_the_definition(operations: list[Operation]) -> None:
    assert is_linearizable(operations) == by_trying_everything(operations)
