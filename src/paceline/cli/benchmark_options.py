"""Which flags do all benchmarks have, and what do EPOCHS, BATCH_SIZE and NUM_WORKERS say behind them?"""

from collections.abc import Sequence
from pathlib import Path

import click

from paceline.cli.options import Body
from paceline.config.written import Written
from paceline.environ import benchmark_variables
from paceline.errors import ConfigError, Problem


def out_option(body: Body) -> Body:
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("benchmark"),
        show_default=True,
        help="Folder of the results, the pictures and the report.",
    )(body)


def repeats_option(body: Body) -> Body:
    return click.option(
        "--repeats",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Runs of each, in rounds.",
    )(body)


def number_said(key: str, said: int | None, usual: int) -> int:
    """A flag, else its variable (`epochs`: EPOCHS), else what is usual."""
    if said is not None:
        return said
    text = benchmark_variables().get(key)
    if text is None:
        return usual
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        what, name = f"{key} is {text!r}, but it must be a whole number, 1 or more", key.upper()
        raise ConfigError([Problem(what, f"set {name} to {usual}, for example, or unset it", name)])
    return found


def behind_flags(flags: Sequence[Written], said: Sequence[str] = ()) -> list[Written]:
    """The flags, and what the variables say of keys that nobody said otherwise.

    `said` are keys that another source names. Who says steps has said how long: EPOCHS is not heard then.
    """
    silent = {entry.key for entry in flags} | set(said)
    if "steps" in silent:
        silent.add("epochs")
    variables = benchmark_variables()
    more = [Written(key=k, raw=v, where=k.upper()) for k, v in variables.items() if k not in silent]
    return [*flags, *more]
