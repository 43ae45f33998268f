"""What can the next word be? Runs, workers, experiments, codes and values, for the shell's Tab key.

Asked at every Tab, so nothing heavy is imported: names come from file names and from tables.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from paceline.config.key import Key

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
NAMED = ("mode", "task", "aggregate")  # settings whose values are names of a catalogue
_MOST = 100


def run_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Runs under runs/ and beside the folder that was begun; else folders, for the shell to walk."""
    places = {Path("runs"), Path(begun) if begun.endswith("/") else Path(begun).parent}
    found = {str(plan.parent) for place in places for plan in place.glob("*/plan.json")}
    return _beginning(begun, sorted(found)) or [CompletionItem(begun, type="dir")]


def worker_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The workers of the run that was named before; one that joined later is typed by hand."""
    try:
        plan = json.loads((Path(context.params["run"]) / "plan.json").read_text(encoding="utf-8"))
        count = int(plan["num_workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # there is no such run: Tab is silent, and the command will say it
    return _beginning(begun, (f"worker-{number}" for number in range(count)))


def experiment_names(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    from paceline.app.lab.catalog import SCENARIOS

    return _beginning(begun, SCENARIOS)


def code_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from paceline.explained.catalogue import CATALOGUE

    return [CompletionItem(code, help=row.why) for code, row in CATALOGUE.items() if code.startswith(begun)]


def key_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from paceline.config.keys import KEYS

    return [
        CompletionItem(key.name, help=help_of(key)) for key in KEYS.values() if key.name.startswith(begun)
    ]


def pairs(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """`--set KEY=VALUE`: the key first, then what it may be."""
    from paceline.config.keys import KEYS

    name, equals, value = begun.partition("=")
    if not equals:
        return _beginning(name, (f"{key}=" for key in KEYS))
    values = _values(KEYS[name]) if name in KEYS else ()
    return _beginning(begun, (f"{name}={one}" for one in values if one.startswith(value)))


def values_of(key: "Key") -> Completer:
    """What this setting may be, where that is a list of names."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        return _beginning(begun, _values(key))

    return complete


def help_of(key: "Key") -> str:
    """What a setting means, with the names that the catalog has for it."""
    return key.help.replace("{names}", ", ".join(_values(key))) if "{names}" in key.help else key.help


def _values(key: "Key") -> Iterable[str]:
    if key.choices:
        return key.choices
    if key.name in NAMED:
        from paceline.plan.catalog import AGGREGATES, MODES, TASKS

        named: dict[str, Iterable[str]] = {"mode": MODES, "task": TASKS, "aggregate": AGGREGATES}
        return named[key.name]
    return ()


def _beginning(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)][:_MOST]
