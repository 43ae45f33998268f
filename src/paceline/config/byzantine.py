"""What does `--byzantine worker=3,attack=garbage` mean? Text to rules and back.

Names: attack (required), worker (default: every worker), scale (what it means
is the attack's to say), p (probability per step, default 1), from and to (steps;
`to` not included). See docs/concepts/robust.md.
"""

from pathlib import Path

from paceline.config.rules import Fields, read_fields
from paceline.config.values import (
    Raw,
    Unreadable,
    options_in,
    read_integer,
    read_number,
    read_text,
    shown,
)
from paceline.errors import ConfigError, Problem
from paceline.sync.byzantine import Attack, ByzantineRule

_EXAMPLE = "write for example worker=3,attack=garbage or worker=1,attack=scale,scale=-5,p=0.5,from=100,to=200"


def _read_attack(raw: Raw) -> Attack:
    word = read_text(raw).lower()
    if word not in list(Attack):
        raise Unreadable(f"it must be one of {', '.join(Attack)}")
    return Attack(word)


_FIELDS: Fields = {
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
        what = f"byzantine is {shown(raw)}, but {error.why}"
        raise ConfigError([Problem(what, _EXAMPLE, where)]) from error
    fields, problems = read_fields(pairs, _FIELDS, what="byzantine", example=_EXAMPLE, where=where)
    if "attack" not in pairs:
        problems.append(Problem(f"byzantine {shown(raw)} names no attack", _EXAMPLE, where))
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
