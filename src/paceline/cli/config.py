"""`paceline config`: the settings in effect with their origins, and the reference of all keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from paceline.cli.options import SettingsCommand, common_options, config_options, help_of, key_names
from paceline.cli.output import emit
from paceline.config.key import Key
from paceline.config.keys import KEYS
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, Mistake, Problem
from paceline.core.humanize import did_you_mean
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.config.train_config import TrainConfig
    from paceline.plan.codec import Json


@click.group("config")
@common_options
def config(session: Session) -> None:
    """List settings and where each value comes from."""


@config.command("show", cls=SettingsCommand)
@click.option(
    "--origin", is_flag=True, help="Show the origin of each value: option, variable or file and line."
)
@click.option("--all", "everything", is_flag=True, help="Include settings with their default value.")
@config_options
@common_options
def show(session: Session, flags: Sequence[RawSetting], origin: bool, everything: bool) -> None:
    """Show the effective settings. Options override variables, and variables override the file."""
    from paceline.config.load import from_set_flags, load

    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    if problems := [*sets.problems, *loaded.problems]:
        raise ConfigError(problems)
    rows = [_row(key, loaded.config) for key in KEYS.values()]
    shown = [row for row in rows if everything or row["origin"] != "default"]
    lines = [_line(row, with_origin=origin) for row in shown]
    listed: list[Json] = [dict(row) for row in shown]
    nothing = ["every setting has its default value; list them: paceline config show --all"]
    emit(session, "config.show", {"settings": listed}, lines or nothing)


def _row(key: Key, config: "TrainConfig") -> dict[str, str]:
    where = config.origin(key.name)
    # Several flags or lines may have set parts of it.
    parts = sorted(
        {
            origin
            for name, origin in config.origins.items()
            if name.startswith((f"{key.name}[", f"{key.name}."))
        }
    )
    value = getattr(config, key.name)
    if where is None and not parts:
        return {"key": key.name, "value": key.default, "origin": "default"}
    return {"key": key.name, "value": _text(value), "origin": ", ".join(parts) or where or ""}


def _text(value: object) -> str:
    if isinstance(value, tuple) and value and not isinstance(value[0], int | float | str):
        return ", ".join(map(_rule, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _rule(rule: object) -> str:
    from paceline.config.fault_rules import attack_text, straggler_text
    from paceline.sync.fault_rules import ByzantineRule, StragglerRule

    match rule:
        case StragglerRule():
            return straggler_text(rule)
        case ByzantineRule():
            return attack_text(rule)
        case _:
            return str(getattr(rule, "text", rule))


def _line(row: dict[str, str], *, with_origin: bool) -> str:
    return f"{row['key']} = {row['value']}" + (f"  ({row['origin']})" if with_origin else "")


@config.command("keys")
@click.argument("name", required=False, metavar="[KEY]", shell_complete=key_names)
@common_options
def keys(session: Session, name: str | None) -> None:
    """List all settings, or describe KEY: option, variable, values, default, example."""
    if name is None:
        rows: list[Json] = [_about(key) for key in KEYS.values()]
        width = max(map(len, KEYS))
        emit(
            session,
            "config.keys",
            {"keys": rows},
            (f"{k.name:<{width}}  {help_of(k)}" for k in KEYS.values()),
        )
        return
    key = KEYS.get(name.lstrip("-").replace("-", "_"))
    if key is None:
        hint = did_you_mean(name, KEYS, otherwise="see all: paceline config keys")
        raise ConfigError([Problem(f"there is no key {name}", hint, "KEY", Mistake.UNKNOWN_KEY)])
    about = _about(key)
    emit(
        session,
        "config.keys",
        {"keys": [about]},
        [f"{word:<10}{text}" for word, text in about.items() if text],
    )


def _about(key: Key) -> dict[str, "Json"]:
    return {
        "key": key.name,
        "meaning": help_of(key),
        "flag": key.flag,
        "variable": key.variable,
        "kind": key.kind.value,
        "allowed": key.allowed,
        "default": key.default,
        "example": key.example,
    }
