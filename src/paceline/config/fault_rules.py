"""Rules for stragglers and Byzantine workers: from text, CSV traces and tables, and back to text.

A straggler entry such as `worker=1,factor=3` has the names worker (default: every worker), p (probability
per step, default 1), factor and delay (at least one of them), from and to (steps; `to` not included), over
(steps until the factor is reached, little by little), or trace=FILE alone.
See docs/concepts/stragglers.md.
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.config.values import (
    Raw,
    Unreadable,
    options_in,
    read_duration,
    read_integer,
    read_number,
    read_text,
    show_value,
)
from paceline.core.errors import ConfigError, Problem
from paceline.core.humanize import did_you_mean
from paceline.sync.fault_rules import Attack, ByzantineRule, StragglerRule

# Written name, to the field of the rule and its reader.
RuleFields = Mapping[str, tuple[str, Callable[[Raw], float | str]]]


def read_rule_fields(
    pairs: Mapping[str, Raw],
    fields: RuleFields,
    *,
    noun: str,
    also: str = "",
    example: str,
    where: str | None,
) -> tuple[dict[str, float | str], list[Problem]]:
    """The rule's fields that could be read, and a problem for each that could not.

    `noun` is the setting's name; `also` names parts that are read elsewhere.
    """
    problems: list[Problem] = []
    values: dict[str, float | str] = {}
    for name, value in pairs.items():
        if name not in fields:
            hint = did_you_mean(name, fields, otherwise=f"a rule has {', '.join(fields)}{also}")
            problems.append(Problem(f"{noun} has no setting {show_value(name)}", hint, where))
            continue
        field, reader = fields[name]
        try:
            values[field] = reader(value)
        except Unreadable as error:
            problems.append(
                Problem(f"{noun}'s {name} is {show_value(value)}, but {error.why}", example, where)
            )
    return values, problems


# The header is `worker,step,factor` with an optional `delay_s`. Rows that slow
# the same worker down in the same way become one rule, so a long trace stays a
# short plan.

_HEADER = ("worker", "step", "factor")
_HINT = "a trace is CSV with the header worker,step,factor and optionally delay_s"
# A wrong column makes every row wrong; the first problems are enough.
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
            message = f"the trace's header is {show_value(','.join(header))}"
            raise ConfigError([Problem(message, _HINT, f"{name}:1")])
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
        worker = read_integer(row["worker"])
        step = read_integer(row["step"])
        factor = read_number(row["factor"])
        delay_s = read_number(row.get("delay_s", "0"))
    except Unreadable as error:
        raise Unreadable(f"the row is {show_value(','.join(cells))}: invalid value, {error.why}") from error
    if worker < 0 or step < 0:
        raise Unreadable(f"the row is {show_value(','.join(cells))}, but worker and step must be 0 or more")
    return _Row(worker, step, factor, delay_s)


def _twice(rows: Iterable[_Row], name: str) -> list[Problem]:
    seen: set[tuple[int, int]] = set()
    again: list[Problem] = []
    for row in rows:
        place = (row.worker, row.step)
        if place in seen:
            message = f"the trace names worker {row.worker} at step {row.step} twice"
            again.append(Problem(message, "keep one row for each worker and step", name))
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


_EXAMPLE = "write for example worker=1,factor=3 or p=0.05,factor=10 or worker=0,delay=50ms,from=100,to=200"
_FIELDS: RuleFields = {
    "worker": ("worker", read_integer),
    "factor": ("factor", read_number),
    "delay": ("delay_s", read_duration),
    "p": ("probability", read_number),
    "from": ("first_step", read_integer),
    "to": ("end_step", read_integer),
    "over": ("ramp", read_integer),
}


def read_straggler(raw: Raw, *, where: str | None, folder: Path) -> tuple[StragglerRule, ...]:
    """The rules of one entry; a trace gives several. Raises ConfigError with all its problems.

    `folder` is what a trace's relative path is relative to.
    """
    try:
        pairs = options_in(raw)
    except Unreadable as error:
        message = f"straggler is {show_value(raw)}, but {error.why}"
        raise ConfigError([Problem(message, _EXAMPLE, where)]) from error
    if "trace" in pairs:
        return _read_trace_entry(pairs, where=where, folder=folder)
    return (_read_rule(pairs, raw, where=where),)


def straggler_text(rule: StragglerRule) -> str:
    """The entry that reads back as this rule. A traced rule shows how many steps it names."""
    parts = [] if rule.worker is None else [f"worker={rule.worker}"]
    if rule.probability != 1.0:
        parts.append(f"p={rule.probability!r}")
    parts.append(f"factor={rule.factor!r}")
    if rule.delay_s:
        parts.append(f"delay={rule.delay_s!r}s")
    if rule.first_step:
        parts.append(f"from={rule.first_step}")
    if rule.end_step is not None:
        parts.append(f"to={rule.end_step}")
    if rule.ramp:
        parts.append(f"over={rule.ramp}")
    text = ",".join(parts)
    return text if rule.steps is None else f"{text} at {len(rule.steps)} traced steps"


def _read_rule(pairs: Mapping[str, Raw], raw: Raw, *, where: str | None) -> StragglerRule:
    fields, problems = read_rule_fields(
        pairs, _FIELDS, noun="straggler", also=" and trace", example=_EXAMPLE, where=where
    )
    if not {"factor", "delay"} & set(pairs):
        problems.append(Problem(f"straggler {show_value(raw)} has neither factor nor delay", _EXAMPLE, where))
    if problems:
        raise ConfigError(problems)
    return StragglerRule(**fields)  # type: ignore[arg-type]  # _FIELDS pairs each field with its reader


def _read_trace_entry(
    pairs: Mapping[str, Raw], *, where: str | None, folder: Path
) -> tuple[StragglerRule, ...]:
    extra = sorted(set(pairs) - {"trace"})
    if extra:
        raise ConfigError(
            [
                Problem(
                    f"straggler has a trace and also {', '.join(map(show_value, extra))}",
                    "write trace=FILE alone; the file has worker, step and factor",
                    where,
                )
            ]
        )
    try:
        name = read_text(pairs["trace"])
    except Unreadable as error:
        raise ConfigError(
            [Problem(f"straggler's trace is {show_value(pairs['trace'])}, but {error.why}", _EXAMPLE, where)]
        ) from error
    return read_trace(folder / name, where=where)


# Names: attack (required), worker (default: every worker), scale (its meaning
# depends on the attack), p (probability per step, default 1), from and to (steps;
# `to` not included). See docs/concepts/robust.md.

_BYZANTINE_EXAMPLE = (
    "write for example worker=3,attack=garbage or worker=1,attack=scale,scale=-5,p=0.5,from=100,to=200"
)


def _read_attack(raw: Raw) -> Attack:
    word = read_text(raw).lower()
    if word not in list(Attack):
        raise Unreadable(f"it must be one of {', '.join(Attack)}")
    return Attack(word)


_BYZANTINE_FIELDS: RuleFields = {
    "worker": ("worker", read_integer),
    "attack": ("attack", _read_attack),
    "scale": ("scale", read_number),
    "p": ("probability", read_number),
    "from": ("first_step", read_integer),
    "to": ("end_step", read_integer),
}


def read_byzantine(raw: Raw, *, where: str | None, folder: Path) -> tuple[ByzantineRule, ...]:
    """The rule of one entry. Raises ConfigError with all its problems."""
    del folder  # a rule names no files
    try:
        pairs = options_in(raw)
    except Unreadable as error:
        message = f"byzantine is {show_value(raw)}, but {error.why}"
        raise ConfigError([Problem(message, _BYZANTINE_EXAMPLE, where)]) from error
    fields, problems = read_rule_fields(
        pairs, _BYZANTINE_FIELDS, noun="byzantine", example=_BYZANTINE_EXAMPLE, where=where
    )
    if "attack" not in pairs:
        problems.append(Problem(f"byzantine {show_value(raw)} names no attack", _BYZANTINE_EXAMPLE, where))
    if problems:
        raise ConfigError(problems)
    return (ByzantineRule(**fields),)  # type: ignore[arg-type]  # _FIELDS pairs each field with its reader


def attack_text(rule: ByzantineRule) -> str:
    """The entry that reads back as this rule."""
    parts = [] if rule.worker is None else [f"worker={rule.worker}"]
    parts.append(f"attack={rule.attack.value}")
    if rule.scale is not None:
        parts.append(f"scale={rule.scale!r}")
    if rule.probability != 1.0:
        parts.append(f"p={rule.probability!r}")
    if rule.first_step:
        parts.append(f"from={rule.first_step}")
    if rule.end_step is not None:
        parts.append(f"to={rule.end_step}")
    return ",".join(parts)
