"""Generator of the reference pages, from the code's own tables, so that both agree.

`python -m docs.generate` (or `make docs`) writes docs/reference. `pages()` is the
same text in memory; a test compares it with the files. The text depends on the
code alone: not on the machine, the terminal or the day.
"""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import click

from docs.errors_page import errors_page, exit_codes_page
from docs.failures_page import failures_page
from docs.grpc_page import grpc_page
from docs.http_page import http_page
from docs.images_page import images_page
from docs.metrics_page import metrics_page
from docs.python_page import STUB, python_page, stub
from docs.runbook_pages import alerts_page
from docs.runbook_pages import write as write_runbooks
from docs.tables import code, prose, table
from paceline.cli.commands import COMMANDS, GROUPS, RENAMED
from paceline.cli.examples import EXAMPLES
from paceline.cli.main import cli
from paceline.cli.options import COMMON, help_of
from paceline.config.key import Key
from paceline.config.keys import KEYS
from paceline.core.environ import RESERVED
from paceline.events.schema import (
    COLUMN_KINDS,
    PHASES,
    PLAIN_KINDS,
    SCHEMA,
    AbandonedRow,
    CoordinatorRow,
    CustomRow,
    GpuRow,
    HostRow,
    LinkRow,
    ProcessRow,
    ServerRow,
    StepRow,
)
from paceline.events.segments import SEGMENT_SCHEMA
from paceline.laws import runner as laws_catalog
from paceline.laws.lab import Law
from paceline.plan.catalog import AGGREGATES, MODE_ALIASES, MODES, OPTIMIZERS, TASKS, TRANSPORTS, Mode
from paceline.plan.compression import CODECS
from paceline.plan.plan import Codec

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `make docs` from the code. Do not edit. -->"

_CHANNELS = {
    "alone": "no other worker",
    "collective": "all workers, by all-reduce",
    "peers": "one neighbour at a time, by averaging two vectors",
    "torch": "all workers, by torch's process group",
    "store": "a parameter server, by push and pull",
}


