"""What does `--straggler worker=1,factor=3` mean? Text to rules and back.

Names: worker (default: every worker), p (probability per step, default 1),
factor and delay (at least one of them), from and to (steps; `to` not included),
over (steps until the factor is reached, little by little), or trace=FILE alone.
See docs/concepts/stragglers.md.
"""

from collections.abc import Mapping
from pathlib import Path

from paceline.config.rules import Fields, read_fields
from paceline.config.traces import read_trace
from paceline.config.values import (
    Raw,
    Unreadable,
    options_in,
    read_duration,
    read_integer,
    read_number,
    read_text,
    shown,
)
from paceline.errors import ConfigError, Problem
from paceline.sync.stragglers import StragglerRule

_EXAMPLE = "write for example worker=1,factor=3 or p=0.05,factor=10 or worker=0,delay=50ms,from=100,to=200"
_FIELDS: Fields = {
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
        what = f"straggler is {shown(raw)}, but {error.why}"
        raise ConfigError([Problem(what, _EXAMPLE, where)]) from error
    if "trace" in pairs:
        return _read_trace_entry(pairs, where=where, folder=folder)
    return (_read_rule(pairs, raw, where=where),)


def rule_text(rule: StragglerRule) -> str:
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
    fields, problems = read_fields(
        pairs, _FIELDS, what="straggler", also=" and trace", example=_EXAMPLE, where=where
    )
    if not {"factor", "delay"} & set(pairs):
        problems.append(Problem(f"straggler {shown(raw)} has neither factor nor delay", _EXAMPLE, where))
    if problems:
        raise ConfigError(problems)
    return StragglerRule(**fields)  # type: ignore[arg-type]  # _FIELDS pairs each field with its reader


def _read_trace_entry(
    pairs: Mapping[str, Raw], *, where: str | None, folder: Path
) -> tuple[StragglerRule, ...]:
    others = sorted(set(pairs) - {"trace"})
    if others:
        raise ConfigError(
            [
                Problem(
                    f"straggler has a trace and also {', '.join(map(shown, others))}",
                    "write trace=FILE alone; the file says worker, step and factor",
                    where,
                )
            ]
        )
    try:
        name = read_text(pairs["trace"])
    except Unreadable as error:
        raise ConfigError(
            [Problem(f"straggler's trace is {shown(pairs['trace'])}, but {error.why}", _EXAMPLE, where)]
        ) from error
    return read_trace(folder / name, where=where)
