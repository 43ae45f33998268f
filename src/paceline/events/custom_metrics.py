"""Custom metrics of a task: `paceline.metric("name", value)`, called while a step is computed.

    class MyTask:
        def loss(self, model, batch):
            paceline.metric("sharpness", …)

The call only stores the value in memory; the worker writes the values of a step, in batches, into
the event log. Memory is bounded: at most 64 names, and 64 values per step. Values beyond that are
counted, and the count is logged as `paceline.dropped`. Outside of a run the values go nowhere.
"""

import re

from paceline.core.errors import PacelineError
from paceline.events.schema import CustomRow

MAX_NAMES = 64
MAX_PER_STEP = 64
DROPPED = "paceline.dropped"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")

# Values of this process; a worker clears the list after each step.
recorded: list[tuple[str, float]] = []
_names: set[str] = set()
_dropped = 0


def metric(name: str, value: float) -> None:
    """Record a metric of the step that is being computed.

    Arguments:

    - `name`: a letter or underscore first, then letters, digits, dots, dashes or underscores, at most 64.
    - `value`: any real number, or a tensor of one element.

    Values beyond 64 names, or 64 values in a step, are counted and dropped. Outside of a run the values are
    not written.

    Raises PacelineError for an invalid name.
    """
    global _dropped
    if name not in _names:
        if _NAME.fullmatch(name) is None:
            raise PacelineError(
                f"{name!r} cannot be the name of a metric",
                "use a letter first, then letters, digits, dots, dashes or underscores, at most 64",
            )
        if len(_names) >= MAX_NAMES:
            _dropped += 1
            return
        _names.add(name)
    if len(recorded) >= MAX_PER_STEP:
        _dropped += 1
        return
    recorded.append((name, float(value)))


def rows_of_step(step: int, at_ns: int) -> list[CustomRow]:
    """The values since the previous step; called by the worker, once for each step."""
    global _dropped
    rows = [CustomRow(at_ns, step, name, value) for name, value in recorded]
    recorded.clear()
    if _dropped:
        rows.append(CustomRow(at_ns, step, DROPPED, float(_dropped)))
        _dropped = 0
    return rows