def pages() -> dict[str, str]:
    """The text of every generated page, by file name."""
    made = {
        "alerts.md": alerts_page(),
        "cli.md": _cli(),
        "config.md": _config(),
        "errors.md": errors_page(),
        "events.md": _events(),
        "exit-codes.md": exit_codes_page(),
        "failures.md": failures_page(),
        "grpc.md": grpc_page(),
        "http.md": http_page(),
        "image-checks.md": images_page(),
        "laws.md": _laws(),
        "metrics.md": metrics_page(),
        "modes.md": _modes(),
        "python.md": python_page(),
    }
    return {name: "\n".join([_NOTE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}


def _cli() -> list[str]:
    lines = [
        "# Commands",
        "",
        "Data goes to stdout, messages to stderr. The meaning of each exit code is in",
        "[exit codes](exit-codes.md); the settings of `train` are described in",
        "[configuration](config.md).",
        "",
        *(
            line
            for group, commands in GROUPS.items()
            for line in (
                f"**{group}**",
                "",
                *table(
                    ("command", "description"),
                    ((f"[`{name}`](#paceline-{name})", row[2]) for name, row in commands.items()),
                ),
                "",
            )
        ),
        "Former names still work: " + ", ".join(f"`{old}` for `{new}`" for old, new in RENAMED.items()) + ".",
        "",
        "## Flags of every command",
        "",
        "Accepted before and after the command's name.",
        "",
        *_option_table(_common_options()),
    ]
    context = click.Context(cli, info_name="paceline")
    for name in (name for name in COMMANDS if name not in RENAMED):
        command = cli.get_command(context, name)
        assert command is not None, f"{name} is in the table of commands"
        lines += _command(f"paceline {name}", command, context)
    return lines


def _command(path: str, command: click.Command, context: click.Context) -> list[str]:
    """A section for the command; for a group, one for each of its commands too."""
    common = {option.name for option in _common_options()}
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    options = [
        p for p in command.params if isinstance(p, click.Option) and p.name not in common and not p.hidden
    ]
    own = [option for option in options if option.name not in KEYS or len(options) < len(KEYS)]
    is_group = isinstance(command, click.Group)
    what = ["COMMAND"] if is_group else arguments
    options_first = not command.context_settings.get("allow_interspersed_args", True)
    usage = ["[OPTIONS]", *what] if options_first else [*what, "[OPTIONS]"]
    lines = ["", f"## {path}", "", code(" ".join([path, *usage])), ""]
    lines += [inspect.cleandoc(command.help or "").replace("\b\n", ""), "", *_examples(path)]
    if isinstance(command, click.Group):
        found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        members = [(name, member) for name, member in found if member is not None]
        rows = ((_linked(f"{path} {name}"), member.get_short_help_str(200)) for name, member in members)
        lines += table(("command", "description"), rows)
        for name, member in members:
            lines += _command(f"{path} {name}", member, context)
        return lines
    if len(own) < len(options):
        lines += ["Every [setting](config.md) is a flag of it.", ""]
    return lines + (_option_table(own) if own else ["No further flags."])


def _examples(path: str) -> list[str]:
    """As its help shows them."""
    pairs = EXAMPLES[path.removeprefix("paceline ")]
    rows = ((code(f"{path} {words}".strip()), what) for words, what in pairs)
    return [*table(("for example", ""), rows), ""]


def _linked(path: str) -> str:
    return f"[{code(path)}](#{path.replace(' ', '-')})"


def _common_options() -> list[click.Option]:
    @click.command()
    def probe() -> None: ...

    for add in COMMON:
        add(probe)
    return [p for p in probe.params if isinstance(p, click.Option)]


def _option_table(options: Iterable[click.Option]) -> list[str]:
    return table(("flag", "meaning"), ((_flag(option), _meaning(option)) for option in options))


def _meaning(option: click.Option) -> str:
    """As `--help` shows it."""
    record = option.get_help_record(click.Context(click.Command("probe")))
    return "" if record is None else option.help or ""


def _flag(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return code(names)
    if isinstance(option.type, click.Choice):
        return code(f"{names} {'|'.join(map(str, option.type.choices))}")
    return code(f"{names} {option.metavar or option.type.name.upper()}")


def _config() -> list[str]:
    lines = [
        "# Configuration",
        "",
        "Each setting is a flag, a variable and a key of a YAML or TOML file (`--config FILE`).",
        "A flag overrides a variable, a variable overrides the file. `--set KEY=VALUE` sets any key.",
        "Durations are written as `10ms`, `0.5s`, `2m`, `1h`; a bare number is seconds.",
        "",
        *table(
            ("key", "default", "meaning"),
            ((f"[`{key.name}`](#{key.name})", key.default, help_of(key)) for key in KEYS.values()),
        ),
    ]
    for key in KEYS.values():
        lines += ["", f"## {key.name}", "", help_of(key), "", *_key_rows(key)]
    names = ", ".join(code(name) for name in sorted(RESERVED))
    lines += ["", "## Variables that are not settings", "", f"{names} are reserved and set no key."]
    return lines


def _key_rows(key: Key) -> list[str]:
    rows = [("flag", code(key.flag)), ("variable", code(key.variable)), ("kind", key.kind.value)]
    if key.allowed:
        rows.append(("allowed", key.allowed))
    rows += [("default", key.default), ("example", code(key.example))]
    return [f"- {name}: {prose(text)}" for name, text in rows]


def _events() -> list[str]:
    lines = [
        "# Events",
        "",
        f"A run's `events.jsonl`, schema `{SCHEMA}`. Line 1 is the header: `schema`, `run`, `plan` (hash),",
        "`t0_ns`, `started_unix_s`. Every further line is an object with `kind` and `who` (`worker-0`,",
        "`server-0`, `launcher`). The meaning of the numbers is in",
        "[what is measured](../concepts/what-is-measured.md).",
        "",
        "## Segments",
        "",
        "Writers append to `events.jsonl`. At 64 MiB this file is closed: it gets the name",
        "`events.000000.jsonl` (then `events.000001.jsonl`, …), and a new `events.jsonl` begins. The",
        "log is the concatenation of the segments without the headers of the later ones. Offsets count",
        "bytes of this concatenation.",
        "",
        *table(
            ("file", "contents"),
            (
                ("`events.jsonl`", "the newest segment, the only one that grows"),
                ("`events.000000.jsonl`, `events.000000.jsonl.gz`", "a closed segment; gzip once compressed"),
                (
                    "`events.index.json.gz`",
                    "a cache: the view of the run at an offset of the log, for `status`",
                ),
            ),
        ),
        "",
        f"The first line of a later segment has the schema `{SEGMENT_SCHEMA}`, so that a program that",
        "does not support segments rejects it: `segment` (its number), `begins` (its offset), `plans` (of",
        "all segments before it), `session` (when the newest session before it began), and the fields of",
        "the header of the log. It alone determines which files belong to the log: closed segments with",
        "smaller numbers.",
        "",
        "All of it together: `(zcat events.0*.gz; cat events.0*.jsonl events.jsonl)`, with one header",
        "line for each segment. Compressed segments come before those that are not. A closed segment",
        "that is missing or damaged is one line that cannot be read: `verify` names it, and other",
        "readers skip it. A log in one file, of an earlier version or on a file system without locks or",
        "hard links, is segment 0 alone.",
        "",
        "The index and the compression are done by a process with the lowest priority, which the",
        "launcher starts at 16 MiB of log. Removing the index costs time and nothing else.",
        "",
        "## Plain events",
        "",
        "Each also has `at_ns`.",
        "",
        *table(("kind", "meaning"), ((code(kind), text) for kind, text in PLAIN_KINDS.items())),
        "",
        "## Events in columns",
        "",
        "Frequent events are written in batches: `rows` is their number, `columns` has one list per",
        "field, or one value if all rows have the same.",
    ]
    for kind, row in (
        ("steps", StepRow),
        ("abandoned", AbandonedRow),
        ("server", ServerRow),
        ("hosts", HostRow),
        ("processes", ProcessRow),
        ("links", LinkRow),
        ("gpus", GpuRow),
        ("custom", CustomRow),
        ("coordinators", CoordinatorRow),
    ):
        assert COLUMN_KINDS[kind] == row._fields, f"{kind} has the fields of {row.__name__}"
        lines += ["", f"### {kind}", "", inspect.cleandoc(row.__doc__ or ""), ""]
        lines += table(("field", "type", "meaning"), _fields(row))
    phases = ", ".join(code(phase) for phase in PHASES)
    lines += ["", f"The phases of a step, in this order, add up to its duration: {phases}."]
    return lines


def _fields(row: type) -> list[tuple[str, str, str]]:
    """A field's meaning is the comment behind it, or the one above it."""
    found: list[tuple[str, str, str]] = []
    above = ""
    for line in map(str.strip, inspect.getsource(row).splitlines()):
        field = re.fullmatch(r"(\w+): ([\w |]+?)(?: = \S+)?(?:  # (.*))?", line)
        if field is not None:
            found.append((code(field[1]), field[2], field[3] or above))
        above = f"{above} {line[1:].strip()}".strip() if line.startswith("#") else ""
    return found


def _laws() -> list[str]:
    lines = [
        "# Laws",
        "",
        "`paceline laws` checks them all, `paceline laws --mode ssp` those of one mode. How a law is",
        "checked is in [laws](../concepts/laws.md). A law with several modes is checked once for each,",
        "as `U3.asgd`.",
    ]
    for module in dict.fromkeys(law.check.__module__ for law in laws_catalog.LAWS):
        mine = [law for law in laws_catalog.LAWS if law.check.__module__ == module]
        lines += ["", f"## {module.rpartition('.')[2]}", "", _first_line(mine[0]), ""]
        lines += table(("law", "statement", "modes", "checked"), map(_law_row, mine))
    return lines


def _first_line(law: Law) -> str:
    module = inspect.getmodule(law.check)
    assert module is not None, f"law {law.id} is defined in a module"
    return (module.__doc__ or "").splitlines()[0]


def _law_row(law: Law) -> tuple[str, str, str, str]:
    how = "on real processes" if law.starts_processes else "in virtual time"
    return code(law.id), law.what, ", ".join(law.modes), how


def _modes() -> list[str]:
    return [
        "# Modes, tasks and optimizers",
        "",
        "How they work and which to use: [strategies](../concepts/modes.md),",
        "[choose a strategy](../guides/choose-a-mode.md).",
        "",
        "## Modes",
        "",
        *table(
            (
                "mode",
                "description",
                "a worker communicates with",
                "transports, best first",
                "its own settings",
                "rate",
            ),
            (_mode_row(mode) for mode in MODES.values()),
        ),
        "",
        "Aliases: " + ", ".join(f"`{alias}` is `{mode}`" for alias, mode in MODE_ALIASES.items()) + ".",
        "Your own class is named as `module:Class`; see",
        "[your own strategy](../guides/your-own-strategy.md).",
        "",
        "## Aggregation rules",
        "",
        "Values of `--aggregate`; see [robust aggregation](../concepts/robust.md).",
        "",
        *table(("aggregate", "description"), ((code(name), text) for name, text in AGGREGATES.items())),
        "",
        "## Compression",
        "",
        "Values of `--compress`; see [compression](../concepts/compression.md).",
        "",
        *table(
            ("codec", "what is sent", "number after the colon", "error feedback", "modes"),
            (_codec_row(codec) for codec in CODECS),
        ),
        "",
        "## Laws of each mode",
        "",
        *table(
            ("mode", "laws"),
            ((code(m), ", ".join(case.id for case in laws_catalog.cases(m))) for m in MODES),
        ),
        "",
        "## Tasks",
        "",
        *table(("task", "description"), ((code(name), text) for name, text in TASKS.items())),
        "",
        "Your own class is named as `module:Class`; see [your own task](../guides/your-own-task.md).",
        "",
        "## Optimizers",
        "",
        "`--optimizer` takes " + ", ".join(map(code, OPTIMIZERS)) + "; the default is the task's own.",
    ]


def _mode_row(mode: Mode) -> tuple[str, ...]:
    transports = ", ".join(code(t.value) for t in TRANSPORTS[mode.channel])
    own = "any" if mode.options is None else ", ".join(map(code, sorted(mode.options))) or "none"
    rate = "divided by N" if mode.sums_updates else "as given"
    talks_to = (
        "its neighbors; all workers at the end" if mode.name == "gossip" else _CHANNELS[mode.channel.value]
    )
    return code(mode.name), mode.summary, talks_to, transports, own, rate


def _codec_row(codec: Codec) -> tuple[str, ...]:
    info = CODECS[codec]
    amount = f"its {info.amount}, default {info.default:g}" if info.amount else "none"
    modes = ", ".join(code(mode.name) for mode in MODES.values() if codec in mode.compresses)
    return code(codec.value), info.summary, amount, "yes" if info.has_memory else "no", modes


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    write_runbooks()
    STUB.write_text(stub(), encoding="utf-8")
    print(f"wrote {STUB.name} of the package")


if __name__ == "__main__":
    main()
