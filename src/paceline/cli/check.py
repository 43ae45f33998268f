"""`paceline check`: what a user's training script can be run with, from a few steps of it."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import SettingsCommand, common_options, config_options_without
from paceline.cli.output import emit, print_message
from paceline.config.keys import KEYS
from paceline.config.values import RawSetting
from paceline.core.errors import ExitCode
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.training.script_check import Finding, OfferedMode, ScriptCheck

READ = ("num_workers", "seed", "dtype")
WIDTH = 100


@click.command("check", cls=SettingsCommand, context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path), metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@config_options_without(*(name for name in KEYS if name not in READ), num_workers="2")
@common_options
def check(session: Session, flags: Sequence[RawSetting], script: Path, arguments: Sequence[str]) -> ExitCode:
    """Make a few steps of your training script alone, and show the modes in which it can be run.

    A share of the work is done twice, which must give the same bits, and a batch is divided, whose loss
    must be the mean of its halves'. Nothing is recorded. Exit code 8 if one of them does not hold, 3 if no
    mode can run the script.
    """
    with session.start_launcher() as launcher:
        from paceline.plan.codec import to_json
        from paceline.training.script_check import check_script

        print_message(session, f"checking {script}: it makes a few steps alone")
        checked = check_script(session, flags, script, arguments, launcher)
    data = to_json(checked)
    assert isinstance(data, dict), "a dataclass has fields"
    emit(session, "check", {"script": str(script), "holds": checked.holds, **data}, _lines(checked))
    return ExitCode.OK if checked.holds else ExitCode.GATE_FAILED


def _lines(checked: "ScriptCheck") -> list[str]:
    return [
        f"prepared: {_prepared(checked)}",
        "",
        *(line for finding in checked.findings for line in _finding_lines(finding)),
        "",
        *_mode_lines(checked),
    ]


def _prepared(checked: "ScriptCheck") -> str:
    facts = checked.prepared
    parts = [f"{facts['model']} with {int(facts['num_parameters']):,} parameters", str(facts["optimizer"])]
    if facts["schedule"]:
        parts.append(f"a schedule per {facts['schedule']}")
    batch = f"{facts['batch_size']} per {'worker' if facts['per_worker'] else 'step'}"
    if facts["num_samples"]:
        parts.append(f"{int(facts['num_samples']):,} samples in batches of {batch}")
    else:
        parts.append(f"no DataLoader, {batch}")
    if int(facts["accumulate"]) > 1:
        parts.append(f"{facts['accumulate']} batches accumulated")
    length = pluralize(int(facts["epochs"]), "epoch") if facts["epochs"] else f"{facts['steps']} steps"
    return ", ".join([*parts, length])


def _finding_lines(finding: "Finding") -> list[str]:
    mark = {True: "ok  ", False: "FAIL", None: "?   "}[finding.holds]
    lines = [f"{mark} {finding.name}: {finding.text}"]
    if finding.hint:
        lines.append(f"     fix: {finding.hint}")
    return [wrapped for line in lines for wrapped in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 5)]


def _mode_lines(checked: "ScriptCheck") -> list[str]:
    head = f"{'mode':<11}{'offered':<9}{'elastic':<9}why not, with {pluralize(checked.num_workers, 'worker')}"
    lines = [head, "-" * WIDTH]
    for mode in checked.modes:
        lines += _mode_line(mode)
    return lines


def _mode_line(mode: "OfferedMode") -> list[str]:
    begin = f"{mode.name:<11}{_yes(mode.is_offered):<9}{_yes(not mode.not_elastic):<9}"
    reason = mode.reason or mode.not_elastic
    return textwrap.wrap(begin + reason, WIDTH, subsequent_indent=" " * len(begin)) or [begin]


def _yes(is_offered: bool) -> str:
    return "yes" if is_offered else "no"
