"""`paceline coordinator verify` and `init-pki`: what can be done without any node."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import PATH
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.verify import RunLine, Verified


@click.command("verify")
@click.argument("data_dir", type=PATH)
@common_options
def verify(session: Session, data_dir: Path) -> None:
    """Check what a node has written to DATA_DIR, and change nothing there.

    Reads every record, applies every command and says what came of it. Works on
    a copy, and beside a node that runs. Exit code 8 when something is damaged; a
    torn end is not, since nobody was promised what it held.
    """
    from paceline.coordinator.verify import verify as check
    from paceline.plan.codec import to_json

    found = check(session.folder / data_dir)
    emit(session, "coordinator.verify", to_json(found), _lines(data_dir, found))


def _lines(folder: Path, found: "Verified") -> list[str]:
    lines = [f"{folder} is sound: node {found.node}, term {found.term}, up to entry {found.last_index}"]
    if found.is_in_use:
        lines.append("in use    a node runs on it and may write while we read")
    if found.torn_bytes:
        lines.append(f"torn end  {found.torn_bytes} bytes, harmless: nobody was promised what they held")
    if found.unknown_commands:
        lines.append(f"unknown   {found.unknown_commands} commands of a newer version were passed over")
    entries = f"{found.first_index} to {found.last_index}" if found.first_index else "none"
    lines += [
        f"snapshot  up to entry {found.snapshot_index}, {found.snapshot_bytes} bytes",
        f"log       entries {entries}, {found.commands} commands; {found.files} files, {found.records} records",
        f"vote      {'none' if found.vote is None else f'for node {found.vote}'} in term {found.term}",
        f"voters    {_numbers(found.voters)}; learners {_numbers(found.learners)}",
        f"sessions  {found.sessions}; actions {found.actions}; runs {len(found.runs)}",
    ]
    return lines + [_run_line(run) for run in found.runs]


def _run_line(run: "RunLine") -> str:
    return (
        f"run       {run.run}: {run.phase}, generation {run.generation}, step {run.committed_step}, "
        f"{run.workers} workers, {run.checkpoints} checkpoints"
    )


def _numbers(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"
