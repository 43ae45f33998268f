"""Linearizability checker for a register that handles one request at a time.

The search of Wing and Gong (1993) with Lowe's memory of visited states (2017):
try every operation that may be first, undo, try the next. A write without an
answer may take effect at any later time, or never. Keys are independent of each
other, so each is checked alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

NEVER = 1 << 60


@dataclass(slots=True)
class Operation:
    key: str
    is_write: bool
    value: str  # written, or read; "" is what a fresh register holds
    asked: int
    answered: int = NEVER  # NEVER: whether it happened is unknown


def is_linearizable(operations: Iterable[Operation]) -> bool:
    by_key: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.is_write or operation.answered < NEVER:  # an unanswered read says nothing
            by_key.setdefault(operation.key, []).append(operation)
    return all(_one_register(mine) for mine in by_key.values())


def _one_register(operations: list[Operation]) -> bool:
    """Depth-first: which operation took effect next, given which have and what the register holds?"""
    # The operation answered first mostly took effect first: the last in the list is tried first.
    operations = sorted(operations, key=lambda o: -o.answered)
    answered = sum(1 << n for n, o in enumerate(operations) if o.answered < NEVER)
    stack = [(0, "")]
    seen = {(0, "")}
    while stack:
        result, value = stack.pop()
        if result & answered == answered:
            return True
        for state in _next(operations, result, value):
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False


def _next(operations: list[Operation], result: int, value: str) -> list[tuple[int, str]]:
    left = [(1 << n, o) for n, o in enumerate(operations) if not result >> n & 1]
    # An operation that began after another one was answered cannot come before it.
    first_answer = left[-1][1].answered
    results = []
    for bit, operation in left:
        if operation.asked > first_answer:
            continue
        if operation.is_write:
            results.append((result | bit, operation.value))
        elif operation.value == value:
            return [(result | bit, value)]  # it changes nothing, so that now is as good as any later time
    return results
