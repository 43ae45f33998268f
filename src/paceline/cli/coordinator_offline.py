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
    from paceline.plan.codec import Json


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
        f"log       entries {entries}, {found.commands} commands; {found.records} records",
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


@click.command("init-pki")
@click.option("--out", "folder", type=PATH, required=True, help="Where the files go.")
@click.option(
    "--node", "nodes", multiple=True, metavar="ID=HOST[,HOST…]", help="A node and its addresses. Repeatable."
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME=ROLE",
    help="A client: admin, worker or viewer. Repeatable. [default: one of each]",
)
@click.option(
    "--days", type=click.IntRange(min=1), default=825, show_default=True, help="How long they are valid."
)
@click.option(
    "--add", "is_adding", is_flag=True, help="Further certificates of the authority in this folder."
)
@common_options
def init_pki(
    session: Session,
    folder: Path,
    nodes: tuple[str, ...],
    clients: tuple[str, ...],
    days: int,
    is_adding: bool,
) -> None:
    """Make an authority, and certificates for nodes and clients.

    Nothing is ever overwritten. Give each machine ca.crt and its own two files,
    and keep ca.key somewhere else.
    """
    from paceline import clock
    from paceline.coordinator.shell import pki

    written = pki.init_pki(
        session.folder / folder,
        [pki.parse_node(text) for text in nodes],
        [pki.parse_client(text) for text in clients],
        now_s=clock.unix_now_s(),
        days=days,
        add=is_adding,
    )
    files: list[Json] = [str(path) for path in written]
    emit(session, "coordinator.init-pki", {"files": files}, [f"wrote {path}" for path in written])
