"""Could these answers have come from one register that handles one request at a time?

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
    answered: int = NEVER  # NEVER: nobody knows whether it happened


def is_linearizable(operations: Iterable[Operation]) -> bool:
    by_key: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.is_write or operation.answered < NEVER:  # an unanswered read says nothing
            by_key.setdefault(operation.key, []).append(operation)
    return all(_one_register(mine) for mine in by_key.values())


def _one_register(operations: list[Operation]) -> bool:
    """Depth-first: which operation took effect next, given which have and what the register holds?"""
    operations = sorted(operations, key=lambda o: o.asked)
    answered = sum(1 << n for n, o in enumerate(operations) if o.answered < NEVER)
    stack = [(0, "")]
    seen = {(0, "")}
    while stack:
        done, value = stack.pop()
        if done & answered == answered:
            return True
        # Whoever was asked after someone else had been answered cannot come before them.
        first_answer = min(o.answered for n, o in enumerate(operations) if not done >> n & 1)
        for number, operation in enumerate(operations):
            if done >> number & 1:
                continue
            if operation.asked > first_answer:
                break
            if not operation.is_write and operation.value != value:
                continue
            state = (done | 1 << number, operation.value if operation.is_write else value)
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False
