"""Options of commands: the common flags, one flag per config key, and shell completion of values.

The config table is imported only for a command that has a flag per key: `paceline --help` does not need it.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from paceline.cli.commands import HELP_ALL
from paceline.core.errors import NoSuchRunError
from paceline.training.session import Common, Session

if TYPE_CHECKING:
    from paceline.config.key import Key
    from paceline.config.values import Raw, RawSetting


# Completion runs at every Tab, so nothing heavy is imported: names come from file names and from tables.

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
CATALOG_KEYS = ("mode", "task", "aggregate")  # settings whose values are names of a catalogue
_MAX_ITEMS = 100


def run_names(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Runs under runs/ and in the folder typed so far; otherwise folders, completed by the shell."""
    folders = {Path("runs"), Path(prefix) if prefix.endswith("/") else Path(prefix).parent}
    runs = {str(plan.parent) for folder in folders for plan in folder.glob("*/plan.json")}
    return _matching(prefix, sorted(runs)) or [CompletionItem(prefix, type="dir")]


def worker_names(context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """The workers in the plan of the run given before; workers that joined later are not listed."""
    try:
        plan = json.loads((Path(context.params["run"]) / "plan.json").read_text(encoding="utf-8"))
        count = int(plan["num_workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no such run: the command itself will report it
    return _matching(prefix, (f"worker-{number}" for number in range(count)))


def experiment_names(
    _context: click.Context, _parameter: click.Parameter, prefix: str
) -> list[CompletionItem]:
    from paceline.faults.scenarios.catalog import SCENARIOS

    return _matching(prefix, SCENARIOS)


def code_names(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from paceline.core.error_catalog.index import ERROR_CATALOG

    return [
        CompletionItem(code, help=row.why) for code, row in ERROR_CATALOG.items() if code.startswith(prefix)
    ]


def key_names(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from paceline.config.keys import KEYS

    return [
        CompletionItem(key.name, help=help_of(key)) for key in KEYS.values() if key.name.startswith(prefix)
    ]


def setting_pairs(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """`--set KEY=VALUE`: first the key, then its values."""
    from paceline.config.keys import KEYS

    name, equals, value = prefix.partition("=")
    if not equals:
        return _matching(name, (f"{key}=" for key in KEYS))
    values = _values(KEYS[name]) if name in KEYS else ()
    return _matching(prefix, (f"{name}={candidate}" for candidate in values if candidate.startswith(value)))


def values_of(key: "Key") -> Completer:
    """Completes the values of a setting that has a list of names."""

    def complete(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
        return _matching(prefix, _values(key))

    return complete


def help_of(key: "Key") -> str:
    """Help text of a setting, with the names from the catalog filled in."""
    return _fill_names(key, key.help)


def _fill_names(key: "Key", text: str) -> str:
    return text.replace("{names}", ", ".join(_values(key))) if "{names}" in text else text


def _values(key: "Key") -> Iterable[str]:
    if key.choices:
        return key.choices
    if key.name in CATALOG_KEYS:
        from paceline.plan.catalog import AGGREGATES, MODES, TASKS

        named: dict[str, Iterable[str]] = {"mode": MODES, "task": TASKS, "aggregate": AGGREGATES}
        return named[key.name]
    return ()


def _matching(prefix: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(prefix)][:_MAX_ITEMS]


Body = TypeVar("Body", bound=Callable[..., object])

COMMON = (
    click.option("--json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("--plain", is_flag=True, help="Print lines of NAME, tab, VALUE, for grep and cut."),
    click.option("--quiet", "-q", is_flag=True, help="Print only results and errors."),
    click.option("--verbose", "-v", is_flag=True, help="Show the traceback of an internal error."),
    click.option("--no-input", is_flag=True, help="Never prompt; confirmations need --yes."),
    click.option(
        "--color", type=click.Choice(["auto", "always", "never"]), help="Colored output. [default: auto]"
    ),
    click.option(
        "--config", "-c", type=click.Path(path_type=Path), help="Configuration file in YAML or TOML."
    ),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=setting_pairs,
        help="Setting by name. Repeatable.",
    ),
)
_METAVARS = {  # by the name of the key's kind
    "TEXT": "NAME",
    "INTEGER": "N",
    "NUMBER": "X",
    "DURATION": "TIME",
    "BATCH_SIZE": "N[,N…]",
    "STALENESS": "N|inf",
    "STEPS_OR_EPOCH": "N|epoch",
    "OPTIONS": "NAME=VALUE",
    "STRAGGLERS": "RULE",
    "BYZANTINE": "RULE",
    "EXPORTS": "NAME[=WHERE]",
}


def common_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds the common flags; `body` gets the session, with them joined in, as its first argument."""

    @functools.wraps(body)
    def with_session(**params: Any) -> object:  # Any: what click parsed, by flag
        session = click.get_current_context().find_object(Session)
        assert session is not None, "main gives click a session"
        given = Common(**{name: params.pop(name) for name in Common.__slots__})
        session.common = session.common.joined(given)
        return body(session, **params)

    for option in reversed(COMMON):
        option(with_session)
    return with_session


def config_options(body: Callable[..., object]) -> Callable[..., object]:
    """Adds a flag for each config key; `body` gets the given ones as `flags`."""
    return config_options_without()(body)


def config_options_without(
    *left_out: str, **defaults: str
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """The same without these keys, which a command handles itself, or not at all.

    `defaults`: in words, those that differ in this command.
    """
    from paceline.config.keys import KEYS

    keys = [
        _with_default(key, defaults[name]) if name in defaults else key
        for name, key in KEYS.items()
        if name not in left_out
    ]

    def with_options(body: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(body)
        def with_flags(*args: Any, **params: Any) -> object:  # Any: what click parsed, by flag
            flags = [entry for key in keys for entry in _raw_settings(key, params.pop(key.name))]
            return body(*args, flags=tuple(flags), **params)

        for key in reversed(keys):
            _option(key)(with_flags)
        return help_all_option(with_flags)

    return with_options


def given_settings(params: dict[str, Any], *left_out: str) -> "list[RawSetting]":  # Any: from click
    """The settings among the parsed parameters of a command, without those that it handles itself."""
    from paceline.config.keys import KEYS

    given = [
        _raw_settings(key, params[name])
        for name, key in KEYS.items()
        if name in params and name not in left_out
    ]
    return [entry for entries in given for entry in entries]


def _with_default(key: "Key", default: str) -> "Key":
    brief = key.brief.partition(" [default:")[0]
    return dataclasses.replace(key, default=default, brief=brief and f"{brief} [default: {default}]")


_OWN_SECTION = "Options"
_COMMON_SECTION = "Options of all commands"
_COMMON_NAMES = frozenset(Common.__slots__)
_CREDENTIALS = frozenset({"coordinator_token_file", "tls_dir", "tls_name"})  # of `--coordinator`


def _show_all_help(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        context.meta[HELP_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_help,
    help="Show all options and exit.",
)


class SettingsCommand(click.Command):
    """A command with a flag for each setting: --help lists the common ones by group, --help-all all."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from paceline.config.key import Group

        shows_all = bool(ctx.meta.get(HELP_ALL))
        sections: dict[str, list[tuple[str, str]]] = {
            name: [] for name in (*Group, _OWN_SECTION, _COMMON_SECTION)
        }
        omitted = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):  # the usage line has it
                continue
            if shows_all:
                sections[_section(parameter)].append(record)
            elif (brief := _brief(parameter, record)) is not None:
                sections[_section(parameter)].append(brief)
            else:
                omitted += 1
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)
        if omitted:
            formatter.write_paragraph()
            formatter.write_text(
                f"--help-all shows {omitted} more options, such as --json, --quiet and --config."
            )


def _section(parameter: click.Parameter) -> str:
    """The heading of an option in a command's help."""
    if isinstance(parameter, _Option):
        return parameter.key.group.value
    return _COMMON_SECTION if parameter.name in _COMMON_NAMES else _OWN_SECTION


def _brief(parameter: click.Parameter, record: tuple[str, str]) -> tuple[str, str] | None:
    """The line of an option in the short help; None: only --help-all shows it."""
    if not isinstance(parameter, _Option):
        return None if parameter.name in _COMMON_NAMES | _CREDENTIALS else record
    key = parameter.key
    if not key.brief:
        return None
    return (f"{key.flag} NAME" if key.choices else record[0]), _fill_names(key, key.brief)


class _Option(click.Option):
    """A flag whose help lists names of the catalog, which is imported when the help is shown."""

    key: "Key"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = _help(self.key)
        return super().get_help_record(ctx)


def _help(key: "Key") -> str:
    return f"{help_of(key)} [default: {key.default}]"


def _option(key: "Key") -> Callable[[Body], Body]:
    # All are text to click: the config package parses them, so that a flag and a file mean the same
    # and all problems are reported together.
    help_text = key.help
    kind = type(f"_{key.name}", (_Option,), {"key": key})
    if key.kind.name == "YES_NO":
        names = f"{key.flag}/--no-{key.flag.removeprefix('--')}"
        return click.option(names, key.name, cls=kind, default=None, help=help_text)
    metavar = "|".join(key.choices) if key.choices else _METAVARS[key.kind.name]
    flags = [key.flag, key.also] if key.also else [key.flag]
    complete = values_of(key) if key.choices or key.name in CATALOG_KEYS else None
    return click.option(
        *flags,
        key.name,
        cls=kind,
        metavar=metavar,
        multiple=key.is_repeatable,
        help=help_text,
        shell_complete=complete,
    )


def _raw_settings(key: "Key", value: str | bool | tuple[str, ...] | None) -> "list[RawSetting]":
    from paceline.config.values import RawSetting

    if value is None:
        return []
    values = value if isinstance(value, tuple) else (value,)
    return [RawSetting(key=key.name, raw=_raw(key, item), where=key.flag) for item in values]


def _raw(key: "Key", item: str | bool) -> "Raw":
    if key.kind.name == "OPTIONS" and isinstance(item, str) and "=" in item:
        name, _, value = item.partition("=")
        return {name.strip(): value}  # one option per flag, so its value may hold commas
    return item


def run_path(folder: Path, given: Path) -> Path:
    """The folder of a run that is given by its path or by its name under `runs/`; relative to `folder`."""
    named = Path("runs") / given
    is_name = len(given.parts) == 1 and not (folder / given).exists()
    return named if is_name and (folder / named / "plan.json").exists() else given


class RunPath(click.Path):
    """A run folder, the name of a run under `runs/`, or the store of a run, which is mirrored.

    `is_changed`: the command acts on the run, which it cannot through a store.
    """

    def __init__(self, *, needs_checkpoints: bool = False, is_changed: bool = False) -> None:
        super().__init__(path_type=Path)
        self._needs_checkpoints = needs_checkpoints
        self._is_changed = is_changed

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        if isinstance(value, str) and is_store(value):
            if self._is_changed:
                raise NoSuchRunError(
                    f"{value} is the copy of a run, which can only be read",
                    "use this command on the machine of the run's command, with the run folder there",
                )
            return mirrored_run(value, needs_checkpoints=self._needs_checkpoints)
        given = super().convert(value, param, ctx)
        assert isinstance(given, Path), "click converts to path_type"
        session = ctx.find_object(Session) if ctx is not None else None
        return given if session is None else run_path(session.folder, given)


def is_store(text: str) -> bool:
    """Whether it is the address of a store; a path is not."""
    return "://" in text


def mirrored_run(url: str, *, needs_checkpoints: bool) -> Path:
    """The run in this store as a local folder, which follows it while this command runs."""
    from paceline.training.run_mirror import Contents, open_mirror  # imports the store's client

    def note(text: str) -> None:
        click.echo(text, err=True)

    if needs_checkpoints:  # they must not change while they are verified
        return open_mirror(url, Contents.ALL)
    return open_mirror(url, Contents.RECORD, note)


run_argument = click.argument("run", shell_complete=run_names, type=RunPath())
checked_run_argument = click.argument("run", shell_complete=run_names, type=RunPath(needs_checkpoints=True))
changed_run_argument = click.argument("run", shell_complete=run_names, type=RunPath(is_changed=True))
optional_run_argument = click.argument("run", shell_complete=run_names, required=False, type=RunPath())
