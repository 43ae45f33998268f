"""What does a recorded straggler trace say? A CSV file to rules that name their steps.

The header is `worker,step,factor` with an optional `delay_s`. Rows that slow
the same worker down in the same way become one rule, so a long trace stays a
short plan.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.config.values import Unreadable, read_integer, read_number, shown
from paceline.errors import ConfigError, Problem
from paceline.sync.stragglers import StragglerRule

_HEADER = ("worker", "step", "factor")
_HINT = "a trace is CSV with the header worker,step,factor and optionally delay_s"
# A wrong column makes every row wrong; nobody reads the thousandth complaint.
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class _Row:
    worker: int
    step: int
    factor: float
    delay_s: float


def read_trace(path: Path, *, where: str | None) -> tuple[StragglerRule, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([Problem(f"cannot read the trace {path}: {reason}", _HINT, where)]) from error
    return parse_trace(text, name=str(path))


def parse_trace(text: str, *, name: str) -> tuple[StragglerRule, ...]:
    lines = csv.reader(text.splitlines())
    problems: list[Problem] = []
    rows: list[_Row] = []
    try:
        header = tuple(cell.strip() for cell in next(lines, []))
        if header not in (_HEADER, (*_HEADER, "delay_s")):
            what = f"the trace's header is {shown(','.join(header))}"
            raise ConfigError([Problem(what, _HINT, f"{name}:1")])
        for cells in lines:
            if not cells:
                continue
            try:
                rows.append(_row(header, cells))
            except Unreadable as error:
                problems.append(Problem(error.why, _HINT, f"{name}:{lines.line_num}"))
    except csv.Error as error:
        problems.append(Problem(f"the trace is not CSV: {error}", _HINT, f"{name}:{lines.line_num}"))
    problems += _twice(rows, name)
    if problems:
        raise ConfigError(_fewer(problems))
    return _grouped(rows)


def _row(header: tuple[str, ...], cells: list[str]) -> _Row:
    if len(cells) != len(header):
        raise Unreadable(f"the row has {len(cells)} cells, but the header has {len(header)}")
    row = dict(zip(header, cells, strict=True))
    try:
        worker, step = read_integer(row["worker"]), read_integer(row["step"])
        factor, delay_s = read_number(row["factor"]), read_number(row.get("delay_s", "0"))
    except Unreadable as error:
        raise Unreadable(f"the row is {shown(','.join(cells))}: a cell is wrong, {error.why}") from error
    if worker < 0 or step < 0:
        raise Unreadable(f"the row is {shown(','.join(cells))}, but worker and step must be 0 or more")
    return _Row(worker, step, factor, delay_s)


def _twice(rows: Iterable[_Row], name: str) -> list[Problem]:
    seen: set[tuple[int, int]] = set()
    again: list[Problem] = []
    for row in rows:
        place = (row.worker, row.step)
        if place in seen:
            what = f"the trace names worker {row.worker} at step {row.step} twice"
            again.append(Problem(what, "keep one row for each worker and step", name))
        seen.add(place)
    return again


def _fewer(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= _MOST_PROBLEMS:
        return problems
    rest = Problem(f"and {len(problems) - _MOST_PROBLEMS} more problems in this trace", _HINT)
    return [*problems[:_MOST_PROBLEMS], rest]


def _grouped(rows: Iterable[_Row]) -> tuple[StragglerRule, ...]:
    groups: dict[tuple[int, float, float], list[int]] = {}
    for row in rows:
        groups.setdefault((row.worker, row.factor, row.delay_s), []).append(row.step)
    return tuple(
        StragglerRule(worker=worker, factor=factor, delay_s=delay_s, steps=tuple(sorted(steps)))
        for (worker, factor, delay_s), steps in sorted(groups.items())
    )
